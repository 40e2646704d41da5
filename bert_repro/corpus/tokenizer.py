"""Trains WordPiece vocabularies. The `tokenizers` library does the work; `models/loading.py` loads and saves them.

From text to tokens, as in BERT: control characters are removed, CJK characters get spaces around them, the text is
lowercased and loses its accents (uncased models only) and is split at whitespace and punctuation. Each word then
becomes the longest matching pieces from left to right; pieces inside a word begin with `##`.

The text is counted in parts, in several processes; the sum of the counts, and therefore the vocabulary, does not depend
on their number.
"""

import json
import logging
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bert_repro.configs import TokenizerConfig
from bert_repro.corpus.cleaning import passages
from bert_repro.corpus.documents import Document, Source, find_sources
from bert_repro.corpus.plan import Part, prepare_plan, read_all, read_part
from bert_repro.corpus.sentences import SAMPLE_EVERY
from bert_repro.errors import UserError, flag
from bert_repro.models.loading import (
    MAX_INPUT_CHARS_PER_WORD,
    SPECIAL_TOKENS,
    build_tokenizer,
    load_tokenizer,
    save_tokenizer,
)
from bert_repro.utils.claims import exclusive_claim
from bert_repro.utils.files import scratch_path, write_json
from bert_repro.utils.parts import Engine, make_parts
from bert_repro.utils.readers import read_json_object
from bert_repro.utils.tokenizer_losses import TokenizerLosses, count_marks

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

logger = logging.getLogger("bert_repro")

LIMIT_ALPHABET = 1000
MIN_FREQUENCY = 2
"""How often a pair of pieces must occur to be merged into a longer piece."""
WORDS_TO_CHECK = 200_000
"""The commonest words, which are tokenized to see how many become [UNK]."""
_REPEATS_PER_TEXT = 1000


@dataclass(frozen=True)
class Normalization:
    """How text is changed before it is split into words. The arguments are those of `train_wordpiece`."""

    lowercase: bool = True
    strip_accents: bool | None = None
    handle_chinese_chars: bool = True


