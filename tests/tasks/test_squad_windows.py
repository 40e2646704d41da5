import pytest
from tiny_models import word_tokenizer

from bert_repro.tasks.squad_windows import answer_span, fullest_windows, tokenize_passages, window_spans

WORDS = "the old mill river burned 1895 18 ##9 north ##ern ( - ) . , japan ##ese"


@pytest.fixture(scope="module")
def tokenizer():
    return word_tokenizer(WORDS + " a b c d e f g h i j k l m n o p q r s t u v w x y z")


def passage_of(tokenizer, context):
    return next(tokenize_passages(tokenizer, [context]))


def test_a_passage_knows_its_pieces_characters_and_words(tokenizer):
    passage = passage_of(tokenizer, "The\u202fnorthern  mill\n(1895).")
    assert list(passage.pieces) == ["the", "north", "##ern", "mill", "(", "1895", ")", "."]
    assert passage.word_of.tolist() == [0, 1, 1, 2, 3, 3, 3, 3]
    assert [passage.context[a:b] for a, b in passage.words] == ["The", "northern", "mill", "(1895)."]
    cut = [passage.context[a:b] for a, b in zip(passage.starts, passage.ends, strict=True)]
    assert cut == ["The", "north", "ern", "mill", "(", "1895", ")", "."]
    assert passage.words_between(2, 4) == ["northern", "mill", "(1895)."]
    # The original code splits words at ASCII whitespace and U+202F only; its tokenizer splits here all the same.
    passage = passage_of(tokenizer, "the\u00a0mill river")
    assert list(passage.pieces) == ["the", "mill", "river"]
    assert passage.word_of.tolist() == [0, 0, 1]
    assert list(tokenize_passages(tokenizer, [])) == []
    for passage in tokenize_passages(tokenizer, ["", " \n", "\u200b"]):
        assert len(passage.ids) == len(passage.word_of) == 0


def released_choice(spans, piece):
    """The window of most context, by comparing one after another."""
    best, best_score = None, None
    for number, (start, size) in enumerate(spans):
        end = start + size - 1
        if start <= piece <= end:
            score = min(piece - start, end - piece) + 0.01 * size
            if best_score is None or score > best_score:
                best, best_score = number, score
    return best


@pytest.mark.parametrize(
    ("length", "room", "stride"), [(5, 10, 4), (50, 10, 4), (47, 20, 3), (300, 128, 64), (9, 3, 9)]
)
def test_each_piece_starts_answers_where_it_has_most_context(length, room, stride):
    spans = window_spans(length, room, stride)
    expected = [released_choice(spans, piece) for piece in range(length)]
    assert fullest_windows(spans, length).tolist() == expected


@pytest.mark.parametrize(
    ("context", "answer", "start", "pieces"),
    [
        ("the mill (1895-189) burned", "1895", 10, ["1895"]),
        ("the old mill.", "old mill", 4, ["old", "mill"]),
        ("the japanese mill", "japan", 4, ["japan"]),
        # The pieces of the answer are not in the word that holds it, so the word stays.
        ("the (japanq) mill", "japan", 5, ["(", "[UNK]", ")"]),
        ("the old\n mill", "old mill", 4, ["old", "mill"]),
        (" the mill ", " the", 0, ["the"]),
        ("the old mill", "river", 4, None),
        ("\u200b mill", "\u200b", 0, None),
    ],
)
def test_answers_are_narrowed_to_their_pieces_where_they_are(tokenizer, context, answer, start, pieces):
    passage = passage_of(tokenizer, context)
    span = answer_span(passage, answer, start, tokenizer(answer, add_special_tokens=False)["input_ids"])
    assert (span and list(passage.pieces[span[0] : span[1] + 1])) == pieces
