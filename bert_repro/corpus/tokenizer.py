"""Trains WordPiece tokenizers. The `tokenizers` library does the work; `models/loading` loads and saves them.

Text -> tokens, as in BERT: control characters removed, spaces around CJK characters, lowercased and accents stripped
(uncased only), split at whitespace and punctuation, then the greedy longest match, inner pieces marked `##`.
"""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bert_repro.configs import TokenizerConfig, require
from bert_repro.corpus.cleaning import passages
from bert_repro.corpus.documents import find_sources, read_all
from bert_repro.errors import UserError
from bert_repro.models.loading import (
    MAX_INPUT_CHARS_PER_WORD,
    SPECIAL_TOKENS,
    build_tokenizer,
    load_tokenizer,
    save_tokenizer,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

logger = logging.getLogger("bert_repro")

LIMIT_ALPHABET = 1000
MIN_FREQUENCY = 2  # of a pair of pieces that is merged
_REPEATS_PER_TEXT = 1000
_SHORT = "too short for running text (--text_passages_only false keeps all lines)"


def train_tokenizer(config: TokenizerConfig, texts: Sequence[str] | None = None) -> "PreTrainedTokenizerFast":
    """Trains a WordPiece vocabulary on the text of a corpus and saves the tokenizer in `config.output_dir`.

    Args:
        config: all settings.
        texts: documents in memory, in place of `input_files`.

    Raises:
        UserError: bad input, or no text.
    """
    if config.extend:
        tokenizer = extend_vocabulary(load_tokenizer(config.extend), _texts(config, texts), config.new_tokens)
    else:
        tokenizer = train_wordpiece(
            _texts(config, texts),
            vocab_size=config.vocab_size,
            lowercase=config.lowercase,
            strip_accents=config.strip_accents,
            handle_chinese_chars=config.handle_chinese_chars,
            limit_alphabet=config.limit_alphabet,
        )
    save_tokenizer(tokenizer, Path(config.output_dir))
    tokenizer.name_or_path = config.output_dir
    logger.info("Tokenizer with %d entries saved in %s.", len(tokenizer), config.output_dir)
    return tokenizer


def extend_vocabulary(
    tokenizer: "PreTrainedTokenizerFast", texts: Iterable[str], new_tokens: int
) -> "PreTrainedTokenizerFast":
    """Appends words of a text to a WordPiece vocabulary: those of which it would save most pieces.

    They become entries of the vocabulary itself. Tokens of `add_tokens` would match inside other words, and vocab.txt
    would give them other ids.

    Args:
        tokenizer: of a checkpoint; it is changed.
        texts: read once.
        new_tokens: most words to append.

    Raises:
        UserError: no word of the texts has more than one piece.
    """
    from tokenizers import models

    backend = tokenizer.backend_tokenizer
    words: Counter[str] = Counter()
    for text in texts:
        words.update(word for word, _ in backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(text)))
    saved = {}
    for word, count in words.items():
        pieces = tokenizer.tokenize(word) if count > 1 else []
        if len(pieces) > 1 and tokenizer.unk_token not in pieces:
            saved[word] = count * (len(pieces) - 1)
    require(saved, "no word of the texts that comes twice has more than one piece: there is nothing to append")
    best = sorted(saved, key=lambda word: (-saved[word], word))[:new_tokens]
    state = json.loads(backend.to_str())["model"]
    vocab = {**state["vocab"], **{word: len(state["vocab"]) + number for number, word in enumerate(best)}}
    limit = state["max_input_chars_per_word"]
    backend.model = models.WordPiece(vocab, unk_token=state["unk_token"], max_input_chars_per_word=limit)
    before, after = sum(saved[word] for word in words if word in saved), sum(saved[word] for word in best)
    logger.info("%d words appended: they save %.0f%% of the pieces beyond one a word", len(best), 100 * after / before)
    return tokenizer


