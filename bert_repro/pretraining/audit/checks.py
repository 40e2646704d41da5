"""Checks a corpus and its examples: measured values with the ranges they must lie in.

What examples should be is derived here from the definitions (paper 3.1, A.1; original implementation), not by the code
that makes them. A share must lie where 99.9% of correct samples do, evenness is a chi-square test at 0.1%: correct code
fails one such check in a thousand seeds.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bert_repro.corpus.prepared_corpus import PreparedCorpus
from bert_repro.pretraining.audit.counts import LENGTH_BINS, ExampleCounts

CONFIDENCE = 0.999
REPEATED_DOCUMENTS = 0.01
UNKNOWN_TOKENS = 0.01
SENTENCES_PER_DOCUMENT = 3.0
WHOLE_WORD_PREDICTIONS = 0.9
_RANDOM_DOCUMENT_TRIES = 10  # original implementation
_EXPECTED_PER_GROUP = 5  # below it the chi-square distribution does not describe the statistic

_NSP_FIX = "the pairs are not drawn as asked for"
_MASK_FIX = "the masking is not as asked for"


class Check(NamedTuple):
    """One measured value and the range it must lie in.

    Args:
        name: what was measured.
        found: the value.
        low: least value that passes.
        high: greatest value that passes.
        fix: what is wrong, or what to do, when it fails.
    """

    name: str
    found: float
    low: float
    high: float
    fix: str

    @property
    def passed(self) -> bool:
        """Whether the value lies in its range."""
        return self.low <= self.found <= self.high

    def __str__(self) -> str:
        if self.low == self.high == 0:
            return f"{self.name}: {self.found}, expected none ({self.fix})"
        bound = f"at least {self.low:.4g}" if self.high == float("inf") else f"{self.low:.4f} to {self.high:.4f}"
        return f"{self.name}: {self.found:.4f}, expected {bound} ({self.fix})"

    def as_json(self) -> dict[str, Any]:
        """Returns the fields for JSON; no upper bound is null."""
        return {**self._asdict(), "high": None if self.high == float("inf") else self.high, "passed": self.passed}


def corpus_checks(corpus: PreparedCorpus) -> Iterator[Check]:
    """Checks what must hold before any example is drawn."""
    repeated = 1 - len(np.unique(corpus.document_keys)) / corpus.num_documents
    yield Check("repeated documents, share", repeated, 0, REPEATED_DOCUMENTS, "remove the copies from the input")
    yield Check(
        "sentences per document",
        corpus.num_sentences / corpus.num_documents,
        SENTENCES_PER_DOCUMENT,
        float("inf"),
        "too few for next sentence prediction; in .txt remove blank lines between paragraphs",
    )


def example_checks(counted: ExampleCounts) -> Iterator[Check]:
    """Checks what must hold of the examples that were counted."""
    counts = counted.counts
    unknown = counts["unknown"] / counts["predictable"]
    yield Check("[UNK] among tokens, share", unknown, 0, UNKNOWN_TOKENS, "train a tokenizer on this corpus")
    yield _none("sequences not framed by [CLS] and [SEP]", counts["malformed"], "the examples are malformed")
    if counted.draws_pairs:
        yield from _pair_checks(counted)
    yield from _prediction_checks(counted)
    yield from _replacement_checks(counted)


def corpus_statistics(corpus: PreparedCorpus, max_seq_length: int) -> dict[str, Any]:
    """Returns the sizes of a corpus and the shares of its short documents."""
    tokens, sentences = np.diff(corpus.document_starts), np.diff(corpus.document_sentences)
    return {
        "documents": corpus.num_documents,
        "sentences": corpus.num_sentences,
        "tokens": corpus.num_tokens,
        "documents_of_one_sentence": float((sentences == 1).mean()),
        "documents_shorter_than_a_sequence": float((tokens < max_seq_length - 3).mean()),
        "documents_too_short_for_an_example": int((tokens < 2).sum()),
    }


def example_statistics(counted: ExampleCounts) -> dict[str, Any]:
    """Returns shares and histograms of the examples that were counted."""
    counts, sequences = counted.counts, counted.counts["sequences"]
    room = sequences * counted.max_seq_length
    return {
        "sequences": sequences,
        "mean_length": counts["tokens"] / sequences,
        "not_next_share": counts["not_next"] / sequences,
        "forced_not_next_share": counts["forced"] / sequences,
        "predictions_per_sequence": counts["predictions"] / sequences,
        "mask_share": counts["masked"] / counts["predictions"],
        "random_share": counts["random"] / counts["predictions"],
        "same_share": counts["same"] / counts["predictions"],
        "random_draws_of_special_tokens": counts["random_reserved"] / max(1, counts["random"]),
        "padding": {
            "padded to max_seq_length": 1 - counts["tokens"] / room,
            f"{LENGTH_BINS} bins by length": 1 - counts["tokens"] / counts["binned_tokens"],
            "packed": 0.0,
        },
        "length_histogram": counted.arrays["lengths"].tolist(),
        "predictions_histogram": np.trim_zeros(counted.arrays["predictions"], "b").tolist(),
    }


def _pair_checks(counted: ExampleCounts) -> Iterator[Check]:
    counts, sequences = counted.counts, counted.counts["sequences"]
    free = sequences - counts["forced"]
    low, high = _interval(free, 0.5)
    yield Check(
        "NotNext, share",
        counts["not_next"] / sequences,
        (counts["forced"] + low) / sequences,
        (counts["forced"] + high) / sequences,
        _NSP_FIX,
    )
    if counted.config.nsp_sampling == "paper":
        yield _none("NotNext without a choice", counts["forced"], _NSP_FIX)
    is_original = counted.config.nsp_sampling == "original"
    unlucky = float(counted.num_documents) ** -_RANDOM_DOCUMENT_TRIES if is_original else 0.0
    most = _interval(counts["not_next"], unlucky)[1]
    yield Check("NotNext inside one document", counts["not_next_of_same_document"], 0, most, _NSP_FIX)
    yield _none("IsNext whose B does not follow A", counts["is_next_elsewhere"], _NSP_FIX)
    documents_b, distances = counted.arrays["documents_b"], counted.arrays["distances"]
    expected = _drawn_from_others(
        counted.arrays["documents_a"], counted.document_groups(np.arange(counted.num_documents))
    )
    yield from _evenness("documents of NotNext, even", documents_b, expected, _NSP_FIX)
    sizes = counted.document_groups(np.arange(1, counted.num_documents))
    yield from _evenness(
        "distances of NotNext documents, even", distances, sizes * (distances.sum() / sizes.sum()), _NSP_FIX
    )


def _prediction_checks(counted: ExampleCounts) -> Iterator[Check]:
    counts = counted.counts
    yield _none("sequences with a wrong count of predictions", counts["sequences_with_wrong_count"], _MASK_FIX)
    yield _none("labels that are not the text", counts["wrong_labels"], _MASK_FIX)
    yield _none("predicted [CLS] and [SEP]", counts["predicted_special"], _MASK_FIX)
    yield _none("tokens changed but not predicted", counts["changed_elsewhere"], _MASK_FIX)
    if counted.config.whole_word_masking:
        made = counts["predictions"] / counts["wanted_predictions"]
        yield Check("predictions of those asked for, share", made, WHOLE_WORD_PREDICTIONS, 1, _MASK_FIX)
    else:
        places = counted.arrays["places"], counted.arrays["expected_places"]
        yield from _evenness("places of predictions, even", *places, _MASK_FIX)


def _replacement_checks(counted: ExampleCounts) -> Iterator[Check]:
    counts, config, source = counted.counts, counted.config, counted.random_source
    drawable = int(source.sum())
    chance = config.random_replace_prob / (drawable + (config.random_token_source == "vocab"))
    mask = config.mask_replace_prob + (chance if config.random_token_source == "vocab" else 0)
    same = 1 - config.mask_replace_prob - config.random_replace_prob + chance
    for name, key, share in (
        ("replaced by [MASK], share", "masked", mask),
        ("replaced by a random token, share", "random", 1 - mask - same),
        ("left as they are, share", "same", same),
    ):
        yield _share(name, counts[key], counts["predictions"], share, _MASK_FIX)
    if not counts["random"]:
        return
    reserved = int((source & counted.vocabulary.is_reserved).sum()) / (drawable - 1)
    name = "special tokens among random ones, share"
    yield _share(name, counts["random_reserved"], counts["random"], reserved, _MASK_FIX)
    sizes = counted.token_groups(np.flatnonzero(source))
    targets = counted.arrays["random_targets"]
    elsewhere = (counts["random"] - targets.sum()) * sizes / drawable
    expected = elsewhere + _drawn_from_others(targets, sizes)
    yield from _evenness("random tokens, even", counted.arrays["random_tokens"], expected, _MASK_FIX)


def _none(name: str, found: int, fix: str) -> Check:
    return Check(name, found, 0, 0, fix)


def _share(name: str, found: int, trials: int, share: float, fix: str) -> Check:
    low, high = _interval(trials, share)
    return Check(name, found / trials, low / trials, high / trials, fix)


def _interval(trials: int, probability: float) -> tuple[float, float]:
    """Returns the range of 99.9% of the counts of a binomial distribution."""
    from scipy.stats import binom

    # Shares that sum to one leave a remainder of rounding.
    if probability < 1e-12 or probability > 1 - 1e-12:
        return trials * round(probability), trials * round(probability)
    low, high = binom.interval(CONFIDENCE, trials, probability)
    return float(low), float(high)


def _drawn_from_others(own: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Returns the expected counts in groups when every draw takes any member of all groups but its own.

    Args:
        own: how many draws have their own member in each group, [GROUPS].
        sizes: members of each group, [GROUPS].
    """
    expected: npt.NDArray[np.float64] = (own.sum() * sizes - own) / (sizes.sum() - 1)
    return expected


def _evenness(name: str, found: npt.NDArray[np.int64], expected: npt.NDArray[np.float64], fix: str) -> Iterator[Check]:
    """Yields a chi-square test; none where the sample is too small for one."""
    from scipy.stats import chi2

    possible = expected > 0
    if not possible.any() or expected[possible].min() < _EXPECTED_PER_GROUP:
        return
    statistic = ((found - expected)[possible] ** 2 / expected[possible]).sum()
    impossible = found[~possible].sum()
    p_value = 0.0 if impossible else float(chi2.sf(statistic, possible.sum() - 1))
    yield Check(f"{name} (p-value)", p_value, 1 - CONFIDENCE, 1, fix)
