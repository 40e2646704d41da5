from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from bert_repro.tasks.base import join, token_ids, truncated_lengths
from bert_repro.tasks.squad_windows import tokenize_passages


def test_truncation_equals_popping_one_token_at_a_time():
    for limit in (1, 2, 5, 8):
        for length_a in range(12):
            for length_b in range(12):
                a, b = list(range(length_a)), list(range(length_b))
                while len(a) + len(b) > limit:
                    (a if len(a) > len(b) else b).pop()
                assert truncated_lengths(length_a, length_b, limit) == (len(a), len(b)), (length_a, length_b, limit)


def test_join_marks_segments_through_the_first_separator():
    ids, segments = join(101, 102, [5, 6], [7])
    assert ids.tolist() == [101, 5, 6, 102, 7, 102]
    assert segments.tolist() == [0, 0, 0, 0, 1, 1]
    ids, segments = join(101, 102, [])
    assert ids.tolist() == [101, 102] and segments.tolist() == [0, 0]
    # An empty second text still has its separator: a pair never turns into a single text.
    assert join(101, 102, [5], [])[0].tolist() == [101, 5, 102, 102]


def test_special_tokens_written_in_a_text_are_text():
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "[", "]", "SEP", "MASK"]
    backend = Tokenizer(models.WordLevel({token: number for number, token in enumerate(tokens)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = {"unk_token": "[UNK]", "sep_token": "[SEP]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", **special)
    assert tokenizer("a [SEP] b")["input_ids"] == [5, 3, 6]
    expected = [5, 7, 9, 8, 6, 7, 10, 8]
    assert token_ids(tokenizer, ["a [SEP] b[MASK]"]) == [expected]
    (passage,) = tokenize_passages(tokenizer, ["a [SEP] b[MASK]"])
    assert passage.ids.tolist() == expected and passage.starts.tolist() == [0, 2, 3, 6, 8, 9, 10, 14]
