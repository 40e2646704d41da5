"""Pseudo-log-likelihoods of sentences: each token is masked, one at a time, and scored by a masked language model.

The sum over a sentence says how natural the model finds it, apart from its length (Salazar et al., 2020, "Masked
Language Model Scoring"). If only one piece of a word is masked, its other pieces give it away. So the default also
masks the pieces to its right (Kauf and Ivanova, 2023, "A Better Way to Do Masked Language Model Scoring";
`within_word_l2r`).

    n tokens of a sentence     L its tokens with [CLS] and [SEP], n + 2     P masked copies in a batch

Minimal pairs: how often the model prefers the acceptable sentence (BLiMP, Warstadt et al., 2020). Files are BLiMP's, or
have the same form: JSON lines (also .gz, .xz) or a table (CSV, TSV, Excel, Parquet) with `sentence_good` and
`sentence_bad`, and optionally `UID` (the paradigm), `linguistics_term` (the phenomenon) and `field`.
"""

import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from tqdm.auto import tqdm

from bert_repro.configs import SentenceScoringConfig
from bert_repro.errors import NonFiniteError, UserError, flag
from bert_repro.inference.loaded_model import LoadedModel, read_texts
from bert_repro.inference.record_files import write_records
from bert_repro.models.cpu_kernels import use_cpu_kernels
from bert_repro.models.loading import longest_input
from bert_repro.models.modeling_bert_repro import BertReproForMaskedLM
from bert_repro.tasks.data import TABLES, read_file
from bert_repro.tasks.encoding import special_ids, tokenized
from bert_repro.utils.files import RESULTS, atomic_path, write_json
from bert_repro.utils.readers import format_of, json_rows, numbered_lines
from bert_repro.utils.text_encodings import UTF_8

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger("bert_repro")

SCORES = "scores"
_FORMS_WITH_LISTS = ("jsonl", "parquet")
PAIR_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.xz", ".csv", ".tsv", ".xlsx", ".parquet")
_LEVELS = {"paradigm": "UID", "phenomenon": "linguistics_term", "field": "field"}
"""Level of the results -> field of a pair."""
_SENTENCES_AT_A_TIME = 2000


class SentenceScore(NamedTuple):
    """The score of one sentence.

    Args:
        tokens: its n tokens, without [CLS] and [SEP].
        log_probabilities: the natural logarithm of each token's probability.
    """

    tokens: list[str]
    log_probabilities: list[float]

    @property
    def total(self) -> float:
        """The pseudo-log-likelihood: the sum over the tokens."""
        return math.fsum(self.log_probabilities)


class _Tokens(NamedTuple):
    """A sentence after tokenizing.

    Args:
        ids: its n token ids, without special tokens.
        words: for each token the number of its word.
    """

    ids: list[int]
    words: list[int]


class _MaskedCopy(NamedTuple):
    """A sentence with one token to score.

    Args:
        sentence: index of the sentence.
        input_ids: int64 [L], with [MASK] in place.
        position: the position of the token to score.
        target: its id.
    """

    sentence: int
    input_ids: npt.NDArray[np.int64]
    position: int
    target: int


def score_sentences(
    model: BertReproForMaskedLM,
    tokenizer: "PreTrainedTokenizerBase",
    sentences: Sequence[str],
    names: Sequence[str],
    *,
    method: str = "within_word_l2r",
    batch_tokens: int = 8192,
    mixed_precision: str = "no",
) -> list[SentenceScore]:
    """Scores sentences with a masked language model.

    Args:
        model: in evaluation mode.
        tokenizer: its fast tokenizer.
        sentences: texts that are not empty.
        names: what messages call them.
        method: `within_word_l2r` masks a token and the later pieces of the same word (Kauf and Ivanova, 2023);
            `original` masks the token alone (Salazar et al., 2020).
        batch_tokens: largest number of tokens in a forward pass, unless a single sentence is longer.
        mixed_precision: `bf16` or `no`.

    Returns:
        One score for each sentence, in order.

    Raises:
        UserError: a sentence is empty or longer than the model's inputs.
        NonFiniteError: the model's output is not finite.
    """
    loaded = LoadedModel(model, tokenizer, mixed_precision)
    longest = longest_input(tokenizer, model.config.max_position_embeddings)
    encoded = _encode(tokenizer, sentences, names, longest)
    scores = [np.full(len(tokens.ids), np.nan) for tokens in encoded]
    copies = _masked_copies(encoded, tokenizer, masks_later_pieces=method == "within_word_l2r")
    for batch in _batches(copies, batch_tokens):
        for copy, value in zip(batch, _log_probabilities(loaded, batch), strict=True):
            # Position 0 is [CLS].
            scores[copy.sentence][copy.position - 1] = value
    return [
        SentenceScore(tokenizer.convert_ids_to_tokens(tokens.ids), values.tolist())
        for tokens, values in zip(encoded, scores, strict=True)
    ]