def train_wordpiece(
    texts: Iterable[str],
    *,
    vocab_size: int = 30522,
    lowercase: bool = True,
    strip_accents: bool | None = None,
    handle_chinese_chars: bool = True,
    limit_alphabet: int = LIMIT_ALPHABET,
) -> "PreTrainedTokenizerFast":
    """Trains a WordPiece vocabulary. The same texts and settings give the same vocabulary, ids included.

    Ids: the five special tokens from 0, the characters, the characters as inner pieces, then the learned pieces.

        import bert_repro

        tokenizer = bert_repro.train_wordpiece(["a first text", "a second text"], vocab_size=60)
        print(tokenizer.tokenize("a second text"))

    Args:
        texts: read once. Memory grows with the number of different words only.
        vocab_size: entries, special tokens included. Fewer come out, with a warning, when the texts have no more.
        lowercase: an uncased vocabulary.
        strip_accents: None follows `lowercase`, as BERT does.
        handle_chinese_chars: each CJK character a word of its own.
        limit_alphabet: the most frequent characters that get entries; words with others lose those characters in
            training and become `[UNK]` in use. Raise it for languages with many characters.

    Raises:
        UserError: no words in the texts, or a vocabulary too small for the characters.

    Source: paper 3 (WordPiece, about 30,000 tokens); its trainer was never published, this one is the library's.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    words = _count_words(texts, lowercase, strip_accents, handle_chinese_chars)
    require(words, f"no words to train a vocabulary on: the texts are empty or {_SHORT}")
    alphabet, inner = _alphabet(words, limit_alphabet)
    fixed = [*SPECIAL_TOKENS, *alphabet, *inner]
    if vocab_size < len(fixed):
        raise UserError(
            f"vocab_size={vocab_size} is too small: the special tokens and {len(alphabet)} characters take {len(fixed)}"
            " entries; raise vocab_size or lower limit_alphabet"
        )
    # Left to itself the trainer numbers inner characters in the order of a hash map that is salted in each process, and
    # later ties follow those numbers. Given as special tokens they are numbered by us.
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=MIN_FREQUENCY,
        show_progress=False,
        special_tokens=fixed,
        limit_alphabet=len(alphabet),
        initial_alphabet=alphabet,
    )
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # The trainer takes no counts: each word comes as often as it was counted.
    repeated = (
        " ".join([word] * min(_REPEATS_PER_TEXT, count - start))
        for word, count in words.items()
        for start in range(0, count, _REPEATS_PER_TEXT)
    )
    backend.train_from_iterator(repeated, trainer)
    vocab = backend.get_vocab()
    if len(vocab) < vocab_size:
        logger.warning("The texts gave %d entries, not %d; they are few, or %s", len(vocab), vocab_size, _SHORT)
    return build_tokenizer(vocab, lowercase, strip_accents=strip_accents, handle_chinese_chars=handle_chinese_chars)


def _texts(config: TokenizerConfig, texts: Sequence[str] | None) -> Iterator[str]:
    words = 0
    for document in read_all(config, find_sources(config, texts)):
        kept = passages(document.text, document.title) if config.text_passages_only else [document.text]
        for text in kept:
            yield text
            words += len(text.split())
            if config.max_words is not None and words >= config.max_words:
                return


def _count_words(
    texts: Iterable[str], lowercase: bool, strip_accents: bool | None, handle_chinese_chars: bool
) -> Counter[str]:
    from tokenizers import normalizers, pre_tokenizers

    normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=handle_chinese_chars, strip_accents=strip_accents, lowercase=lowercase
    )
    chunks: Counter[str] = Counter()
    for text in texts:
        chunks.update(normalizer.normalize_str(text).split())
    splitter = pre_tokenizers.BertPreTokenizer()
    words: Counter[str] = Counter()
    for chunk, count in chunks.items():
        for word, _ in splitter.pre_tokenize_str(chunk):
            if len(word) <= MAX_INPUT_CHARS_PER_WORD:  # longer ones become [UNK]
                words[word] += count
    return words


def _alphabet(words: Counter[str], limit: int) -> tuple[list[str], list[str]]:
    """Returns the most frequent characters, and those of them that occur inside words as `##` pieces; both sorted."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    alphabet = set(sorted(counts, key=lambda character: (-counts[character], character))[:limit])
    # The trainer skips characters outside the alphabet, so the first one kept opens the word.
    inner = {character for word in words for character in [c for c in word if c in alphabet][1:]}
    return sorted(alphabet), [f"##{character}" for character in sorted(inner)]
