from itertools import chain, count

import numpy as np
import pytest
from memory_corpus import MemoryCorpus
from scipy import stats

from bert_repro.pretraining.segment_pairs import FORCED, NOT_NEXT, PairGenerator, PairRules
from bert_repro.utils.randomness import below, draw, fraction

NAMES, EPOCH = (7, 0), 3
CHOICES = {"split": 0, "label": 1, "document": 2, "sentence": 3, "front_a": 4, "front_b": 5}


def boundaries(documents: list[list[int]]) -> MemoryCorpus:
    """Documents given as the lengths of their sentences."""
    sentences = np.cumsum([0] + [length for document in documents for length in document])
    first = np.cumsum([0] + [len(document) for document in documents])
    return MemoryCorpus(sentences[first], sentences, first)


def random_documents(number: int, sentences: int, median: float, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [
        np.maximum(1, rng.lognormal(np.log(median), 0.6, rng.integers(1, 2 * sentences))).astype(int).tolist()
        for _ in range(number)
    ]


def generate(documents, rules, ids=None, block_tokens=1 << 25) -> np.ndarray:
    ids = np.arange(len(documents)) if ids is None else np.asarray(ids)
    blocks = PairGenerator(boundaries(documents), ids, rules, *NAMES).blocks(EPOCH, block_tokens)
    return np.concatenate(list(blocks))


# ------------------------------------------------------------------------------------------- the oracle: a plain loop


def oracle(documents: list[list[int]], rules: PairRules, ids: list[int]) -> list[tuple]:
    """Example by example, sentence by sentence, token by token. A token is (document, place)."""
    tokens = []
    for number, lengths in enumerate(documents):
        ends = np.cumsum(lengths).tolist()
        tokens.append([[(number, p) for p in range(end - n, end)] for n, end in zip(lengths, ends, strict=True)])
    examples = []
    for position, document in enumerate(ids):
        target = oracle_target(document, rules)
        place = example = 0
        while place < len(tokens[document]):
            row, place = oracle_example(tokens, ids, position, place, target, example, rules)
            example += 1
            if row is not None:
                examples.append(row)
    return examples


def oracle_target(document: int, rules: PairRules) -> int:
    key = draw(*NAMES, EPOCH, document)
    if fraction(draw(key, -1, 0)) < rules.short_seq_prob:
        return 2 + int(below(rules.max_tokens - 1, draw(key, -1, 1)))
    return rules.max_tokens


def oracle_example(tokens, ids, position, place, target, example, rules):
    document = ids[position]

    def choose(name: str) -> np.ndarray:
        return draw(draw(*NAMES, EPOCH, document), example, CHOICES[name])

    chunk, size = [], 0
    paper = rules.sampling == "paper"
    while place + len(chunk) < len(tokens[document]):
        chunk.append(tokens[document][place + len(chunk)])
        size += len(chunk[-1])
        if size >= target and not (paper and len(chunk) == 1):
            break
    after, lone = place + len(chunk), len(chunk) == 1
    if paper and lone:
        if len(chunk[0]) == 1:
            return None, after
        cut = 1 + int(below(len(chunk[0]) - 1, choose("split")))
        chunk = [chunk[0][:cut], chunk[0][cut:]]
    end_a = 1 + int(below(len(chunk) - 1, choose("split"))) if len(chunk) > 2 else 1
    a, b = list(chain(*chunk[:end_a])), list(chain(*chunk[end_a:]))
    forced = rules.sampling == "original" and lone
    not_next = forced or int(below(2, choose("label"))) == 1
    if not_next:
        b = oracle_random_text(tokens, ids, position, target - len(a), choose, rules)
        after = after if lone else place + end_a
    flips_a, flips_b = flips(choose("front_a")), flips(choose("front_b"))
    while len(a) + len(b) > rules.max_tokens:
        longer, front = (a, next(flips_a)) if len(a) > len(b) else (b, next(flips_b))
        del longer[0 if front else -1]
    return (a[0], len(a), b[0], len(b), NOT_NEXT * not_next + FORCED * forced), after


def oracle_random_text(tokens, ids, position, wanted, choose, rules):
    if rules.sampling == "paper":
        others = [number for number in range(len(ids)) if number != position]
        other = others[int(below(len(others), choose("document")))]
    else:
        for attempt in range(10):
            other = int(below(len(ids), draw(choose("document"), attempt)))
            if other != position:
                break
    sentences, b = tokens[ids[other]], []
    start = int(below(len(sentences), choose("sentence")))
    for sentence in sentences[start:]:
        b = b + sentence
        if len(b) >= wanted:
            break
    return b


def flips(key):
    for number in count():
        yield int(draw(key, number // 64)) >> (number % 64) & 1


@pytest.mark.parametrize("sampling", ["paper", "original"])
@pytest.mark.parametrize("max_tokens", [13, 125])
def test_examples_equal_those_of_a_plain_loop(sampling, max_tokens):
    documents = [*random_documents(60, 12, 9), [1], [1], [2], [40], [300], [1, 1], [400, 3, 2], [30, 1]]
    ids = [number for number in range(len(documents)) if number % 7]
    rules = PairRules(sampling, max_tokens, 0.3)
    expected = oracle(documents, rules, ids)
    rows = generate(documents, rules, ids)
    made = [((r["document_a"], r["start_a"]), r["length_a"], (r["document_b"], r["start_b"]), r["length_b"], r["flags"])
            for r in rows]  # fmt: skip
    assert sorted(made) == sorted(expected)
    assert len(made) > 150


# ---------------------------------------------------------------------------------------------------------- behaviour


@pytest.mark.parametrize("sampling", ["paper", "original", "contiguous"])
def test_examples_do_not_depend_on_the_blocks(sampling):
    documents = random_documents(300, 8, 9)
    rules = PairRules(sampling, 29, 0.1)
    complete = generate(documents, rules)
    assert np.array_equal(complete, generate(documents, rules, block_tokens=1))
    assert np.array_equal(complete, generate(documents, rules, block_tokens=5000))


def test_paper_sampling_is_half_from_other_documents_drawn_uniformly():
    rows = generate(random_documents(4000, 10, 22), PairRules("paper", 125, 0.1))
    not_next = (rows["flags"] & NOT_NEXT).astype(bool)
    low, high = stats.binom.interval(0.999, len(rows), 0.5)
    assert low <= not_next.sum() <= high
    assert (rows["document_a"][not_next] != rows["document_b"][not_next]).all()
    assert (rows["document_a"][~not_next] == rows["document_b"][~not_next]).all()
    assert not (rows["flags"] & FORCED).any()
    rows = generate([[20] * 400] + [[5]] * 5, PairRules("paper", 125, 0.0), ids=range(6))
    others = rows["document_b"][(rows["document_a"] == 0) & (rows["flags"] == NOT_NEXT)]
    two_documents = generate([[20] * 40, [5]], PairRules("paper", 125, 0.0))
    assert set(others.tolist()) == {1, 2, 3, 4, 5}
    assert (two_documents["document_b"][two_documents["flags"] == NOT_NEXT] >= 0).all()


def test_paper_sampling_does_not_tell_the_label_through_a():
    """First examples of documents: same starting point, so A before truncation must have one distribution."""
    documents = [[4, 9, 3, 8, 2]] * 20000
    rows = generate(documents, PairRules("paper", 125, 0.1))
    first = rows[np.unique(rows["document_a"], return_index=True)[1]]
    table = [np.bincount(first["length_a"][(first["flags"] & NOT_NEXT) == label], minlength=30) for label in (0, 1)]
    table = np.array(table)[:, np.sum(table, axis=0) > 50]
    assert table.shape[1] >= 4
    assert stats.chi2_contingency(table).pvalue > 0.001


def test_contiguous_text_covers_the_document_and_has_no_b():
    documents = random_documents(50, 10, 5)
    rows = generate(documents, PairRules("contiguous", 126, 0.0))
    assert (rows["length_b"] == 0).all() and (rows["length_a"] <= 126).all() and not rows["flags"].any()
    assert rows["length_a"].sum() > 0.9 * sum(map(sum, documents))