def _encode(
    tokenizer: "PreTrainedTokenizerBase", sentences: Sequence[str], names: Sequence[str], longest: int
) -> list[_Tokens]:
    """Tokenizes sentences and refuses those that are empty or longer than `longest` with [CLS] and [SEP]."""
    if not sentences:
        return []
    encoding = tokenized(tokenizer, sentences)
    encoded = []
    for number, ids in enumerate(encoding["input_ids"]):
        if not ids:
            raise UserError(f"{names[number]} is empty. Pass a text with at least one token.")
        if len(ids) + 2 > longest:
            raise UserError(
                f"{names[number]} has {len(ids)} tokens, but the model reads {longest - 2} besides [CLS] and [SEP]. "
                "Split the text."
            )
        encoded.append(_Tokens(ids, encoding.word_ids(number)))
    return encoded


def _masked_copies(
    encoded: Sequence[_Tokens], tokenizer: "PreTrainedTokenizerBase", *, masks_later_pieces: bool
) -> Iterator[_MaskedCopy]:
    """Yields a copy of its sentence for each token.

    The longest sentences come first. Sentences of one length follow each other, so that a packed batch is nearly a
    rectangle.

    Args:
        encoded: the sentences.
        tokenizer: its special tokens.
        masks_later_pieces: also mask the later pieces of the token's word.
    """
    cls, sep = special_ids(tokenizer)
    order = sorted(range(len(encoded)), key=lambda index: -len(encoded[index].ids))
    for sentence in order:
        ids, words_of_tokens = encoded[sentence]
        complete = np.array([cls, *ids, sep], dtype=np.int64)
        places = np.arange(len(ids))
        words = np.array(words_of_tokens)
        for place, target in enumerate(ids):
            is_masked = places == place
            if masks_later_pieces:
                is_masked = (words == words[place]) & (places >= place)
            input_ids = complete.copy()
            input_ids[1:-1][is_masked] = tokenizer.mask_token_id
            yield _MaskedCopy(sentence, input_ids, place + 1, target)


def _batches(copies: Iterator[_MaskedCopy], batch_tokens: int) -> Iterator[list[_MaskedCopy]]:
    """Yields batches of at most `batch_tokens` tokens. The first copy of a batch is its longest."""
    batch: list[_MaskedCopy] = []
    for copy in copies:
        if batch and (len(batch) + 1) * len(batch[0].input_ids) > batch_tokens:
            yield batch
            batch = []
        batch.append(copy)
    if batch:
        yield batch


@torch.no_grad()
def _log_probabilities(loaded: LoadedModel, batch: Sequence[_MaskedCopy]) -> list[float]:
    """Returns the log-probability of each copy's token, [P]."""
    inputs = loaded.packed([{"input_ids": copy.input_ids} for copy in batch])
    device = loaded.model.device
    # A copy begins at its offset in the packed batch. Only the scored positions are decoded.
    positions = torch.tensor([copy.position for copy in batch], device=device)
    flat_positions = inputs["cu_seq_lens_q"][:-1].long() + positions
    with loaded.autocast():
        logits = loaded.model(**inputs, prediction_positions=flat_positions).logits
    targets = torch.tensor([copy.target for copy in batch], device=device)
    values = logits.float().log_softmax(-1).gather(1, targets[:, None]).squeeze(1)
    if not values.isfinite().all():
        raise NonFiniteError("The model's output is not finite. Use another checkpoint.")
    return cast(list[float], values.tolist())


# --- The recipe -----------------------------------------------------------------------------------------------------


