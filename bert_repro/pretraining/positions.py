"""Longer inputs for a checkpoint: position embeddings beyond those that were trained.

The trained position embeddings lie near a curve in a few dimensions, so a rotation that takes each row to the next one
continues them. The best number of dimensions differs between models, and the model itself decides: by its masked
accuracy on sequences of the new length. Tiling repeats the trained rows.

Shape legend: `H` hidden size.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from torch import nn

from bert_repro.configs import Phase, PretrainingConfig
from bert_repro.corpus.prepared_corpus import PreparedCorpus
from bert_repro.errors import UserError, flag
from bert_repro.models.loading import load_tokenizer, longest_input
from bert_repro.pretraining.evaluation import HeldOutEvaluation
from bert_repro.pretraining.objectives import objective_of
from bert_repro.training import resume
from bert_repro.utils.arrays import Int64Array

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger("bert_repro")

DIMENSIONS = (8, 16, 24, 32, 48, 64, 96)  # candidates for the rotation
UNLIKE_OTHERS = 8  # The first rows encode the beginning of a text and do not follow the rotation.

# Text by which the rotation chooses its dimensions.
_SEQUENCES_TO_CHOOSE_BY = 256
_DOCUMENTS_TO_CHOOSE_BY = 2_000


@dataclass(frozen=True)
class InputLength:
    """The input lengths of a run and of the checkpoint that it starts from, in tokens.

    Args:
        longest: longest sequence of the run.
        trained: longest sequence that the checkpoint was trained on; the model's positions if it is new.
        extends: whether position embeddings beyond the trained ones are computed before the first step.
        model_max_length: longest input of the model after the run, which its tokenizer truncates to.
    """

    longest: int
    trained: int
    extends: bool
    model_max_length: int


def resolve_input_length(config: PretrainingConfig, phases: tuple[Phase, ...], num_positions: int) -> InputLength:
    """Compares the longest input of a run with the longest one that its checkpoint was trained on.

    Args:
        config: the run's settings.
        phases: phases of the run.
        num_positions: position embeddings of the model.

    Raises:
        UserError: the model does not have so many positions, and they are not to be extended.
    """
    longest = max(phase.max_seq_length for phase in phases)
    trained = num_positions
    model_max_length = longest
    if config.model_name_or_path:
        trained = longest_input(load_tokenizer(config.model_name_or_path), num_positions)
        model_max_length = max(longest, trained)

    needs_longer_positions = config.model_name_or_path is not None and longest > trained
    extends = needs_longer_positions and config.extend_positions != "none"
    if longest > num_positions and not extends:
        if config.model_name_or_path:
            remedy = f"Add {flag('extend_positions', 'rotation')}."
        else:
            remedy = f"Raise {flag('max_position_embeddings')}."
        raise UserError(
            f"{flag('max_seq_length', longest)} exceeds the {num_positions} positions of the model. {remedy}",
            setting="max_seq_length",
        )
    return InputLength(longest, trained, extends, model_max_length)


def extend_and_measure(
    config: PretrainingConfig,
    accelerator: Accelerator,
    model: Any,
    corpus: PreparedCorpus,
    training_documents: Int64Array,
    heldout_documents: Int64Array,
    tokenizer: "PreTrainedTokenizerBase",
    length: InputLength,
) -> dict[str, Any]:
    """Extends the position embeddings. The choice is made on training text, its effect is measured on held-out text.

    Args:
        config: the run's settings.
        accelerator: devices and precision.
        model: the model, on its device.
        corpus: the prepared corpus.
        training_documents: ids of the documents to train on, int64.
        heldout_documents: ids of the held-out documents, int64.
        tokenizer: tokenizer of the corpus.
        length: input lengths of the run.

    Returns:
        `extended_positions` for results.json. A run that resumes has none: its checkpoint has the weights.
    """
    kind, trained, longest = config.extend_positions, length.trained, length.longest
    if resume.resumes(config):
        extend_positions(model, kind, trained, longest, None)
        return {}

    few_sequences = replace(config, max_eval_sequences=_SEQUENCES_TO_CHOOSE_BY)
    metric = objective_of(config).main_metric

    def accuracy(documents: Int64Array, max_seq_length: int) -> float:
        evaluation = HeldOutEvaluation(few_sequences, Phase(max_seq_length, 1, 1), corpus, documents, tokenizer)
        return evaluation.measure(model, accelerator)[metric]

    # Accuracy before, at those lengths that the model can read at all.
    before: dict[int, float] = {}
    for tokens in (trained, longest):
        if tokens <= model.config.max_position_embeddings:
            before[tokens] = accuracy(heldout_documents, tokens)

    choice_evaluation = HeldOutEvaluation(
        few_sequences, Phase(longest, 1, 1), corpus, training_documents[:_DOCUMENTS_TO_CHOOSE_BY], tokenizer
    )
    method = extend_positions(
        model, kind, trained, longest, lambda: choice_evaluation.measure(model, accelerator)[metric]
    )

    after = {tokens: accuracy(heldout_documents, tokens) for tokens in (trained, longest)}
    changes: list[str] = []
    for tokens, value in after.items():
        changes.append(f"{before.get(tokens, math.nan):.3f} -> {value:.3f} at {tokens} tokens")
    logger.info(
        "Positions from %d on were not trained: %s. Held-out accuracy: %s.", trained, method, ", ".join(changes)
    )
    return {"extended_positions": {"from": trained, "to": longest, "done": method, "before": before, "after": after}}


def extend_positions(model: Any, kind: str, trained: int, length: int, measure: Callable[[], float] | None) -> str:
    """Replaces the position embeddings from the trained ones on.

    Args:
        model: a model with `bert.embeddings`; its configuration is updated.
        kind: `rotation` or `tile`.
        trained: rows that were trained, at least 16.
        length: tokens that the model is to read.
        measure: returns the model's masked accuracy at the new length, by which rotation chooses its dimensions. None
            uses the first choice, for a model whose weights are loaded afterwards.

    Returns:
        The method, in words.
    """
    # Give the model a table of the new size.
    old_rows = model.bert.embeddings.position_embeddings.weight.detach()
    rows = old_rows[:trained].double()
    size = max(length, len(old_rows))
    table = nn.Embedding(size, old_rows.shape[1], device=old_rows.device, dtype=old_rows.dtype)
    model.bert.embeddings.position_embeddings = table
    model.config.max_position_embeddings = size

    def fill(new_rows: torch.Tensor) -> None:
        with torch.no_grad():
            table.weight.copy_(torch.cat([rows, new_rows]))

    if kind == "tile":
        repetitions = -(-size // trained)
        fill(rows.repeat(repetitions, 1)[trained:size])
        return "tiled"

    # Try each number of dimensions that the trained rows determine, and keep the best.
    most_dimensions = min(trained - UNLIKE_OTHERS - 2, rows.shape[1])
    choices = [dimensions for dimensions in DIMENSIONS if dimensions <= most_dimensions]
    best = choices[0]
    if measure is not None:
        scores: dict[int, float] = {}
        for dimensions in choices:
            fill(rotated(rows, size - trained, dimensions))
            scores[dimensions] = measure()
        best = max(scores, key=scores.__getitem__)
    fill(rotated(rows, size - trained, best))
    return f"rotated in {best} dimensions"


def rotated(rows: torch.Tensor, count: int, dimensions: int) -> torch.Tensor:
    """Continues a sequence of vectors by the rotation that takes each one to the next.

    Args:
        rows: (n, H) in 64 bits, in order.
        count: vectors to add.
        dimensions: principal directions in which the rows are rotated.

    Returns:
        (count, H).
    """
    if count == 0:
        return rows[:0]

    # Write the rows in their principal directions.
    mean = rows.mean(0)
    basis = torch.linalg.svd(rows - mean, full_matrices=False).Vh[:dimensions].T
    coordinates = (rows - mean) @ basis

    # The rotation closest to taking each row to the next one (orthogonal Procrustes problem).
    before, after = coordinates[UNLIKE_OTHERS:-1], coordinates[UNLIKE_OTHERS + 1 :]
    left, _, right = torch.linalg.svd(before.T @ after)
    rotation = left @ right

    new_coordinates: list[torch.Tensor] = []
    last = coordinates[-1]
    for _ in range(count):
        last = last @ rotation
        new_coordinates.append(last)
    new_rows: torch.Tensor = torch.stack(new_coordinates) @ basis.T + mean
    return new_rows