def train_tokenizer(config: TokenizerConfig, texts: Sequence[str] | None = None) -> "PreTrainedTokenizerFast":
    """Trains a WordPiece vocabulary on the text of a corpus and saves the tokenizer in `config.output_dir`.

    Args:
        config: all settings.
        texts: documents in memory, instead of `input_files`.

    Raises:
        UserError: bad input, or no text.
    """
    # Extending a vocabulary and limiting the words read the input once; otherwise it is counted in parts.
    sources = find_sources(config, texts)
    normalization = Normalization(config.lowercase, config.strip_accents, config.handle_chinese_chars)
    if config.extend:
        tokenizer = extend_vocabulary(load_tokenizer(config.extend), _texts(config, sources), config.new_tokens)
    else:
        if config.max_words is None:
            counted = _count_words_in_parts(config, sources, normalization)
        else:
            # Only the beginning of the input is read, so it is not worth a plan.
            counted = _count_sampled(_texts(config, sources), normalization)
        tokenizer = train_on_words(counted.words, normalization, config.vocab_size, config.limit_alphabet)
        _report_losses(tokenizer, counted, config)
    save_tokenizer(tokenizer, Path(config.output_dir))
    tokenizer.name_or_path = config.output_dir
    logger.info("Tokenizer with %d entries saved in %s.", len(tokenizer), config.output_dir)
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
        texts: read once. Memory grows only with the number of different words.
        vocab_size: entries, special tokens included. If the texts are too short for so many, the vocabulary is smaller
            and a warning is shown.
        lowercase: train an uncased vocabulary.
        strip_accents: None follows `lowercase`, as BERT does.
        handle_chinese_chars: make each CJK character a word of its own.
        limit_alphabet: how many of the most frequent characters get entries. Words with other characters lose these in
            training and become `[UNK]` in use. Raise it for languages with many characters.

    Raises:
        UserError: no words in the texts, or a vocabulary too small for the characters.

    Source: paper 3 (WordPiece, about 30,000 tokens); its trainer was never published, this one is the library's.
    """
    normalization = Normalization(lowercase, strip_accents, handle_chinese_chars)
    return train_on_words(count_words(texts, normalization), normalization, vocab_size, limit_alphabet)


# --- Counting words ---------------------------------------------------------------------------------------------------


def count_words(
    texts: Iterable[str], normalization: Normalization, losses: TokenizerLosses | None = None
) -> Counter[str]:
    """Returns how often each word occurs in texts, after normalization.

    Args:
        texts: read once.
        normalization: how text is changed before it is split.
        losses: words that are too long for a tokenizer are added to it; they become [UNK] in use.
    """
    from tokenizers import normalizers, pre_tokenizers

    normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=normalization.handle_chinese_chars,
        strip_accents=normalization.strip_accents,
        lowercase=normalization.lowercase,
    )
    # Count what is between spaces first; most of it occurs many times.
    chunks: Counter[str] = Counter()
    for text in texts:
        chunks.update(normalizer.normalize_str(text).split())

    # Splitting at punctuation is slow, so each different chunk is split once.
    splitter = pre_tokenizers.BertPreTokenizer()
    words: Counter[str] = Counter()
    for chunk, count in chunks.items():
        for word, _ in splitter.pre_tokenize_str(chunk):
            if len(word) <= MAX_INPUT_CHARS_PER_WORD:
                words[word] += count
            elif losses is not None:
                losses += TokenizerLosses(tokens=count, unknown_tokens=count)
    return words


@dataclass
class _CountedText:
    """The words of a text, and what normalization removes from a sample of it."""

    words: Counter[str]
    losses: TokenizerLosses


def _count_sampled(texts: Iterable[str], normalization: Normalization) -> _CountedText:
    """Counts words, and letters with accents or vowel signs in every tenth text."""
    removes_marks = normalization.lowercase if normalization.strip_accents is None else normalization.strip_accents
    losses = TokenizerLosses()

    def sampled() -> Iterator[str]:
        nonlocal losses
        for number, text in enumerate(texts):
            if number % SAMPLE_EVERY == 0:
                losses += count_marks(text, removes_marks)
            yield text

    words = count_words(sampled(), normalization, losses)
    return _CountedText(words, losses)


def _count_words_in_parts(
    config: TokenizerConfig, sources: Sequence[Source], normalization: Normalization
) -> _CountedText:
    """Counts the words of all sources in parts. Their counts are in `<output_dir>.counting` until they are summed."""
    work_folder = scratch_path(Path(config.output_dir), "counting")
    with exclusive_claim(scratch_path(Path(config.output_dir), "claim"), config.output_dir, setting="output_dir"):
        shutil.rmtree(work_folder, ignore_errors=True)
        work_folder.mkdir(parents=True)
        try:
            engine = Engine(config.engine, config.num_proc, config.ray_address)
            plan = prepare_plan(config, sources, work_folder, engine)
            counter = _PartCounter(
                work_folder.absolute(), plan.passes, tuple(sources), normalization, config.text_passages_only
            )
            make_parts(
                plan.parts,
                counter,
                is_done=lambda part: _counts_path(work_folder, part).is_file(),
                engine=engine,
                weights=[part.characters for part in plan.parts],
                label="counting words",
            )
            # In the order of the parts, so that the result does not depend on which one was finished first.
            words: Counter[str] = Counter()
            losses = TokenizerLosses()
            for part in plan.parts:
                content = read_json_object(_counts_path(work_folder, part))
                words.update(content["words"])
                losses += TokenizerLosses(**content["losses"])
            return _CountedText(words, losses)
        finally:
            # The vocabulary is what remains of the counts.
            shutil.rmtree(work_folder, ignore_errors=True)


def _counts_path(folder: Path, part: Part) -> Path:
    return folder / f"words-{part.number:05d}.json"


@dataclass(frozen=True)
class _PartCounter:
    """Counts the words of a part and writes them. It is sent to worker processes, so its folder is absolute."""

    folder: Path
    passes: tuple[float, ...]
    sources: tuple[Source, ...]
    normalization: Normalization
    text_passages_only: bool

    def __call__(self, part: Part) -> None:
        documents = read_part(part, self.passes, self.sources, self.folder)
        counted = _count_sampled(_texts_of(documents, self.text_passages_only), self.normalization)
        content = {"words": counted.words, "losses": asdict(counted.losses)}
        write_json(_counts_path(self.folder, part), content)


def _texts(config: TokenizerConfig, sources: Sequence[Source]) -> Iterator[str]:
    """Yields the text of all sources, up to `max_words`."""
    num_words = 0
    for text in _texts_of(read_all(config, sources), config.text_passages_only):
        yield text
        num_words += len(text.split())
        if config.max_words is not None and num_words >= config.max_words:
            return


def _texts_of(documents: Iterable[Document], text_passages_only: bool) -> Iterator[str]:
    for document in documents:
        if text_passages_only:
            yield from passages(document.text, document.title)
        else:
            yield document.text


# --- Training ---------------------------------------------------------------------------------------------------------


def train_on_words(
    words: Counter[str], normalization: Normalization, vocab_size: int, limit_alphabet: int
) -> "PreTrainedTokenizerFast":
    """Trains a WordPiece vocabulary on counted words; see `train_wordpiece`.

    Args:
        words: how often each word occurs, from `count_words`.
        normalization: the one that the words were counted with.
        vocab_size: entries, special tokens included.
        limit_alphabet: how many characters get entries.

    Raises:
        UserError: there are no words, or the vocabulary is too small for the characters.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    too_short = f"too short for running text ({flag('text_passages_only', False)} keeps all lines)"
    if not words:
        raise UserError(f"There are no words to train a vocabulary on: the texts are empty or {too_short}.")
    # Special tokens and characters always have entries; the rest of the vocabulary is learned.
    alphabet, inner_pieces = _alphabet(words, limit_alphabet)
    fixed_entries = [*SPECIAL_TOKENS, *alphabet, *inner_pieces]
    if vocab_size < len(fixed_entries):
        raise UserError(
            f"{flag('vocab_size', vocab_size)} is too small: the special tokens and {len(alphabet)} characters take "
            f"{len(fixed_entries)} entries. Raise {flag('vocab_size')} or lower {flag('limit_alphabet')}.",
            setting="vocab_size",
        )

    # The trainer would number inner characters in the order of a hash map that differs in each process, and later ties
    # follow those numbers. As special tokens they get the numbers that we give them.
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=MIN_FREQUENCY,
        show_progress=False,
        special_tokens=fixed_entries,
        limit_alphabet=len(alphabet),
        initial_alphabet=alphabet,
    )
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.train_from_iterator(_repeated(words), trainer)
    vocab = backend.get_vocab()
    if len(vocab) < vocab_size:
        logger.warning(
            "The texts gave a vocabulary of %d entries, not %d. There are few of them, or they are %s.",
            len(vocab),
            vocab_size,
            too_short,
        )
    return build_tokenizer(
        vocab,
        normalization.lowercase,
        strip_accents=normalization.strip_accents,
        handle_chinese_chars=normalization.handle_chinese_chars,
    )


