"""Trains, loads and compares WordPiece tokenizers. The `tokenizers` library does the work.

Text -> tokens, as in BERT: control characters removed, spaces around CJK characters, lowercased and accents stripped
(uncased only), split at whitespace and punctuation, then the greedy longest match, inner pieces marked `##`.
"""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_repro.configs import TokenizerConfig
from bert_repro.corpus.cleaning import passages
from bert_repro.corpus.documents import find_sources, read_all
from bert_repro.errors import UserError
from bert_repro.utils import process
from bert_repro.utils.files import atomic_files, write_json, write_text
from bert_repro.utils.readers import read_json_object, shown

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

logger = logging.getLogger("bert_repro")

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_INPUT_CHARS_PER_WORD = 100
LIMIT_ALPHABET = 1000
MODEL_MAX_LENGTH = 512
_REPEATS_PER_TEXT = 1000


def train_tokenizer(config: TokenizerConfig) -> "PreTrainedTokenizerFast":
    """Trains a WordPiece vocabulary on the text of a corpus and saves the tokenizer in `config.output_dir`.

        import bert_repro

        bert_repro.train_tokenizer(
            bert_repro.TokenizerConfig(input_files=("texts.txt",), vocab_size=200, output_dir="runs/tokenizer")
        )

    Raises:
        UserError: bad input, no text, or an output folder that is not empty.
    """
    output_dir = Path(config.output_dir)
    if not process.is_free_folder(output_dir) and not config.overwrite_output_dir:
        raise UserError(f"--output_dir {output_dir} is not empty; choose another or give --overwrite_output_dir")
    tokenizer = train_wordpiece(
        _texts(config),
        vocab_size=config.vocab_size,
        lowercase=config.lowercase,
        strip_accents=config.strip_accents,
        handle_chinese_chars=config.handle_chinese_chars,
        min_frequency=config.min_frequency,
        limit_alphabet=config.limit_alphabet,
        max_input_chars_per_word=config.max_input_chars_per_word,
    )
    save_tokenizer(tokenizer, output_dir)
    logger.info("Tokenizer with %d entries saved in %s.", len(tokenizer), output_dir)
    return tokenizer


def train_wordpiece(
    texts: Iterable[str],
    *,
    vocab_size: int = 30522,
    lowercase: bool = True,
    strip_accents: bool | None = None,
    handle_chinese_chars: bool = True,
    min_frequency: int = 2,
    limit_alphabet: int = LIMIT_ALPHABET,
    max_input_chars_per_word: int = MAX_INPUT_CHARS_PER_WORD,
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
        min_frequency: how often a pair of pieces must occur to be merged.
        limit_alphabet: the most frequent characters that get entries; words with others lose those characters in
            training and become `[UNK]` in use. Raise it for languages with many characters.
        max_input_chars_per_word: longer words become `[UNK]` and are left out of training.

    Raises:
        UserError: no words in the texts, or a vocabulary too small for the characters.

    Source: paper 3 (WordPiece, about 30,000 tokens); its trainer was never published, this one is the library's.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    words = _count_words(texts, lowercase, strip_accents, handle_chinese_chars, max_input_chars_per_word)
    if not words:
        raise UserError("no words to train a vocabulary on: the texts are empty")
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
        min_frequency=min_frequency,
        show_progress=False,
        special_tokens=fixed,
        limit_alphabet=len(alphabet),
        initial_alphabet=alphabet,
    )
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.train_from_iterator(_repeated(words), trainer)
    vocab = backend.get_vocab()
    if len(vocab) < vocab_size:
        logger.warning("The texts gave %d vocabulary entries, not the %d asked for.", len(vocab), vocab_size)
    return _build(vocab, lowercase, strip_accents, handle_chinese_chars, max_input_chars_per_word)


def load_tokenizer(
    path_or_id: str | Path, *, lowercase: bool | None = None, max_input_chars_per_word: int | None = None
) -> "PreTrainedTokenizerFast":
    """Loads a saved tokenizer, a plain `vocab.txt` (as the original implementation has it), or a tokenizer of the Hub.

    Args:
        path_or_id: a folder, a vocabulary file with one entry per line, or the id of a model on the Hub.
        lowercase: for a plain vocabulary, which says nothing itself: None takes it as cased when any entry has an
            upper-case letter, else as uncased. For a saved tokenizer it must be None or agree.
        max_input_chars_per_word: None keeps what is saved, 100 for a plain vocabulary (the original
            implementation at first, and transformers; the original has 200 since 2018-11-23).

    Raises:
        UserError: nothing is there, or it is not a BERT vocabulary.
    """
    vocab_file = _plain_vocabulary(Path(path_or_id))
    if vocab_file is not None:
        vocab = _read_vocabulary(vocab_file)
        if lowercase is None:
            lowercase = not any(token != token.lower() for token in vocab if not token.startswith("["))
        return _build(vocab, lowercase, None, True, max_input_chars_per_word or MAX_INPUT_CHARS_PER_WORD)
    tokenizer = _load_saved(str(path_or_id))
    normalizer = json.loads(tokenizer.backend_tokenizer.to_str()).get("normalizer") or {}
    if lowercase is not None and normalizer.get("lowercase") not in (None, lowercase):
        raise UserError(
            f"tokenizer {path_or_id} has lowercase={normalizer['lowercase']}, not {lowercase}; leave lowercase out"
        )
    if max_input_chars_per_word is not None:
        tokenizer = _with_max_input_chars(tokenizer, max_input_chars_per_word)
    return tokenizer


