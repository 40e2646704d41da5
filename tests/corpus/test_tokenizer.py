import json
import subprocess
import sys

import pytest
from errors import user_error
from transformers import AutoTokenizer, BertConfig, BertTokenizer
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

from bert_repro.corpus.tokenizer import train_wordpiece
from bert_repro.models.loading import SPECIAL_TOKENS, load_tokenizer, save_tokenizer, tokenizer_fingerprint

NASTY = [
    "Hello, WORLD! naïve café ÅNGSTRÖM",
    "中文字符 mixed with English漢字かなカナ",
    "a\x00b\ufffdc\x7fd zero\u200bwidth\u200djoined \ufeffbom soft\u00adhyphen",
    "tab\tnew\nline\rreturn\u00a0nbsp\u3000wide\u2028separator",
    "😀 👨‍👩‍👧 emoji🎉text",
    "x" * 100 + " " + "y" * 101 + " " + "z" * 250,
    "don't $5.00 a_b-c^d`e~ <tag> [x] {y}|z\\w",
    "ﬁ ligature Ⅷ ½ ² ß ẞ ǅ İstanbul ŞIK",
    "한국어 हिन्दी ไทย العربية עברית",
    "؟ ، 。！？「」…—–",
    "",
    "   ",
    "[CLS] [MASK] [SEP] [PAD] [UNK] [mask]",
    "\u202eright to left\u2066",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𠀀𠀁",
    "the quick brown foxes jumped unbelievably",
]
TEXTS = [
    "The quick brown fox jumps over the lazy dog, unbelievably quickly.",
    "Foxes and dogs are jumping; the café is naïve, the Ångström small: über-quick!",
    "中文 字符 and 漢字, with don't, a_b-c and $5.00.",
] * 10


@pytest.fixture(scope="module")
def uncased():
    return train_wordpiece(TEXTS, vocab_size=140)


def legacy(tokenizer, folder, *, lowercase=True, strip_accents=None, handle_chinese_chars=True):
    vocab = tokenizer.get_vocab()
    (folder / "vocab.txt").write_text("\n".join(sorted(vocab, key=vocab.get)) + "\n", encoding="utf-8")
    return BertTokenizerLegacy(
        str(folder / "vocab.txt"),
        do_lower_case=lowercase,
        strip_accents=strip_accents,
        tokenize_chinese_chars=handle_chinese_chars,
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lowercase": False},
        {"strip_accents": False},
        {"lowercase": False, "strip_accents": True},
        {"handle_chinese_chars": False},
    ],
    ids=str,
)
def test_tokens_equal_the_slow_reference(options, tmp_path):
    tokenizer = train_wordpiece(TEXTS, vocab_size=130, **options)
    reference = legacy(tokenizer, tmp_path, **options)
    for text in NASTY:
        assert tokenizer.tokenize(text) == reference.tokenize(text), repr(text)
    assert tokenizer("the fox", "a dog").input_ids == reference("the fox", "a dog").input_ids
    assert tokenizer("a", "a a").token_type_ids == [0, 0, 0, 1, 1, 1]


def test_training_is_the_same_in_every_process():
    # Equal counts everywhere, and more characters than the alphabet holds: each tie must be broken in a defined way.
    letters = "abcdefghijklmnopqrstuvwxyzαβγδεζηθ"
    texts = [a + b + c for a in letters for b in letters for c in letters[::5]] * 2
    here = train_wordpiece(texts, vocab_size=400, limit_alphabet=30).get_vocab()
    code = (
        "import json, sys; from bert_repro.corpus import tokenizer\n"
        "tokenizer.build_tokenizer = lambda vocab, *_, **__: vocab\n"
        "vocab = tokenizer.train_wordpiece(json.load(sys.stdin), vocab_size=400, limit_alphabet=30)\n"
        "print(json.dumps(vocab))"
    )
    there = subprocess.run([sys.executable, "-c", code], input=json.dumps(texts), capture_output=True, text=True)
    assert json.loads(there.stdout) == here


