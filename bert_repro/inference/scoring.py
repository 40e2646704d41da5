"""Pseudo-log-likelihoods of sentences: each token masked, one at a time, and scored by a masked language model.

The sum over a sentence says how natural it is to the model, up to its length (Salazar et al., 2020, "Masked Language
Model Scoring"). Masking only one piece of a word of several pieces lets the rest of the word give it away, so the
default masks the pieces to its right as well (Kauf and Ivanova, 2023, "A Better Way to Do Masked Language Model
Scoring"; `within_word_l2r`).

    n tokens of a sentence     L its tokens with [CLS] and [SEP], n + 2     P masked copies in a batch

Minimal pairs: how often the model prefers the acceptable sentence (BLiMP, Warstadt et al., 2020). Files are those of
BLiMP, or of the same form: JSON lines (also .gz, .xz) with `sentence_good` and `sentence_bad`, and where they are there
`UID` (the paradigm), `linguistics_term` (the phenomenon) and `field`.
"""

import json
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from tqdm.auto import tqdm

from bert_repro.configs import SentenceScoringConfig, require
from bert_repro.errors import NonFiniteError, UserError
from bert_repro.inference.features import read_texts
from bert_repro.models.cpu_kernels import use_cpu_kernels
from bert_repro.models.loading import load_pretrained, load_tokenizer, longest_input, require_vocabulary
from bert_repro.models.modeling_bert_repro import BertReproForMaskedLM
from bert_repro.tasks.base import special_ids, tokenized
from bert_repro.training.batches import collate_features, on_device
from bert_repro.utils.files import RESULTS, atomic_file, write_json
from bert_repro.utils.readers import json_rows, numbered_lines

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger("bert_repro")

SCORES_FILE = "scores.jsonl"
PAIR_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.xz")
_LEVELS = {"paradigm": "UID", "phenomenon": "linguistics_term", "field": "field"}
_SENTENCES_AT_A_TIME = 2000


class SentenceScore(NamedTuple):
    """The score of one sentence.

    Args:
        tokens: its n tokens, without [CLS] and [SEP].
        log_probabilities: natural logarithm of the probability of each.
    """

    tokens: list[str]
    log_probabilities: list[float]

    @property
    def total(self) -> float:
        """The pseudo-log-likelihood: the sum over the tokens."""
        return math.fsum(self.log_probabilities)


