"""What the audit shows of a corpus, and that the sampler draws what the paper says."""

import json
import random

import numpy as np
import pytest
from scipy import stats

from bert_repro.configs import AuditConfig, CorpusConfig
from bert_repro.corpus.prepare import prepare_corpus
from bert_repro.corpus.tokenizer import train_wordpiece
from bert_repro.pretraining.audit import audit_pretraining_data

WORDS = [f"{first}{last}" for first in "b d f g k l m n p r s t".split() for last in "aba edo iri olu una".split()]
DOCUMENTS = 500


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    root = tmp_path_factory.mktemp("audit")
    generator = random.Random(0)
    documents = [
        "\n".join(" ".join(generator.choices(WORDS, k=generator.randint(5, 12))) + "." for _ in range(20))
        for _ in range(DOCUMENTS)
    ]
    train_wordpiece(documents[:50], vocab_size=100).save_pretrained(root / "tokenizer")
    (root / "right.txt").write_text("\n\n".join([*documents, documents[0]]) + "\n")
    options = {"sentence_splitter": "lines", "text_passages_only": False, "output_dir": str(root / "corpus")}
    prepare_corpus(CorpusConfig(input_files=(str(root / "right.txt"),), tokenizer=str(root / "tokenizer"), **options))
    return str(root / "corpus")


@pytest.fixture
def audit(corpus, tmp_path):
    def audit(**settings):
        options = {"corpus": corpus, "output_dir": str(tmp_path / "audit"), "max_seq_length": 32}
        return audit_pretraining_data(AuditConfig(**(options | settings)))

    return audit


def test_examples_are_shown_decoded_and_described(audit, tmp_path):
    report = audit()
    folder = tmp_path / "audit"
    assert report == json.loads((folder / "audit.json").read_text())
    assert sorted(path.name for path in folder.iterdir()) == ["audit.json", "audit.txt", "status.json"]
    statistics, text = report["statistics"], (folder / "audit.txt").read_text()
    assert statistics["documents"] == DOCUMENTS + 1 and statistics["documents with a text that occurs before"] == 1
    assert statistics["sequences drawn"] > 3000
    assert len(report["examples"]) == 4 and "{[MASK] -> " in text and "IsNext: [CLS] " in text


@pytest.mark.parametrize(
    ("settings", "shares"),
    [
        ({}, (0.5, 0.8, 0.1)),
        ({"whole_word_masking": True}, (0.5, 0.8, 0.1)),
        ({"mask_replace_prob": 0.0, "random_replace_prob": 0.2}, (0.5, 0.0, 0.2)),
        ({"mask_replace_prob": 1.0, "random_replace_prob": 0.0, "seed": 7}, (0.5, 1.0, 0.0)),
        ({"dupe_factor": 2, "num_sequences": 5000}, (0.5, 0.8, 0.1)),
    ],
    ids=str,
)
def test_the_sampler_draws_the_shares_asked_for(audit, settings, shares):
    statistics = audit(**settings)["statistics"]
    predictions = statistics["predictions of a sequence"] * statistics["sequences drawn"]
    not_next, masked, random_tokens = shares
    expected = {  # of a hundred random tokens one is [MASK] and one the token itself
        "pairs NotNext": (statistics["sequences drawn"], not_next),
        "predictions read as [MASK]": (round(predictions), masked + random_tokens / 100),
        "predictions read as a random token": (round(predictions), random_tokens * 98 / 100),
    }
    for name, (trials, share) in expected.items():
        low, high = stats.binom.interval(0.9999, trials, share)
        assert low / trials - 1e-9 <= statistics[name] <= high / trials + 1e-9, name
    assert np.isclose(statistics["predictions of a sequence"], 0.15 * statistics["tokens of a sequence"], rtol=0.05)