def save_tokenizer(tokenizer: "PreTrainedTokenizerBase", folder: Path) -> None:
    """Saves a tokenizer with tokenizer.json, and with vocab.txt for `BertTokenizer` of transformers before 5.

    Args:
        tokenizer: a WordPiece tokenizer.
        folder: made if need be.

    Raises:
        UserError: the disk is full or not writable.
    """
    words = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    with atomic_files(folder) as unfinished:
        tokenizer.save_pretrained(unfinished)
        _make_portable(unfinished / "tokenizer_config.json")
        if [index for _, index in words] == list(range(len(words))):  # the line is the id
            write_text(unfinished / "vocab.txt", "".join(f"{word}\n" for word, _ in words))


def _make_portable(path: Path) -> None:
    """Leaves nothing in tokenizer_config.json that only this machine or only transformers 5 understands.

    transformers writes down whether it found the tokenizer in a folder. It reads further special tokens under two
    names: from 4.46 on, transformers 4 fails at a list under the new one ("'list' object has no attribute 'keys'"), and
    older ones do not see it.
    """
    config = read_json_object(path)
    for name in ("is_local", "local_files_only"):
        config.pop(name, None)
    if isinstance(config.get("extra_special_tokens"), list):
        config["additional_special_tokens"] = config.pop("extra_special_tokens")
    write_json(path, config, ensure_ascii=False)


def longest_input(tokenizer: "PreTrainedTokenizerBase", positions: int) -> int:
    """Returns how many tokens a model reads at once: what its tokenizer truncates at, within its positions.

    Args:
        tokenizer: the model's; its `model_max_length` is the longest sequence that the model was trained with.
        positions: number of the model's position embeddings.
    """
    return int(min(tokenizer.model_max_length, positions))


def check_tokenizer_files(folder: Path) -> None:
    """Checks the files of a saved tokenizer that are in a folder, before a library that says less reads them.

    Raises:
        UserError: one is damaged.
    """
    from tokenizers import Tokenizer

    fix = "get the tokenizer's files again"
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        if (folder / name).is_file():
            content = read_json_object(folder / name, damaged=fix)
            if name == "tokenizer.json":
                _check_ids(folder / name, content.get("model"), fix)
            length = content.get("model_max_length")
            if length is not None and (type(length) not in (int, float) or not length >= 1):
                raise UserError(f"{folder / name}: model_max_length is {shown(length)}, not a number of tokens; {fix}")
    if (folder / "tokenizer.json").is_file():
        try:
            Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises nothing more exact
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"{folder / 'tokenizer.json'}: is damaged ({reason}); {fix}") from error


def _check_ids(path: Path, model: Any, fix: str) -> None:
    """Refuses ids with gaps, for which libraries would make room, and a vocabulary without its unknown token."""
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocab, dict):
        return  # another kind of model, which is refused by its name
    if not all(type(index) is int for index in vocab.values()) or sorted(vocab.values()) != list(range(len(vocab))):
        raise UserError(f"{path}: the ids of its {len(vocab)} entries are not 0 to {len(vocab) - 1}; {fix}")
    if not isinstance(model.get("unk_token"), str) or model["unk_token"] not in vocab:
        raise UserError(f"{path}: the unknown token {shown(model.get('unk_token'))} is not among its entries; {fix}")