class _MaskedCopy(NamedTuple):
    """A sentence with one token to score.

    Args:
        sentence: index of the sentence.
        input_ids: int64 [L], with [MASK] in place.
        position: where the token to score is.
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
) -> list[SentenceScore]:
    """Scores sentences with a masked language model.

    Args:
        model: in evaluation mode.
        tokenizer: its fast tokenizer.
        sentences: texts that are not empty.
        names: what messages call them.
        method: `within_word_l2r` masks a token and the pieces of the same word after it (Kauf and Ivanova, 2023);
            `original` masks the token alone (Salazar et al., 2020).
        batch_tokens: most tokens of a forward pass, unless a single sentence is longer.

    Returns:
        One score for each sentence, in order.

    Raises:
        UserError: a sentence is empty or longer than the model reads, or the tokenizer has no [MASK].
        NonFiniteError: the model's output is not finite.
    """
    longest = longest_input(tokenizer, model.config.max_position_embeddings)
    encoded = _encode(tokenizer, sentences, names, longest)
    scores = [np.full(len(ids), np.nan) for ids, _ in encoded]
    # Sentences of one length follow each other, so that a batch is nearly without padding, and packed one product.
    order = sorted(range(len(encoded)), key=lambda index: -len(encoded[index][0]))
    copies = (
        copy
        for index in order
        for copy in _masked_copies(index, *encoded[index], tokenizer, method == "within_word_l2r")
    )
    for batch in _batches(copies, batch_tokens):
        for copy, value in zip(batch, _log_probabilities(model, batch, int(tokenizer.pad_token_id)), strict=True):
            scores[copy.sentence][copy.position - 1] = value
    return [
        SentenceScore(tokenizer.convert_ids_to_tokens(ids), values.tolist())
        for (ids, _), values in zip(encoded, scores, strict=True)
    ]


def _encode(
    tokenizer: "PreTrainedTokenizerBase", sentences: Sequence[str], names: Sequence[str], most_tokens: int
) -> list[tuple[list[int], list[int]]]:
    """Returns token ids of each sentence, without special tokens, and the number of the word that each belongs to."""
    if not sentences:
        return []
    encoded = tokenized(tokenizer, sentences)
    found = []
    for number, ids in enumerate(encoded["input_ids"]):
        require(ids, f"{names[number]}: is empty; give a text with at least one token")
        if len(ids) + 2 > most_tokens:
            raise UserError(
                f"{names[number]}: has {len(ids)} tokens; the model reads {most_tokens - 2} besides [CLS] and [SEP], "
                "so split the text"
            )
        found.append((ids, encoded.word_ids(number)))
    return found


def _masked_copies(
    sentence: int, ids: list[int], words: list[int], tokenizer: "PreTrainedTokenizerBase", whole_rest: bool
) -> Iterator[_MaskedCopy]:
    """Yields one copy for each token, in order.

    Args:
        sentence: index of the sentence.
        ids: its n token ids.
        words: number of the word that each belongs to.
        tokenizer: its special tokens.
        whole_rest: mask the later pieces of the word too.
    """
    cls, sep = special_ids(tokenizer)
    complete = np.array([cls, *ids, sep], dtype=np.int64)
    places, word = np.arange(len(ids)), np.array(words)
    for place, target in enumerate(ids):
        hidden = (word == word[place]) & (places >= place) if whole_rest else places == place
        masked = complete.copy()
        masked[1:-1][hidden] = tokenizer.mask_token_id
        yield _MaskedCopy(sentence, masked, place + 1, target)


def _batches(copies: Iterator[_MaskedCopy], batch_tokens: int) -> Iterator[list[_MaskedCopy]]:
    """Yields batches of at most `batch_tokens` tokens; copies come longest first."""
    batch: list[_MaskedCopy] = []
    for copy in copies:
        if batch and (len(batch) + 1) * len(batch[0].input_ids) > batch_tokens:
            yield batch
            batch = []
        batch.append(copy)
    if batch:
        yield batch


@torch.no_grad()
def _log_probabilities(model: BertReproForMaskedLM, batch: Sequence[_MaskedCopy], pad_token_id: int) -> list[float]:
    """Returns the log-probability of each copy's token, [P]; the copies are packed."""
    features = [{"input_ids": copy.input_ids} for copy in batch]
    inputs = on_device(collate_features(features, pad_token_id=pad_token_id, packing=True), model.device)
    positions = torch.tensor([copy.position for copy in batch], device=model.device)
    logits = model(**inputs, prediction_positions=inputs["cu_seq_lens_q"][:-1].long() + positions).logits
    targets = torch.tensor([copy.target for copy in batch], device=model.device)
    chosen = logits.float().log_softmax(-1).gather(1, targets[:, None]).squeeze(1)
    if not chosen.isfinite().all():
        raise NonFiniteError("the model's output is not finite; score with another checkpoint")
    return cast(list[float], chosen.tolist())


# --- The recipe -----------------------------------------------------------------------------------------------------


def run_sentence_scoring(config: SentenceScoringConfig) -> None:
    """Scores the texts of a file, or minimal pairs, into `output_dir`.

    Raises:
        UserError: the input or the model is not there, or the output is.
        NonFiniteError: the model's output is not finite.
    """
    name = config.model_name_or_path
    files = find_pair_files(config.minimal_pairs) if config.minimal_pairs else [Path(config.input_file or "")]
    tokenizer = load_tokenizer(name)
    model, info = load_pretrained(BertReproForMaskedLM, name)
    if info["missing_keys"]:
        raise UserError(
            f"--model_name_or_path {name}: lacks {min(info['missing_keys'])}; name a masked language model, such as a "
            "pre-trained BERT"
        )
    use_cpu_kernels(model.to("cuda" if torch.cuda.is_available() else "cpu").eval())
    require_vocabulary(name, model, tokenizer)

    def score(sentences: Sequence[str], names: Sequence[str]) -> list[SentenceScore]:
        with torch.autocast(model.device.type, torch.bfloat16, enabled=config.mixed_precision == "bf16"):
            return score_sentences(
                model, tokenizer, sentences, names, method=config.method, batch_tokens=config.batch_tokens
            )

    Path(config.output_dir).mkdir(parents=True, exist_ok=True)
    if config.minimal_pairs:
        _score_pairs(config, files, score)
    else:
        _score_texts(config, files[0], score)


Score = Callable[[Sequence[str], Sequence[str]], list[SentenceScore]]
"""Scores sentences, given with their names for messages."""


