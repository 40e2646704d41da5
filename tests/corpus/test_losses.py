"""Users are told what their tokenizer loses, and that their text is not in its language."""

import logging

import pytest

from bert_repro.configs import CorpusConfig, TokenizerConfig
from bert_repro.corpus.prepare import prepare_corpus
from bert_repro.corpus.tokenizer import train_tokenizer

ENGLISH = "The bird flew to the house of the king, and it was the last one that came for a long time in that year. " * 5
GERMAN = "Die Änderungen der Bücher für die Schüler wären größer, und das ist in der Nähe der Höfe von den Bäumen. " * 5
HINDI = "यह किताब बहुत अच्छी है और मैं इसे हर दिन पढ़ता हूँ क्योंकि इसमें कई कहानियाँ हैं। " * 5
# Two thousand different characters, each about as often as the others.
CHINESE = "".join(chr(0x4E00 + (7 * number) % 2000) for number in range(6000))
THAI = "ภาษาไทยเขียนโดยไม่มีช่องว่างระหว่างคำ" * 20 + " คำ คำ"


def warnings(caplog):
    return "\n".join(record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)


def trained(tmp_path, text, **options):
    config = TokenizerConfig(output_dir=str(tmp_path / "tokenizer"), **{"text_passages_only": False, **options})
    return train_tokenizer(config, texts=[text] * 3)


@pytest.mark.parametrize(
    ("text", "options", "named"),
    [
        (GERMAN, {}, ["--strip_accents false", "--lowercase false"]),
        (HINDI, {}, ["--strip_accents false"]),
        (CHINESE, {}, ["--limit_alphabet", "[UNK]"]),
        (THAI, {"strip_accents": False}, ["[UNK]", "100 characters"]),
        (ENGLISH, {}, []),
        (GERMAN, {"strip_accents": False}, []),
        (HINDI, {"lowercase": False}, []),
        (CHINESE, {"limit_alphabet": 3000}, []),
    ],
)
def test_training_a_vocabulary_says_what_is_lost_and_which_flag_keeps_it(tmp_path, caplog, text, options, named):
    trained(tmp_path, text, **options)
    shown = warnings(caplog)
    assert ("removes accents" in shown or "[UNK]" in shown) == bool(named), shown
    assert all(name in shown for name in named), shown


@pytest.mark.parametrize(
    ("text", "language", "named"),
    [
        (GERMAN, "de", ["--strip_accents false"]),
        (GERMAN.replace("ä", "ae"), "en", ["--language en"]),
        (ENGLISH, "en", []),
        (CHINESE, "en", ["--limit_alphabet", "tokens on average"]),
    ],
)
def test_preparing_a_corpus_says_what_is_lost(tmp_path, caplog, text, language, named):
    trained(tmp_path, ENGLISH if text is ENGLISH else text)
    caplog.clear()
    config = CorpusConfig(
        tokenizer=str(tmp_path / "tokenizer"), output_dir=str(tmp_path / "corpus"), language=language,
        text_passages_only=False,
    )  # fmt: skip
    manifest = prepare_corpus(config, texts=[text * 20] * 3)
    shown = warnings(caplog)
    assert all(name in shown for name in named), shown
    assert named or not {"--language", "[UNK]", "accents"} & set(shown.split())
    assert not {"losses", "language_signs"} & set(manifest)
