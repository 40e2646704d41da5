"""A corpus in memory whose text says where it comes from."""

from dataclasses import dataclass

import numpy as np


@dataclass
class MemoryCorpus:
    """The token at index p of the complete corpus is 10 + p."""

    document_starts: np.ndarray
    sentence_starts: np.ndarray
    document_sentences: np.ndarray

    def gather(self, starts, lengths):
        return np.concatenate([np.arange(start, start + n) + 10 for start, n in zip(starts, lengths, strict=True)])


def corpus_of(documents: int, seed: int = 0) -> MemoryCorpus:
    rng = np.random.default_rng(seed)
    lengths = [rng.integers(1, 30, rng.integers(1, 25)) for _ in range(documents)]
    first = np.cumsum([0] + [len(sentences) for sentences in lengths])
    sentences = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    return MemoryCorpus(sentences[first], sentences, first)