def _score_texts(config: SentenceScoringConfig, path: Path, score: Score) -> None:
    texts = enumerate(read_texts(path, config.text_column), start=1)
    target, count, tokens, total = Path(config.output_dir) / SCORES_FILE, 0, 0, 0.0
    with atomic_file(target) as file, tqdm(unit="sentence") as progress:
        while chunk := list(islice(texts, _SENTENCES_AT_A_TIME)):
            sentences = [text for _, text in chunk]
            scores = score(sentences, [f"{path}, text {number}" for number, _ in chunk])
            for text, one in zip(sentences, scores, strict=True):
                pairs = zip(one.tokens, one.log_probabilities, strict=True)
                pieces = [{"token": token, "log_probability": value} for token, value in pairs]
                record = {"text": text, "score": one.total, "tokens": pieces}
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
                count, tokens, total = count + 1, tokens + len(one.tokens), total + one.total
            progress.update(len(chunk))
        require(count > 0, f"--input_file {path}: no texts; name a file with at least one")
    logger.info("%s: %d sentences, %d tokens, %.4f nats a token", target, count, tokens, -total / tokens)


# --- Minimal pairs ----------------------------------------------------------------------------------------------------


class MinimalPair(NamedTuple):
    """Two sentences that differ in one respect, and what it is.

    Args:
        good: the acceptable sentence.
        bad: the other one.
        place: file and line, for messages.
        levels: its `paradigm`, `phenomenon` and `field`; None where the file does not say.
    """

    good: str
    bad: str
    place: str
    levels: dict[str, str | None]


def find_pair_files(names: Sequence[str]) -> list[Path]:
    """Resolves files and folders of minimal pairs, the files of a folder sorted by name.

    Raises:
        UserError: a name leads nowhere, or a folder holds no such file.
    """
    found: list[Path] = []
    for name in names:
        path = Path(name)
        files = (
            sorted(file for file in path.iterdir() if file.name.endswith(PAIR_SUFFIXES)) if path.is_dir() else [path]
        )
        require(files, f"--minimal_pairs {name}: holds no file that ends in {', '.join(PAIR_SUFFIXES)}")
        found += files
    return found


def read_pairs(path: Path) -> list[MinimalPair]:
    """Reads the pairs of one file; without `UID` the file's name is the paradigm.

    Raises:
        UserError: the file is damaged, or a row lacks a sentence.
    """
    pairs = []
    for number, row in json_rows(numbered_lines(path), path):
        place = f"{path}, line {number}"
        for name in ("sentence_good", "sentence_bad"):
            if not str(row.get(name) or "").strip():
                raise UserError(f"{place}: no text in field {name!r}; give a sentence")
        levels = {level: row.get(name) for level, name in _LEVELS.items()}
        levels["paradigm"] = levels["paradigm"] or path.name.split(".")[0]
        pairs.append(MinimalPair(row["sentence_good"], row["sentence_bad"], place, levels))
    require(pairs, f"{path}: no rows; name a file with at least one")
    return pairs


def _score_pairs(config: SentenceScoringConfig, files: Sequence[Path], score: Score) -> None:
    """Scores every pair, into results.json."""
    began = time.perf_counter()
    by_file = [read_pairs(path) for path in files]  # all, before hours of scoring
    margins: list[tuple[MinimalPair, float]] = []
    for pairs in tqdm(by_file, unit="file"):
        sentences = [sentence for pair in pairs for sentence in (pair.good, pair.bad)]
        totals = [one.total for one in score(sentences, [pair.place for pair in pairs for _ in range(2)])]
        margins += [(pair, good - bad) for pair, good, bad in zip(pairs, totals[::2], totals[1::2], strict=True)]
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
    """Computes the accuracy per paradigm, phenomenon and field, and over all pairs.

    Args:
        margins: each pair with the score of its good sentence less that of its bad one; equal scores count as wrong.

    Returns:
        `metrics` (`accuracy` over pairs, `mean_paradigm_accuracy`, `ties`) and, by level, `paradigm`, `phenomenon` and
        `field`: name -> `accuracy` and `pairs`.
    """
    tallies: dict[str, dict[str, list[bool]]] = {level: defaultdict(list) for level in _LEVELS}
    for pair, margin in margins:
        for level, name in pair.levels.items():
            if name is not None:
                tallies[level][name].append(margin > 0)
    levels = {
        level: {name: {"accuracy": fmean(right), "pairs": len(right)} for name, right in sorted(tally.items())}
        for level, tally in tallies.items()
    }
    metrics = {
        "accuracy": fmean(margin > 0 for _, margin in margins),
        "mean_paradigm_accuracy": fmean(entry["accuracy"] for entry in levels["paradigm"].values()),
        "ties": sum(margin == 0 for _, margin in margins),
    }
    return {"metrics": metrics, **levels}