def _repeated(words: Counter[str]) -> Iterator[str]:
    """Yields texts that contain each word as often as it was counted, because the trainer does not accept counts."""
    for word, count in words.items():
        for start in range(0, count, _REPEATS_PER_TEXT):
            yield " ".join([word] * min(_REPEATS_PER_TEXT, count - start))


def _alphabet(words: Counter[str], limit: int) -> tuple[list[str], list[str]]:
    """Returns the most frequent characters, and those of them that occur inside words as `##` pieces; both sorted."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    # Ties are broken by the character itself, so that the result is the same in every process.
    by_frequency = sorted(counts, key=lambda character: (-counts[character], character))
    alphabet = set(by_frequency[:limit])

    inner: set[str] = set()
    for word in words:
        # The trainer skips characters outside the alphabet, so the first of the others begins the word.
        characters = [character for character in word if character in alphabet]
        inner.update(characters[1:])
    return sorted(alphabet), [f"##{character}" for character in sorted(inner)]


def _report_losses(tokenizer: "PreTrainedTokenizerFast", counted: _CountedText, config: TokenizerConfig) -> None:
    """Warns if many words become [UNK], or if many letters lose their accents or vowel signs."""
    # Tokenize each word once and count it as often as it occurs.
    words = [word for word, _ in counted.words.most_common(WORDS_TO_CHECK)]
    characters: set[str] = set()
    unknown_id = tokenizer.unk_token_id
    losses = counted.losses
    num_long_words = losses.unknown_tokens
    encodings = tokenizer.backend_tokenizer.encode_batch_fast(words, add_special_tokens=False)
    for word, encoding in zip(words, encodings, strict=True):
        characters.update(word)
        losses.tokens += counted.words[word] * len(encoding.ids)
        losses.unknown_tokens += counted.words[word] * encoding.ids.count(unknown_id)
    # Rare characters and long words both become [UNK], but need different remedies.
    unknown_remedy = (
        f"The text has {len(characters)} different characters, and {flag('limit_alphabet')} is "
        f"{config.limit_alphabet}. Raise it, and {flag('vocab_size')} if necessary."
    )
    if 2 * num_long_words > losses.unknown_tokens:
        unknown_remedy = (
            f"Most of them are words of more than {MAX_INPUT_CHARS_PER_WORD} characters. In a script without spaces, "
            "separate the words with spaces first."
        )
    messages = losses.messages(
        unknown_remedy=unknown_remedy,
        marks_remedy=f"To keep them, add {flag('strip_accents', False)}, or {flag('lowercase', False)} for a cased "
        "vocabulary.",
    )
    for message in messages:
        logger.warning(message)


# --- Extending --------------------------------------------------------------------------------------------------------


def extend_vocabulary(
    tokenizer: "PreTrainedTokenizerFast", texts: Iterable[str], new_tokens: int
) -> "PreTrainedTokenizerFast":
    """Appends the words of a text that would save most pieces to a WordPiece vocabulary.

    They become entries of the vocabulary itself. Tokens of `add_tokens` would match inside other words, and a vocab.txt
    would give them other ids.

    Args:
        tokenizer: of a checkpoint; it is changed.
        texts: read once.
        new_tokens: how many words to append at most.

    Raises:
        UserError: no word of the texts has more than one piece.
    """
    from tokenizers import models

    backend = tokenizer.backend_tokenizer
    words: Counter[str] = Counter()
    for text in texts:
        normalized = backend.normalizer.normalize_str(text)
        words.update(word for word, _ in backend.pre_tokenizer.pre_tokenize_str(normalized))

    saved_pieces = _saved_pieces(tokenizer, words)
    if not saved_pieces:
        raise UserError(
            "There is nothing to append to the vocabulary: no word that occurs twice in the texts has more than one "
            "piece."
        )
    # The words that save most come first; ties are broken by the word itself.
    new_words = sorted(saved_pieces, key=lambda word: (-saved_pieces[word], word))[:new_tokens]

    # The model of a tokenizer cannot be changed, so a new one gets the longer vocabulary.
    state = json.loads(backend.to_str())["model"]
    vocab = dict(state["vocab"])
    for word in new_words:
        vocab[word] = len(vocab)
    backend.model = models.WordPiece(
        vocab, unk_token=state["unk_token"], max_input_chars_per_word=state["max_input_chars_per_word"]
    )
    saved = sum(saved_pieces[word] for word in new_words)
    logger.info(
        "%d words appended. They save %.0f%% of the pieces beyond one per word.",
        len(new_words),
        100 * saved / sum(saved_pieces.values()),
    )
    return tokenizer


def _saved_pieces(tokenizer: "PreTrainedTokenizerFast", words: Counter[str]) -> dict[str, int]:
    """Returns for each repeated word of several pieces how many pieces an entry of its own would save."""
    saved = {}
    for word, count in words.items():
        # A word that occurs once is more likely to be a misspelling than a term.
        if count < 2:
            continue
        pieces = tokenizer.tokenize(word)
        if len(pieces) > 1 and tokenizer.unk_token not in pieces:
            saved[word] = count * (len(pieces) - 1)
    return saved