def tokenizer_fingerprint(tokenizer: "PreTrainedTokenizerFast") -> str:
    """Returns the SHA-256 (hex) of all that decides tokens and ids: normalization, splitting, model, special tokens.

    Truncation, padding and the template around a sequence do not count.
    """
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    parts = {name: state[name] for name in ("normalizer", "pre_tokenizer", "model", "added_tokens")}
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    text = json.dumps([parts, special], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _texts(config: TokenizerConfig) -> Iterator[str]:
    words = 0
    for document in read_all(config, find_sources(config.input_files)):
        texts = passages(document.text, document.title) if config.text_passages_only else [document.text]
        for text in texts:
            yield text
            words += len(text.split())
            if config.max_words is not None and words >= config.max_words:
                return


def _count_words(
    texts: Iterable[str], lowercase: bool, strip_accents: bool | None, handle_chinese_chars: bool, max_chars: int
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
            if len(word) <= max_chars:
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


def _repeated(words: Counter[str]) -> Iterator[str]:
    """Yields each word as often as it was counted, because the trainer takes no counts."""
    for word, count in words.items():
        for start in range(0, count, _REPEATS_PER_TEXT):
            yield " ".join([word] * min(_REPEATS_PER_TEXT, count - start))


def _build(
    vocab: dict[str, int], lowercase: bool, strip_accents: bool | None, handle_chinese_chars: bool, max_chars: int
) -> "PreTrainedTokenizerFast":
    from transformers import BertTokenizer

    tokenizer = BertTokenizer(
        vocab=vocab,
        do_lower_case=lowercase,
        strip_accents=strip_accents,
        tokenize_chinese_chars=handle_chinese_chars,
        model_max_length=MODEL_MAX_LENGTH,
    )
    return _with_max_input_chars(tokenizer, max_chars)


def _with_max_input_chars(tokenizer: "PreTrainedTokenizerFast", max_chars: int) -> "PreTrainedTokenizerFast":
    """Sets the longest word. `BertTokenizer` forgets any limit but 100 when it is loaded again (tried, transformers
    5.23), so other limits go into the general class, which keeps its `tokenizer.json` to the letter."""
    from tokenizers import models
    from transformers import PreTrainedTokenizerFast

    backend = tokenizer.backend_tokenizer
    model = json.loads(backend.to_str())["model"]
    if model["max_input_chars_per_word"] == max_chars:
        return tokenizer
    backend.model = models.WordPiece(model["vocab"], unk_token=model["unk_token"], max_input_chars_per_word=max_chars)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=tokenizer.model_max_length,
        model_input_names=tokenizer.model_input_names,
        **{name: str(token) for name, token in tokenizer.special_tokens_map.items()},
    )


def _plain_vocabulary(path: Path) -> Path | None:
    if path.is_file():
        return path
    saved = any((path / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json"))
    return path / "vocab.txt" if not saved and (path / "vocab.txt").is_file() else None


def _read_vocabulary(path: Path) -> dict[str, int]:
    try:
        tokens = path.read_bytes().decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: byte {error.start + 1} is not UTF-8; expected one vocabulary entry per line"
        ) from error
    vocab: dict[str, int] = {}
    for line, token in enumerate((token.rstrip("\r") for token in tokens), start=1):
        if token in vocab:
            raise UserError(f"{path}, line {line}: {shown(token)} is already on line {vocab[token] + 1}; remove one")
        vocab[token] = line - 1
    missing = [token for token in SPECIAL_TOKENS if token not in vocab]
    if missing:
        raise UserError(f"{path}: no entry {', '.join(missing)}; this is not a BERT vocabulary with one entry per line")
    return vocab


def _load_saved(path_or_id: str) -> "PreTrainedTokenizerFast":
    from transformers import AutoTokenizer

    from bert_repro.models.configuration_bert_repro import BertReproConfig

    if Path(path_or_id).is_dir() and not _plain_or_saved(Path(path_or_id)):
        raise UserError(f"folder {path_or_id} holds no tokenizer; expected tokenizer.json or vocab.txt")
    check_tokenizer_files(Path(path_or_id))
    try:
        # With a configuration given, config.json, which may be anything, plays no part here.
        tokenizer = AutoTokenizer.from_pretrained(path_or_id, config=BertReproConfig(), trust_remote_code=False)
    except Exception as error:  # of a damaged file the tokenizers library raises nothing more exact
        reason = " ".join(str(error).split()) or type(error).__name__
        if Path(path_or_id).is_dir():
            raise UserError(f"tokenizer {path_or_id!r} cannot be read ({reason}); get its files again") from error
        raise UserError(
            f"tokenizer {path_or_id!r} is neither a local folder or file nor on the Hub: {reason}"
        ) from error
    special = set(tokenizer.all_special_tokens)
    if set(tokenizer.get_vocab()) <= special:  # made up by transformers where it finds no file
        raise UserError(
            f"tokenizer {path_or_id!r} is neither a local folder or file nor on the Hub: no vocabulary was found"
        )
    missing = [name for name in ("pad", "unk", "cls", "sep", "mask") if getattr(tokenizer, f"{name}_token") is None]
    if missing or not getattr(tokenizer, "is_fast", False):
        lack = f"no {missing[0]} token" if missing else "no fast implementation"
        raise UserError(f"tokenizer {path_or_id} has {lack}; expected a WordPiece tokenizer of BERT")
    if json.loads(tokenizer.backend_tokenizer.to_str())["model"]["type"] != "WordPiece":
        raise UserError(f"tokenizer {path_or_id} is not a WordPiece tokenizer; expected one of BERT")
    ids = sorted(tokenizer.get_vocab().values())
    if ids != list(range(len(ids))):  # a model has as many embeddings as there are ids
        raise UserError(f"tokenizer {path_or_id} has {len(ids)} ids up to {ids[-1]}, with gaps; get its files again")
    return tokenizer  # type: ignore[no-any-return]


def _plain_or_saved(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"))
