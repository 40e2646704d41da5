"""What the audit counts in examples, and checks of these counts against the settings and the paper.

Examples are counted batch by batch, so that memory does not grow with the sample. What examples should be is derived
here from the definitions (paper 3.1, A.1; original implementation), not by the code that makes them. A share must lie
where 99.9% of correct samples do, evenness is a chi-square test at 0.1%: correct code fails one in a thousand seeds.

Shape legend: `B` sequences, `T` tokens of all sequences together, laid end to end.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bert_repro.configs import ExampleConfig
from bert_repro.corpus.prepared_corpus import PreparedCorpus
from bert_repro.pretraining.segment_pairs import FORCED, RowArray
from bert_repro.utils.ragged import Int64Array, places_in_row, row_starts

GROUPS = 32  # into how many groups documents, tokens and places are put for the tests of evenness
LENGTH_BINS = 8
CONFIDENCE = 0.999
REPEATED_DOCUMENTS = 0.01
UNKNOWN_TOKENS = 0.01
SENTENCES_PER_DOCUMENT = 3.0
WHOLE_WORD_PREDICTIONS = 0.9
_RANDOM_DOCUMENT_TRIES = 10  # original implementation
_EXPECTED_PER_GROUP = 5  # below it the chi-square distribution does not describe the statistic

_NSP_FIX = "the pairs are not drawn as asked for"
_MASK_FIX = "the masking is not as asked for"

BoolArray = npt.NDArray[np.bool_]


class Sample(NamedTuple):
    """A batch of examples before and after masking.

    Args:
        rows: of the sample index, [B].
        tokens: before masking, int64 [T].
        inputs: what the model reads, int64 [T].
        labels: the tokens to predict, negative elsewhere, int64 [T].
        lengths: int64 [B].
        not_next: the NSP labels, int64 [B].
    """

    rows: RowArray
    tokens: Int64Array
    inputs: Int64Array
    labels: Int64Array
    lengths: Int64Array
    not_next: Int64Array


@dataclass(frozen=True)
class Vocabulary:
    """What the audit must know of the tokenizer.

    Args:
        size: ids, from 0.
        cls: id of [CLS].
        sep: id of [SEP].
        pad: id of [PAD].
        mask: id of [MASK].
        unknown: id of [UNK].
        is_reserved: special and [unused] tokens, bool [size].
    """

    size: int
    cls: int
    sep: int
    pad: int
    mask: int
    unknown: int
    is_reserved: BoolArray

    @classmethod
    def of(cls, tokenizer: Any) -> "Vocabulary":
        """Reads it from a tokenizer."""
        entries = tokenizer.get_vocab()
        size = max(entries.values()) + 1
        is_reserved = np.zeros(size, dtype=bool)
        is_reserved[[number for token, number in entries.items() if token.startswith("[unused")]] = True
        is_reserved[list(tokenizer.all_special_ids)] = True
        return cls(
            size=size,
            cls=int(tokenizer.cls_token_id),
            sep=int(tokenizer.sep_token_id),
            pad=int(tokenizer.pad_token_id),
            mask=int(tokenizer.mask_token_id),
            unknown=int(tokenizer.unk_token_id),
            is_reserved=is_reserved,
        )


@dataclass
class ExampleCounts:
    """Sums over samples.

    Args:
        config: how examples are to be made.
        max_seq_length: tokens of a sequence at most.
        max_predictions_per_seq: most predicted tokens of a sequence, None for no limit.
        vocabulary: of the tokenizer.
        num_documents: of the corpus; segment B of a NotNext pair comes from any of them but A's.
        counts: what was counted; the names are the keyword arguments of `_count` below.
        arrays: histograms, likewise.
    """

    config: ExampleConfig
    max_seq_length: int
    max_predictions_per_seq: int | None
    vocabulary: Vocabulary
    num_documents: int
    counts: dict[str, int] = field(default_factory=dict)
    arrays: dict[str, npt.NDArray[Any]] = field(default_factory=dict)

    @property
    def draws_pairs(self) -> bool:
        """Whether sequences have two segments."""
        return self.config.next_sentence_prediction or self.config.no_nsp_input == "pairs"

    @property
    def random_source(self) -> BoolArray:
        """The tokens a random one is drawn from except [MASK], which looks like masking; bool [size]."""
        source = np.ones(self.vocabulary.size, dtype=bool)
        if self.config.random_token_source == "ordinary":
            source = ~self.vocabulary.is_reserved
        source[self.vocabulary.mask] = False
        return source

    def token_groups(self, tokens: Int64Array) -> Int64Array:
        """Counts the tokens in each of `GROUPS` equal ranges of ids."""
        return np.bincount(tokens * GROUPS // self.vocabulary.size, minlength=GROUPS)

    def document_groups(self, documents: npt.NDArray[Any]) -> Int64Array:
        """Counts the documents in each of `GROUPS` equal ranges of the corpus."""
        return np.bincount(documents.astype(np.int64) * GROUPS // self.num_documents, minlength=GROUPS)

    def add(self, sample: Sample) -> None:
        """Counts a sample."""
        self._add_sequences(sample)
        self._add_pairs(sample)
        self._add_predictions(sample)

    def _count(self, **numbers: Any) -> None:
        for name, number in numbers.items():
            self.counts[name] = self.counts.get(name, 0) + int(number)

    def _accumulate(self, **arrays: npt.NDArray[Any]) -> None:
        for name, array in arrays.items():
            self.arrays[name] = self.arrays.get(name, 0) + array

    def _add_sequences(self, sample: Sample) -> None:
        starts, ids = row_starts(sample.lengths), self.vocabulary
        separators = np.add.reduceat(sample.tokens == ids.sep, starts[:-1])
        opened = np.add.reduceat(sample.tokens == ids.cls, starts[:-1])
        wanted = 2 if self.draws_pairs else 1
        framed = (sample.tokens[starts[:-1]] == ids.cls) & (sample.tokens[starts[1:] - 1] == ids.sep)
        correct = framed & (separators == wanted) & (opened == 1) & (sample.lengths <= self.max_seq_length)
        width = max(1, self.max_seq_length // LENGTH_BINS)
        self._count(
            sequences=len(sample.lengths),
            tokens=len(sample.tokens),
            binned_tokens=(-(-sample.lengths // width) * width).sum(),
            malformed=(~correct).sum(),
            unknown=(sample.tokens == ids.unknown).sum(),
            predictable=(~np.isin(sample.tokens, [ids.cls, ids.sep, ids.pad])).sum(),
        )
        self._accumulate(lengths=np.bincount(sample.lengths, minlength=self.max_seq_length + 1))

    def _add_pairs(self, sample: Sample) -> None:
        rows, not_next = sample.rows, sample.not_next == 1
        forced = (rows["flags"] & FORCED) > 0
        other = rows["document_a"] != rows["document_b"]
        follows = rows["start_b"].astype(np.int64) >= rows["start_a"].astype(np.int64) + rows["length_a"]
        self._count(
            not_next=not_next.sum(),
            forced=forced.sum(),
            free_not_next=(not_next & ~forced).sum(),
            not_next_of_same_document=(not_next & ~other).sum(),
            is_next_elsewhere=(~not_next & (other | ~follows)).sum(),
        )
        away = rows[not_next & other]
        self._accumulate(
            documents_a=self.document_groups(away["document_a"]),
            documents_b=self.document_groups(away["document_b"]),
            distances=self.document_groups((away["document_b"] - away["document_a"]) % self.num_documents),
        )

    def _add_predictions(self, sample: Sample) -> None:
        ids = self.vocabulary
        predicted = sample.labels >= 0
        candidate = ~np.isin(sample.tokens, [ids.cls, ids.sep, ids.pad])
        starts = row_starts(sample.lengths)[:-1]
        made, candidates = np.add.reduceat(predicted, starts), np.add.reduceat(candidate, starts)
        wanted = self._wanted(sample.lengths, candidates)
        wrong = made > wanted if self.config.whole_word_masking else made != wanted
        seen, target = sample.inputs[predicted], sample.tokens[predicted]
        masked, same = seen == ids.mask, seen == target
        drawn, drawn_for = seen[~masked & ~same], target[~masked & ~same]
        self._count(
            predictions=len(seen),
            wanted_predictions=wanted.sum(),
            sequences_with_wrong_count=wrong.sum(),
            wrong_labels=(sample.labels[predicted] != target).sum(),
            predicted_special=(~candidate[predicted]).sum(),
            changed_elsewhere=(sample.inputs[~predicted] != sample.tokens[~predicted]).sum(),
            masked=masked.sum(),
            same=same.sum(),
            random=len(drawn),
            random_reserved=ids.is_reserved[drawn].sum(),
        )
        place = places_in_row(sample.lengths) * GROUPS // np.repeat(sample.lengths, sample.lengths)
        rate = np.repeat(made / np.maximum(candidates, 1), sample.lengths)
        self._accumulate(
            predictions=np.bincount(made, minlength=self.max_seq_length + 1),
            places=np.bincount(place[predicted], minlength=GROUPS),
            expected_places=np.bincount(place[candidate], rate[candidate], minlength=GROUPS),
            random_tokens=self.token_groups(drawn),
            random_targets=self.token_groups(drawn_for[self.random_source[drawn_for]]),
        )

    def _wanted(self, lengths: Int64Array, candidates: Int64Array) -> Int64Array:
        limit = self.max_predictions_per_seq or self.max_seq_length
        share = np.array([round(float(self.config.masked_lm_prob * n)) for n in range(self.max_seq_length + 1)])
        wanted: Int64Array = np.minimum(np.clip(share[np.minimum(lengths, len(share) - 1)], 1, limit), candidates)
        return wanted


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
