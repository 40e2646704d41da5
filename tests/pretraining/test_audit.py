import json
import random

import numpy as np
import pytest
from bert_repro.pretraining.audit_checks import Check
from running import recipe

from bert_repro.configs import AuditConfig, CorpusConfig
from bert_repro.corpus.prepare import prepare_corpus
from bert_repro.corpus.tokenizer import train_wordpiece
from bert_repro.errors import UserError
from bert_repro.pretraining import audit as audit_module
from bert_repro.pretraining import masking
from bert_repro.pretraining.audit import audit_pretraining_data
from bert_repro.pretraining.masking import Masker
from bert_repro.pretraining.segment_pairs import PairGenerator

WORDS = [f"{first}{last}" for first in "b d f g k l m n p r s t".split() for last in "aba edo iri olu una".split()]
DOCUMENTS = 500


def document(number):
    generator = random.Random(number)
    sentences = [" ".join(generator.choices(WORDS, k=generator.randint(5, 12))) + "." for _ in range(20)]
    return "\n".join(sentences)


@pytest.fixture(scope="module")
def make_corpus(tmp_path_factory):
    root = tmp_path_factory.mktemp("audit")
    train_wordpiece([document(number) for number in range(50)], vocab_size=100).save_pretrained(root / "tokenizer")

    def make(name, documents):
        (root / f"{name}.txt").write_text("\n\n".join(documents) + "\n")
        options = {"sentence_splitter": "lines", "text_passages_only": False, "output_dir": str(root / name)}
        files = (str(root / f"{name}.txt"),)
        prepare_corpus(CorpusConfig(input_files=files, tokenizer=str(root / "tokenizer"), **options))
        return str(root / name)

    return make


@pytest.fixture(scope="module")
def corpus(make_corpus):
    return make_corpus("right", [document(number) for number in range(DOCUMENTS)])


@pytest.fixture
def no_plot(monkeypatch):
    monkeypatch.setattr(audit_module, "plot_audit", lambda report, path: None)


@pytest.fixture
def audit(corpus, tmp_path):
    def audit(**settings):
        options = {"corpus": corpus, "output_dir": str(tmp_path / "audit"), "max_seq_length": 32}
        return audit_pretraining_data(AuditConfig(**(options | settings)))

    return audit


def by_name(report):
    return {check["name"]: check for check in report["checks"]}


def test_right_examples_pass_and_are_described(audit, tmp_path):
    report = audit()
    folder = tmp_path / "audit"
    assert report["passed"] and report == json.loads((folder / "audit.json").read_text())
    assert sorted(path.name for path in folder.iterdir()) == ["audit.json", "audit.png", "audit.txt", "status.json"]
    assert (folder / "audit.png").read_bytes().startswith(b"\x89PNG")
    text = (folder / "audit.txt").read_text()
    assert "All 20 checks passed." in text and "25 to 28" in text and "padding, packed" in text
    statistics, checks = report["statistics"], by_name(report)
    assert len(checks) == 20
    assert statistics["documents"] == DOCUMENTS and statistics["sequences"] > 3000
    assert sum(statistics["length_histogram"]) == sum(statistics["predictions_histogram"]) == statistics["sequences"]
    assert statistics["mean_length"] == np.average(np.arange(33), weights=statistics["length_histogram"])
    assert statistics["padding"]["padded to max_seq_length"] == pytest.approx(1 - statistics["mean_length"] / 32)
    assert 0 < statistics["padding"]["8 bins by length"] < statistics["padding"]["padded to max_seq_length"]
    share = checks["replaced by [MASK], share"]
    assert share["low"] < 0.8 + 0.1 / 100 < share["high"] and share["high"] - share["low"] < 0.04


@pytest.mark.parametrize(
    "settings",
    [
        {"nsp_sampling": "original"},
        {"next_sentence_prediction": False},
        {"next_sentence_prediction": False, "no_nsp_input": "contiguous"},
        {"whole_word_masking": True},
        {"random_token_source": "ordinary"},
        {"mask_replace_prob": 1.0, "random_replace_prob": 0.0},
        {"mask_replace_prob": 0.0, "random_replace_prob": 1.0},
        {"mask_replace_prob": 0.0, "random_replace_prob": 0.2},
        {"max_predictions_per_seq": 3, "seed": 7},
        {"dupe_factor": 2, "num_sequences": 1000},
    ],
    ids=str,
)
def test_other_right_settings_pass(audit, no_plot, settings):
    report = audit(**settings)
    assert report["passed"]
    has_pairs = settings.get("no_nsp_input") != "contiguous"
    assert ("NotNext, share" in by_name(report)) == has_pairs
    if settings.get("nsp_sampling") == "original":
        assert 0 < report["statistics"]["forced_not_next_share"] < report["statistics"]["not_next_share"] - 0.3


def always_mask(self, targets, keys, places):
    return np.full_like(targets, self._mask_token_id)