def test_rare_characters_stay_out_of_the_alphabet_and_training_errors_name_the_fix():
    tokenizer = train_wordpiece(["aaa bbb"] * 9 + ["c"] * 3, vocab_size=50, limit_alphabet=2)
    assert "c" not in tokenizer.get_vocab() and tokenizer.tokenize("c") == ["[UNK]"]
    with user_error("--text_passages_only false"):
        train_wordpiece(["  ", ""])
    with user_error("--vocab_size 20", "--limit_alphabet", setting="vocab_size"):
        train_wordpiece(TEXTS, vocab_size=20)


def test_save_and_load_with_upstream_transformers(tmp_path):
    tokenizer = train_wordpiece(TEXTS, vocab_size=140)
    tokenizer.save_pretrained(tmp_path)
    BertConfig().save_pretrained(tmp_path)
    assert {"tokenizer.json", "tokenizer_config.json"} <= {path.name for path in tmp_path.iterdir()}
    upstream, ours = AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)
    assert tokenizer_fingerprint(upstream) == tokenizer_fingerprint(ours) == tokenizer_fingerprint(tokenizer)
    for text in NASTY:
        assert upstream.tokenize(text) == tokenizer.tokenize(text)
    assert upstream.tokenize("a" * 101) == ["[UNK]"] != upstream.tokenize("a" * 100)
    assert upstream("the fox", "a dog") == tokenizer("the fox", "a dog")
    assert upstream.model_max_length == 512


def test_further_special_tokens_have_the_name_that_transformers_4_reads(tmp_path):
    tokenizer = BertTokenizer(vocab={word: index for index, word in enumerate([*SPECIAL_TOKENS, "a"])})
    tokenizer.add_special_tokens({"additional_special_tokens": ["[E1]"]})
    save_tokenizer(tokenizer, tmp_path)
    written = json.loads((tmp_path / "tokenizer_config.json").read_text("utf-8"))
    assert written["additional_special_tokens"] == ["[E1]"] and "extra_special_tokens" not in written
    again = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    assert again("a [E1]")["input_ids"] == tokenizer("a [E1]")["input_ids"] and "[E1]" in again.all_special_tokens
    save_tokenizer(again, tmp_path / "again")  # where and how it was found is not published
    assert (tmp_path / "again/tokenizer_config.json").read_text("utf-8") == json.dumps(written, indent=2) + "\n"


def write_vocabulary(path, extra):
    path.write_text("\n".join([*SPECIAL_TOKENS, "[unused1]", *extra]) + "\n", encoding="utf-8")
    return path


def test_plain_vocabulary_says_its_case(tmp_path):
    cased = load_tokenizer(write_vocabulary(tmp_path / "cased.txt", ["The", "the", "##s"]))
    assert cased.tokenize("The the") == ["The", "the"] and cased.do_lower_case is False
    (tmp_path / "folder").mkdir()
    write_vocabulary(tmp_path / "folder" / "vocab.txt", ["the", "##s"])
    uncased = load_tokenizer(tmp_path / "folder")
    assert uncased.tokenize("Thés") == ["the", "##s"] and uncased.do_lower_case is True
    assert load_tokenizer(tmp_path / "folder", lowercase=False).tokenize("The") == ["[UNK]"]


def test_loading_errors_are_user_errors(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other.txt").write_text("the\nof\n")
    for name, named in (
        (tmp_path / "nowhere", ["nowhere"]),
        ("nobody/nothing-here", ["nobody/nothing-here"]),
        ("bert-base-nothing", ["bert-base-nothing"]),
        (tmp_path / "empty", [tmp_path / "empty"]),
        (write_vocabulary(tmp_path / "twice.txt", ["the", "the"]), ["line 8", "line 7"]),
        (tmp_path / "other.txt", ["[PAD]"]),
    ):
        with user_error(*named):
            load_tokenizer(name)
