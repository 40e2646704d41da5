"""Pseudo-log-likelihoods of sentences: each token masked, one at a time, and scored by a masked language model.

The sum over a sentence says how natural it is to the model, up to its length (Salazar et al., 2020, "Masked Language
Model Scoring"). Masking only one piece of a word of several pieces lets the rest of the word give it away, so the
default masks the pieces to its right as well (Kauf and Ivanova, 2023, "A Better Way to Do Masked Language Model
Scoring"; `within_word_l2r`).

    n tokens of a sentence     L its tokens with [CLS] and [SEP], n + 2     P masked copies in a batch
"""

import json
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from tqdm.auto import tqdm

from bert_repro.configs import SentenceScoringConfig
from bert_repro.errors import NonFiniteError, UserError
from bert_repro.inference.feature_extraction import read_texts
from bert_repro.models.loading import load_pretrained, load_tokenizer, longest_input, require_vocabulary
from bert_repro.models.modeling_bert_repro import BertReproForMaskedLM
from bert_repro.tasks.encoding import special_ids, tokenized
from bert_repro.training.batches import collate_features, on_device
from bert_repro.utils import process
from bert_repro.utils.files import atomic_file
from bert_repro.utils.readers import shown

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger("bert_repro")

METHODS = ("within_word_l2r", "original")
SCORES_FILE = "scores.jsonl"
_SENTENCES_AT_A_TIME = 2000


@dataclass(frozen=True)
class SentenceScore:
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