def few_random_tokens(self, targets, keys, places):
    replaced = right_replacements(self, targets, keys, places)
    return np.where((replaced != targets) & (replaced != self._mask_token_id), replaced // 2, replaced)


def front_tokens(self, tokens, candidates, starts, wanted, keys):
    return np.concatenate([candidates[start : start + n] for start, n in zip(starts[:-1], wanted, strict=True)])


def one_short(lengths, masked_lm_prob, max_predictions):
    return np.maximum(right_num_predictions(lengths, masked_lm_prob, max_predictions) - 1, 1)


def coin_flips(self, tokens, candidates, starts, wanted, keys):
    return candidates[np.random.default_rng(len(candidates)).random(len(candidates)) < 0.15]


def may_mask_separators(self, tokens, lengths, keys):
    masked = right_call(self, tokens, lengths, keys)
    ends = np.cumsum(lengths) - 1
    changed, positions = masked.tokens.copy(), np.sort(np.concatenate([masked.positions, ends]))
    changed[ends] = self._mask_token_id
    return masked._replace(tokens=changed, positions=positions, targets=tokens.astype(np.int64)[positions])


def sixty_percent(self, chunk, draws):
    return draws[1] % np.uint64(10) < 6


def next_document(self, members, draws):
    return self.documents[(members + 1) % len(self.documents)]


def early_documents(self, members, draws):
    return self.documents[(members + 1 + draws[2].astype(np.int64) % 40) % 80]


def same_document(self, members, draws):
    return self.documents[members]


right_replacements, right_call = Masker._replacements, Masker.__call__
right_num_predictions = masking.num_predictions


@pytest.mark.parametrize(
    ("target", "name", "broken", "caught"),
    [
        (Masker, "_replacements", always_mask, "replaced by [MASK], share"),
        (Masker, "_replacements", few_random_tokens, "random tokens, even"),
        (Masker, "_select_tokens", front_tokens, "places of predictions, even"),
        (Masker, "_select_tokens", coin_flips, "wrong count of predictions"),
        (Masker, "__call__", may_mask_separators, "predicted [CLS] and [SEP]"),
        (masking, "num_predictions", one_short, "wrong count of predictions"),
        (PairGenerator, "_labels", sixty_percent, "NotNext, share"),
        (PairGenerator, "_other_documents", early_documents, "documents of NotNext, even"),
        (PairGenerator, "_other_documents", next_document, "distances of NotNext documents, even"),
        (PairGenerator, "_other_documents", same_document, "NotNext inside one document"),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_wrong_code_is_flagged(audit, no_plot, monkeypatch, tmp_path, target, name, broken, caught):
    monkeypatch.setattr(target, name, broken)
    with pytest.raises(UserError, match="checks failed") as failure:
        audit()
    assert caught in str(failure.value) and "\n" not in str(failure.value)
    assert not json.loads((tmp_path / "audit" / "audit.json").read_text())["passed"]
    assert "FAIL" in (tmp_path / "audit" / "audit.txt").read_text()


def test_labels_turned_round_are_flagged(audit, no_plot, monkeypatch):
    right = PairGenerator._examples

    def swapped(self, *arguments):
        rows, keep, sentence = right(self, *arguments)
        rows["flags"] ^= 1
        return rows, keep, sentence

    monkeypatch.setattr(PairGenerator, "_examples", swapped)
    with pytest.raises(UserError, match=r"NotNext inside one document.*IsNext whose B does not follow A"):
        audit()


def test_repeated_and_short_documents_are_flagged(audit, no_plot, make_corpus):
    texts = [document(number) for number in range(60)]
    with pytest.raises(UserError, match=r"repeated documents, share: 0.5000, expected 0.0000 to 0.0100 \(remove"):
        audit(corpus=make_corpus("repeated", texts * 2))
    lines = [line for text in texts for line in text.split("\n")]
    with pytest.raises(UserError, match=r"sentences per document: 1\.0000, expected at least 3"):
        audit(corpus=make_corpus("short", lines), overwrite_output_dir=True)


def test_a_vocabulary_of_other_text_is_flagged(audit, no_plot, make_corpus):
    texts = [document(number).replace("b", "ж").replace("d", "щ") for number in range(60)]
    with pytest.raises(UserError, match=r"\[UNK\] among tokens, share: 0\.\d+.*train a tokenizer on this corpus"):
        audit(corpus=make_corpus("other", texts))


@pytest.mark.parametrize(("broken", "code"), [(False, 0), (True, 2)])
def test_exit_code_says_whether_all_passed(corpus, tmp_path, monkeypatch, capsys, broken, code):
    if broken:
        monkeypatch.setattr(Masker, "_replacements", always_mask)
    arguments = ["--corpus", corpus, "--max_seq_length 32 --output_dir", tmp_path]
    assert recipe("audit_pretraining_data", *arguments) == code
    assert json.loads((tmp_path / "status.json").read_text())["code"] == code
    shown = capsys.readouterr().err
    assert "NotNext, share" in shown and ("error: " in shown) == broken and "Traceback" not in shown


def test_an_output_folder_in_use_is_left_alone(audit, tmp_path):
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "notes.txt").write_text("keep")
    with pytest.raises(UserError, match="is not empty"):
        audit()


def test_a_check_passes_inside_its_range_only():
    values = [Check("", found, 1.0, 2.0, "").passed for found in (0.99, 1.0, 2.0, 2.01, float("nan"))]
    assert values == [False, True, True, False, False]