def run_sentence_scoring(config: SentenceScoringConfig) -> None:
    """Scores the texts of a file, or minimal pairs, and writes the scores to `output_dir`.

    Raises:
        UserError: the input or the model does not exist or cannot be read.
        NonFiniteError: the model's output is not finite.
    """
    # Find the pairs first, because loading the model takes seconds.
    pair_files = find_pair_files(config.minimal_pairs)
    loaded = LoadedModel.load(
        BertReproForMaskedLM,
        config.model_name_or_path,
        mixed_precision=config.mixed_precision,
        missing_remedy="Pass a masked language model, such as a pre-trained BERT.",
    )
    use_cpu_kernels(loaded.model)
    Path(config.output_dir).mkdir(parents=True, exist_ok=True)
    if config.minimal_pairs:
        _score_pairs(config, pair_files, loaded)
    else:
        _score_texts(config, Path(config.input_file or ""), loaded)


def _score(
    config: SentenceScoringConfig, loaded: LoadedModel, sentences: Sequence[str], names: Sequence[str]
) -> list[SentenceScore]:
    return score_sentences(
        loaded.model,
        loaded.tokenizer,
        sentences,
        names,
        method=config.method,
        batch_tokens=config.batch_tokens,
        mixed_precision=config.mixed_precision,
    )


def _score_texts(config: SentenceScoringConfig, path: Path, loaded: LoadedModel) -> None:
    """Writes the score of every text to scores.jsonl, or to a table."""
    suffix = f".{config.output_format}"
    target = Path(config.output_dir) / f"{SCORES}{suffix}"
    totals = _Totals()
    batches = _scored_texts(config, path, loaded, totals)
    first = next(batches, None)
    if first is None:
        raise UserError(
            f"{flag('input_file', path)} contains no texts. Use a file with at least one.", setting="input_file"
        )
    with atomic_path(target) as unfinished:
        write_records(chain([first], batches), unfinished, suffix)
    logger.info(
        "Wrote %s: %d sentences, %d tokens, %.4f nats per token.",
        target,
        totals.texts,
        totals.tokens,
        -totals.score / totals.tokens,
    )


@dataclass
class _Totals:
    """What was scored so far."""

    texts: int = 0
    tokens: int = 0
    score: float = 0.0


def _scored_texts(
    config: SentenceScoringConfig, path: Path, loaded: LoadedModel, totals: _Totals
) -> Iterator[list[dict[str, Any]]]:
    """Yields the records of the texts, some at a time, and adds them to the totals."""
    texts = enumerate(read_texts(path, config.text_column, config.encoding), start=1)
    with tqdm(unit="sentence") as bar:
        while chunk := list(islice(texts, _SENTENCES_AT_A_TIME)):
            sentences = [text for _, text in chunk]
            names = [f"{path}, text {number}" for number, _ in chunk]
            records = []
            for text, score in zip(sentences, _score(config, loaded, sentences, names), strict=True):
                records.append(_record(text, score, with_tokens=config.output_format in _FORMS_WITH_LISTS))
                totals.texts += 1
                totals.tokens += len(score.tokens)
                totals.score += score.total
            bar.update(len(chunk))
            yield records


def _record(text: str, score: SentenceScore, *, with_tokens: bool) -> dict[str, Any]:
    """Returns the record of a text: with all of its tokens, or with their number for a table of texts and numbers."""
    if not with_tokens:
        return {"text": text, "score": score.total, "tokens": len(score.tokens)}
    pairs = zip(score.tokens, score.log_probabilities, strict=True)
    tokens = [{"token": token, "log_probability": value} for token, value in pairs]
    return {"text": text, "score": score.total, "tokens": tokens}


# --- Minimal pairs ----------------------------------------------------------------------------------------------------


class MinimalPair(NamedTuple):
    """Two sentences that differ in one respect.

    Args:
        good: the acceptable sentence.
        bad: the other one.
        place: file and line, for messages.
        levels: its `paradigm`, `phenomenon` and `field`; None if the file does not say.
    """

    good: str
    bad: str
    place: str
    levels: dict[str, str | None]