@dataclass(frozen=True)
class _MaskedCopy:
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
    model: Any,
    tokenizer: "PreTrainedTokenizerBase",
    sentences: Sequence[str],
    *,
    method: str = "within_word_l2r",
    batch_tokens: int = 8192,
    names: Sequence[str] | None = None,
) -> list[SentenceScore]:
    """Scores sentences with a masked language model.

    Args:
        model: `BertReproForMaskedLM`, or any masked language model of transformers; in evaluation mode.
        tokenizer: its fast tokenizer.
        sentences: texts that are not empty.
        method: `within_word_l2r` masks a token and the pieces of the same word after it (Kauf and Ivanova, 2023);
            `original` masks the token alone (Salazar et al., 2020).
        batch_tokens: most tokens of a forward pass, unless a single sentence is longer.
        names: what messages call the sentences; default: "sentence 1" and so on.

    Returns:
        One score for each sentence, in order.

    Raises:
        UserError: a sentence is empty or longer than the model reads, or the tokenizer has no [MASK].
        NonFiniteError: the model's output is not finite.
    """
    if method not in METHODS:
        raise UserError(f"method is {shown(method)}; it must be one of: {', '.join(METHODS)}")
    names = names or [f"sentence {number}" for number in range(1, len(sentences) + 1)]
    longest = longest_input(tokenizer, model.config.max_position_embeddings)
    encoded = _encode(tokenizer, sentences, names, longest)
    scores = [np.full(len(ids), np.nan) for ids, _ in encoded]
    # Sentences of one length follow each other, so that a batch is nearly without padding, and packed one product.
    order = sorted(range(len(encoded)), key=lambda index: -len(encoded[index][0]))
    copies = (
        copy for index in order for copy in _masked_copies(index, *encoded[index], tokenizer, method == METHODS[0])
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
    if tokenizer.mask_token_id is None:
        raise UserError(f"tokenizer {tokenizer.name_or_path}: no [MASK] token; use that of a masked language model")
    if not sentences:
        return []
    encoded = tokenized(tokenizer, sentences)
    found = []
    for number, ids in enumerate(encoded["input_ids"]):
        if not ids:
            raise UserError(f"{names[number]}: is empty; give a text with at least one token")
        if len(ids) + 2 > most_tokens:
            raise UserError(
                f"{names[number]}: has {len(ids)} tokens; the model reads {most_tokens - 2} beside [CLS] and [SEP], "
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
def _log_probabilities(model: Any, batch: Sequence[_MaskedCopy], pad_token_id: int) -> list[float]:
    """Returns the log-probability of each copy's token, [P]; packed for our own model, padded for others."""
    packing = isinstance(model, BertReproForMaskedLM)
    features = [{"input_ids": copy.input_ids} for copy in batch]
    inputs = on_device(collate_features(features, pad_token_id=pad_token_id, packing=packing), model.device)
    positions = torch.tensor([copy.position for copy in batch], device=model.device)
    if packing:
        places = inputs["cu_seq_lens_q"][:-1].long() + positions
        logits = model(**inputs, prediction_positions=places).logits
    else:
        logits = model(**inputs).logits[torch.arange(len(batch), device=model.device), positions]
    targets = torch.tensor([copy.target for copy in batch], device=model.device)
    chosen = logits.float().log_softmax(-1).gather(1, targets[:, None]).squeeze(1)
    if not chosen.isfinite().all():
        raise NonFiniteError("the model's output is not finite; score with another checkpoint")
    values: list[float] = chosen.tolist()
    return values


# --- The recipe -----------------------------------------------------------------------------------------------------


def run_sentence_scoring(config: SentenceScoringConfig) -> dict[str, Any]:
    """Scores the texts of a file, or minimal pairs (`bert_repro.inference.minimal_pairs`), into `output_dir`.

    Returns:
        For a file `sentences`, `tokens`, `log_probability` per token and `perplexity` of all; for pairs what
        results.json holds.

    Raises:
        UserError: the input or the model is not there, or the output is.
        NonFiniteError: the model's output is not finite.
    """
    _check_folder(config)
    tokenizer = load_tokenizer(config.tokenizer_name or config.model_name_or_path)
    model = load_masked_lm(config)
    require_vocabulary(config.model_name_or_path, model, tokenizer)
    if config.minimal_pairs:
        from bert_repro.inference.minimal_pairs import score_minimal_pairs

        return score_minimal_pairs(config, model, tokenizer)
    target = Path(config.output_dir) / SCORES_FILE
    texts = enumerate(read_texts(Path(config.input_file or ""), config.text_column), start=1)
    count, tokens, total = 0, 0, 0.0
    with atomic_file(target) as file, tqdm(unit="sentence") as progress:
        while chunk := list(islice(texts, _SENTENCES_AT_A_TIME)):
            names = [f"{config.input_file}, text {number}" for number, _ in chunk]
            sentences = [text for _, text in chunk]
            for text, score in zip(sentences, score_with(config, model, tokenizer, sentences, names), strict=True):
                file.write(json.dumps(score_record(text, score), ensure_ascii=False) + "\n")
                count, tokens, total = count + 1, tokens + len(score.tokens), total + score.total
            progress.update(len(chunk))
        if not count:
            raise UserError(f"--input_file {config.input_file}: no texts; name a file with at least one")
    mean = total / tokens
    logger.info("%s: %d sentences, %d tokens, %.4f nats a token", target, count, tokens, -mean)
    return {"sentences": count, "tokens": tokens, "log_probability": mean, "perplexity": math.exp(min(700.0, -mean))}


def score_record(text: str, score: SentenceScore) -> dict[str, Any]:
    """Returns one line of scores.jsonl: the text, its score, and that of each token."""
    pairs = zip(score.tokens, score.log_probabilities, strict=True)
    return {
        "text": text,
        "score": score.total,
        "tokens": [{"token": token, "log_probability": value} for token, value in pairs],
    }


def load_masked_lm(config: SentenceScoringConfig) -> BertReproForMaskedLM:
    """Loads the checkpoint's encoder and prediction head in float32, ready to score.

    Raises:
        UserError: there is no such checkpoint, or it lacks a masked language model's head.
    """
    name = config.model_name_or_path
    model, info = load_pretrained(BertReproForMaskedLM, name)
    if info["missing_keys"]:
        raise UserError(
            f"--model_name_or_path {name}: lacks {min(info['missing_keys'])}; name a masked language model, such as a "
            "pre-trained BERT"
        )
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()  # type: ignore[no-any-return]


def score_with(
    config: SentenceScoringConfig, model: Any, tokenizer: Any, sentences: Sequence[str], names: Sequence[str]
) -> list[SentenceScore]:
    """Scores sentences as a configuration says; see `score_sentences`."""
    with torch.autocast(model.device.type, torch.bfloat16, enabled=config.mixed_precision == "bf16"):
        return score_sentences(
            model, tokenizer, sentences, method=config.method, batch_tokens=config.batch_tokens, names=names
        )


def _check_folder(config: SentenceScoringConfig) -> None:
    if config.input_file and not Path(config.input_file).is_file():
        raise UserError(f"--input_file {config.input_file}: no such file")
    folder = Path(config.output_dir)
    if folder.is_file():
        raise UserError(f"--output_dir {folder} is a file; name a folder")
    if not (process.is_free_folder(folder) or config.overwrite_output_dir):
        raise UserError(f"--output_dir {folder} is not empty; name another folder or give --overwrite_output_dir")
    folder.mkdir(parents=True, exist_ok=True)
