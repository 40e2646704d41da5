"""Text to measure on: a made-up corpus whose documents and sentences have natural lengths.

The lengths follow log-normal distributions fitted to English Wikipedia (2015 extract) and novels
as `recipes/prepare_corpus.py` leaves them (29,361 documents, 127.6 M tokens); its tokens follow Zipf's law (the
piece of rank r is drawn in proportion to 1 / r), so that there is something to learn.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from bert_repro.utils.randomness import draw, fraction

VOCABULARY = 30_522
SENTENCE_LOG_MEAN, SENTENCE_LOG_DEVIATION = 3.32, 0.66  # tokens of a sentence
DOCUMENT_LOG_MEAN, DOCUMENT_LOG_DEVIATION = 3.85, 1.58  # sentences of a document
_ORDINARY = 999  # first id behind the special and unused ones


@dataclass(frozen=True)
class MadeUpCorpus:
    """Documents of natural lengths in memory; has what `ExampleStream` asks of a corpus.

    Args:
        document_starts: int64 [D+1], in tokens.
        sentence_starts: int64 [N+1], in tokens.
        document_sentences: int64 [D+1], in sentences.
        tokens: int32 [T].
    """

    document_starts: npt.NDArray[np.int64]
    sentence_starts: npt.NDArray[np.int64]
    document_sentences: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int32]
    content_digest: None = None  # made in memory, so nothing can have changed

    def gather(self, starts: npt.ArrayLike, lengths: npt.ArrayLike) -> npt.NDArray[np.int32]:
        """Slices of tokens, one behind the other."""
        ends = np.asarray(starts) + np.asarray(lengths)
        pairs = zip(np.asarray(starts).tolist(), ends.tolist(), strict=True)
        return np.concatenate([self.tokens[start:end] for start, end in pairs])


@lru_cache(maxsize=2)
def made_up(documents: int, seed: int = 0) -> MadeUpCorpus:
    """A corpus of so many documents; the same for the same seed."""
    generator = np.random.default_rng(seed)
    sentences = _log_normal(generator, DOCUMENT_LOG_MEAN, DOCUMENT_LOG_DEVIATION, documents)
    document_sentences = np.concatenate([[0], np.cumsum(sentences)])
    lengths = _log_normal(generator, SENTENCE_LOG_MEAN, SENTENCE_LOG_DEVIATION, int(document_sentences[-1]))
    sentence_starts = np.concatenate([[0], np.cumsum(lengths)])
    draws = draw(seed, np.arange(sentence_starts[-1]))
    pieces = VOCABULARY - _ORDINARY
    tokens = (_ORDINARY - 1 + pieces ** fraction(draws)).astype(np.int32)
    return MadeUpCorpus(sentence_starts[document_sentences], sentence_starts, document_sentences, tokens)


def _log_normal(generator: np.random.Generator, mean: float, deviation: float, number: int) -> npt.NDArray[np.int64]:
    return np.maximum(1, generator.lognormal(mean, deviation, number)).astype(np.int64)


def made_up_tokenizer() -> Any:
    """A tokenizer with the original vocabulary's size and special ids, and made-up pieces."""
    from transformers import BertTokenizer

    special = {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]", 103: "[MASK]"}
    pieces = [special.get(number, f"[unused{number}]") for number in range(_ORDINARY)]
    pieces += [f"{'##' if number % 5 == 0 else ''}p{number}" for number in range(_ORDINARY, VOCABULARY)]
    return BertTokenizer(vocab={piece: number for number, piece in enumerate(pieces)})