def find_pair_files(names: Sequence[str]) -> list[Path]:
    """Resolves files and folders of minimal pairs. The files of a folder are sorted by name.

    Raises:
        UserError: a folder contains no such file.
    """
    files: list[Path] = []
    for name in names:
        path = Path(name)
        if not path.is_dir():
            files.append(path)
            continue
        files_in_folder = sorted(file for file in path.iterdir() if file.name.endswith(PAIR_SUFFIXES))
        if not files_in_folder:
            raise UserError(
                f"{flag('minimal_pairs', name)} contains no file with the ending {', '.join(PAIR_SUFFIXES)}.",
                setting="minimal_pairs",
            )
        files += files_in_folder
    return files


def read_pairs(path: Path, encoding: str = UTF_8) -> list[MinimalPair]:
    """Reads the pairs of one file. Without `UID` the file's name is the paradigm.

    Args:
        path: JSON lines, or a table with the same columns.
        encoding: its encoding, if it is a file of text.

    Raises:
        UserError: the file is damaged, or a row lacks a sentence.
    """
    pairs = []
    for place, row in _rows_of_pairs(path, encoding):
        for name in ("sentence_good", "sentence_bad"):
            if not str(row.get(name) or "").strip():
                raise UserError(f"{place}: the field {name!r} has no text. Write a sentence.")
        levels = {level: row.get(name) for level, name in _LEVELS.items()}
        levels["paradigm"] = levels["paradigm"] or path.name.split(".")[0]
        pairs.append(MinimalPair(row["sentence_good"], row["sentence_bad"], place, levels))
    if not pairs:
        raise UserError(f"{path} contains no rows. Use a file with at least one.")
    return pairs


def _rows_of_pairs(path: Path, encoding: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the place of each row, for messages, and the row."""
    kind = format_of(path)
    if kind == "jsonl" or kind not in TABLES:
        for number, row in json_rows(numbered_lines(path, encoding), path):
            yield f"{path}, line {number}", row
        return
    for number, row in enumerate(read_file(path, encoding=encoding), start=1):
        yield f"{path}, row {number}", row


def _score_pairs(config: SentenceScoringConfig, files: Sequence[Path], loaded: LoadedModel) -> None:
    """Scores every pair and writes results.json."""
    began = time.perf_counter()
    # Read all files first, so that a bad row is refused before hours of scoring.
    pairs_of_files = [read_pairs(path, config.encoding) for path in files]
    margins: list[tuple[MinimalPair, float]] = []
    for pairs in tqdm(pairs_of_files, unit="file"):
        sentences: list[str] = []
        names: list[str] = []
        for pair in pairs:
            sentences += [pair.good, pair.bad]
            names += [pair.place, pair.place]
        totals = [score.total for score in _score(config, loaded, sentences, names)]
        for pair, good, bad in zip(pairs, totals[::2], totals[1::2], strict=True):
            margins.append((pair, good - bad))

    results = {
        "task": "minimal pairs",
        "settings": asdict(config),
        "rows_scored": len(margins),
        **accuracies(margins),
        "wall_time_seconds": round(time.perf_counter() - began, 1),
    }
    write_json(Path(config.output_dir) / RESULTS, results)
    for name, entry in [("all pairs", results["metrics"]), *results["phenomenon"].items()]:
        logger.info("accuracy %.4f: %s", entry["accuracy"], name)


def accuracies(margins: Sequence[tuple[MinimalPair, float]]) -> dict[str, Any]:
    """Computes the accuracy for each paradigm, phenomenon and field, and over all pairs.

    Args:
        margins: each pair with the score of its good sentence minus that of its bad one. Equal scores count as wrong.

    Returns:
        `metrics` (`accuracy` over pairs, `mean_paradigm_accuracy`, `ties`), and for each level (`paradigm`,
        `phenomenon`, `field`): name -> `accuracy` and `pairs`.
    """
    levels: dict[str, dict[str, dict[str, float]]] = {}
    for level in _LEVELS:
        outcomes: dict[str, list[bool]] = defaultdict(list)
        for pair, margin in margins:
            name = pair.levels[level]
            if name is not None:
                outcomes[name].append(margin > 0)
        levels[level] = {}
        for name, successes in sorted(outcomes.items()):
            levels[level][name] = {"accuracy": fmean(successes), "pairs": len(successes)}
    metrics = {
        "accuracy": fmean(margin > 0 for _, margin in margins),
        "mean_paradigm_accuracy": fmean(entry["accuracy"] for entry in levels["paradigm"].values()),
        "ties": sum(margin == 0 for _, margin in margins),
    }
    return {"metrics": metrics, **levels}
