"""The pre-training objectives: what a model predicts, how a step's losses are counted, what is measured.

Each objective is one class. Everything else in this package asks it, so that a new objective is a class here and a line
in `OBJECTIVES`. The paper has three (sections 3.1 and 5.1):

    MaskedLanguageModelWithNsp   MLM and next sentence prediction: BERT
    MaskedLanguageModel          MLM alone: "No NSP"
    LeftToRight                  next-token prediction: "LTR & No NSP"

A loss term is a mean that the model returns as an attribute of its output, for example `mlm_loss`. The trainer weights
it by the number of predictions behind it, which `step_totals` gives for a complete step and `counts` for one batch.

Shape legend: `B` sequences, `S` columns of a padded batch, `T` tokens of all sequences together, `P` decoded positions.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from bert_repro.configs import ExampleConfig
from bert_repro.errors import UserError
from bert_repro.models.modeling_bert_repro import (
    BertReproForCausalLM,
    BertReproForPreTraining,
    BertReproTokenPredictor,
    next_token_labels,
)
from bert_repro.pretraining.masking import BoolArray, MaskedTokens, Masker, TokenArray, num_predictions
from bert_repro.training.batches import IGNORE_INDEX, Batch
from bert_repro.utils.arrays import Int64Array
from bert_repro.utils.randomness import UInt64Array


@dataclass(frozen=True)
class TokenPredictions:
    """The token predictions of one forward pass, flat, at the decoded positions.

    Args:
        predicted: the ids that the model considers most likely.
        labels: the ids that are right, -100 where nothing is predicted.
        inputs: the ids that the model read at these positions; None if it does not read the tokens that it predicts.
    """

    predicted: torch.Tensor
    labels: torch.Tensor
    inputs: torch.Tensor | None


class Objective(ABC):
    """One pre-training objective.

    Args:
        config: how examples are made.

    Attributes:
        model_class: class of the model with the heads that the objective trains.
        loss_terms: loss term -> prefix of its held-out metrics. The first one predicts tokens, and its accuracy is the
            objective's main metric.
        needs_pairs: whether examples must be pairs of segments.
        has_sentence_labels: whether batches carry `next_sentence_label`.
        decodes_chosen_positions: whether the model decodes `prediction_positions` only.
        is_causal: whether a token attends to earlier tokens only.
        description: what the model is trained to do, for its card: "It was pre-trained with ...".
    """

    model_class: ClassVar[type[BertReproTokenPredictor]]
    loss_terms: ClassVar[Mapping[str, str]]
    needs_pairs: ClassVar[bool] = False
    has_sentence_labels: ClassVar[bool] = False
    decodes_chosen_positions: ClassVar[bool] = True
    is_causal: ClassVar[bool] = False
    description: ClassVar[str]

    def __init__(self, config: ExampleConfig) -> None:
        self.config = config

    @classmethod
    @abstractmethod
    def is_selected_by(cls, config: ExampleConfig) -> bool:
        """Returns whether a configuration asks for this objective."""

    @property
    def draws_pairs(self) -> bool:
        """Whether examples are pairs of segments, because they must be or because the configuration keeps them."""
        return self.needs_pairs or self.config.no_nsp_input == "pairs"

    @property
    def token_term(self) -> str:
        """Loss term of the token predictions."""
        return next(iter(self.loss_terms))

    @property
    def main_metric(self) -> str:
        """Held-out metric that a run reports first: the accuracy of its token predictions."""
        return f"{self.loss_terms[self.token_term]}_accuracy"

    def freeze_unused(self, model: nn.Module) -> None:
        """Stops the training of parameters that no loss term reaches. By default there are none."""
        del model

    @abstractmethod
    def choose(
        self, masker: Masker, tokens: TokenArray, lengths: Int64Array, keys: UInt64Array, is_special: BoolArray | None
    ) -> MaskedTokens:
        """Chooses the predicted tokens of a batch and what the model reads in their place.

        Args:
            masker: chooses and replaces tokens as the configuration says.
            tokens: ids of all sequences, [T].
            lengths: tokens of each sequence, int64 [B].
            keys: name of each sequence, from which all draws follow, uint64 [B].
            is_special: tokens that must not be predicted, bool [T]; None for none beyond the masker's own.
        """

    @abstractmethod
    def step_totals(self, lengths: Int64Array, max_predictions: int | None) -> dict[str, int]:
        """Returns the number of predictions behind each loss term of a complete step, without masking it.

        Args:
            lengths: tokens of each sequence of the step, int64 [B].
            max_predictions: most predictions of a sequence, None for no limit.
        """

    @abstractmethod
    def counts(self, batch: Batch) -> dict[str, int]:
        """Returns the number of predictions behind each loss term of one batch of the collator."""

    @staticmethod
    @abstractmethod
    def count_right(output: Any, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Counts the right predictions of a forward pass on its device, by loss term.

        Args:
            output: output of the model.
            inputs: its inputs, the collator's batch.
        """

    @abstractmethod
    def token_predictions(self, output: Any, inputs: dict[str, Any]) -> TokenPredictions:
        """Returns the token predictions of a forward pass, for the breakdown of held-out accuracy."""

    @abstractmethod
    def loss_of_guessing(self, entropy: float) -> float:
        """Returns the loss in nats of a model that knows how often each token occurs and nothing else.

        Args:
            entropy: entropy of the corpus's token frequencies, in nats.
        """

    def attended_tokens(self, length: int) -> float:
        """Returns how many tokens each token attends to, on average, in a sequence of `length` tokens."""
        return (length + 1) / 2 if self.is_causal else length

    @property
    def decoded_share(self) -> float:
        """Share of the tokens whose logits are computed."""
        return self.config.masked_lm_prob if self.decodes_chosen_positions else 1.0


class MaskedLanguageModel(Objective):
    """The masked language model alone (Table 5, "No NSP")."""

    model_class = BertReproForPreTraining
    loss_terms: ClassVar[Mapping[str, str]] = {"mlm_loss": "mlm"}
    description = "masked language modeling"

    @classmethod
    def is_selected_by(cls, config: ExampleConfig) -> bool:
        """Selected by `next_sentence_prediction=False`."""
        return not config.next_sentence_prediction and not config.left_to_right

    def freeze_unused(self, model: nn.Module) -> None:
        """Freezes the pooler and the NSP head, which no loss term reaches."""
        model.get_submodule("bert.pooler").requires_grad_(False)
        model.get_submodule("cls.seq_relationship").requires_grad_(False)

    def choose(
        self, masker: Masker, tokens: TokenArray, lengths: Int64Array, keys: UInt64Array, is_special: BoolArray | None
    ) -> MaskedTokens:
        """Masks tokens as in the paper."""
        return masker(tokens, lengths, keys, is_special)

    def step_totals(self, lengths: Int64Array, max_predictions: int | None) -> dict[str, int]:
        """Counts predicted tokens, a function of the lengths alone."""
        predictions = num_predictions(lengths, self.config.masked_lm_prob, max_predictions)
        return {"mlm_loss": int(predictions.sum())}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Counts labels. With whole-word masking they may be a few less than the lengths allow."""
        return {"mlm_loss": int((batch["labels"] != IGNORE_INDEX).sum())}

    @staticmethod
    @torch.no_grad()
    def count_right(output: Any, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Counts predicted tokens that are right, and sentence pairs if the batch has labels for them."""
        labels = inputs["labels"].flatten().index_select(0, inputs["prediction_positions"])
        # On the CPU, max is three times as fast as argmax in bfloat16.
        is_right = (output.prediction_logits.max(-1).indices == labels) & (labels != IGNORE_INDEX)
        counts = {"mlm_loss": is_right.sum()}
        if "next_sentence_label" in inputs:
            predicted_label = output.seq_relationship_logits.argmax(-1)
            counts["nsp_loss"] = (predicted_label == inputs["next_sentence_label"]).sum()
        return counts

    def token_predictions(self, output: Any, inputs: dict[str, Any]) -> TokenPredictions:
        """Returns the predictions at `prediction_positions`."""
        positions = inputs["prediction_positions"]
        return TokenPredictions(
            predicted=output.prediction_logits.max(-1).indices,
            labels=inputs["labels"].flatten()[positions],
            inputs=inputs["input_ids"].flatten()[positions],
        )

    def loss_of_guessing(self, entropy: float) -> float:
        """Returns the loss of predicting by frequency, and of copying a token that was not masked when that is better.

        A token that the model reads at a predicted position is either the right one or a random one. A model that
        knows only their shares gives the token it reads the probability `same / (same + random)`.
        """
        mask_share, random_share = self.config.mask_replace_prob, self.config.random_replace_prob
        same_share = 1 - mask_share - random_share
        if same_share <= 0:
            return entropy
        probability_of_copy = same_share / (same_share + random_share)
        loss = mask_share * entropy - same_share * math.log(probability_of_copy)
        if random_share > 0:
            loss += random_share * (entropy - math.log(1 - probability_of_copy))
        return min(loss, entropy)


class MaskedLanguageModelWithNsp(MaskedLanguageModel):
    """The masked language model and next sentence prediction: BERT (paper 3.1)."""

    loss_terms: ClassVar[Mapping[str, str]] = {"mlm_loss": "mlm", "nsp_loss": "nsp"}
    needs_pairs = True
    has_sentence_labels = True
    description = "masked language modeling and next sentence prediction"

    @classmethod
    def is_selected_by(cls, config: ExampleConfig) -> bool:
        """Selected by the default, `next_sentence_prediction=True`."""
        return config.next_sentence_prediction

    def freeze_unused(self, model: nn.Module) -> None:
        """Freezes nothing: every parameter is trained."""

    def step_totals(self, lengths: Int64Array, max_predictions: int | None) -> dict[str, int]:
        """Counts predicted tokens and sentence pairs."""
        return super().step_totals(lengths, max_predictions) | {"nsp_loss": len(lengths)}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Counts labels of tokens and of sentence pairs; sequences of padding have none."""
        sentence_labels = batch["next_sentence_label"]
        return super().counts(batch) | {"nsp_loss": int((sentence_labels != IGNORE_INDEX).sum())}


class LeftToRight(Objective):
    """The left-to-right language model (Table 5, "LTR & No NSP"): every token but the first of a sequence is predicted
    from the tokens before it."""

    model_class = BertReproForCausalLM
    loss_terms: ClassVar[Mapping[str, str]] = {"loss": "lm"}
    decodes_chosen_positions = False
    is_causal = True
    description = "left-to-right language modeling"

    @classmethod
    def is_selected_by(cls, config: ExampleConfig) -> bool:
        """Selected by `left_to_right=True`."""
        return config.left_to_right

    def choose(
        self, masker: Masker, tokens: TokenArray, lengths: Int64Array, keys: UInt64Array, is_special: BoolArray | None
    ) -> MaskedTokens:
        """Labels every token with itself and masks none. The model shifts the labels."""
        del masker, lengths, keys, is_special
        ids = tokens.astype(np.int64)
        return MaskedTokens(ids, np.arange(len(ids)), ids)

    def step_totals(self, lengths: Int64Array, max_predictions: int | None) -> dict[str, int]:
        """Counts all tokens but the first of each sequence."""
        del max_predictions
        return {"loss": int((lengths - 1).sum())}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Counts positions that have a next token."""
        labels = next_token_labels(batch["labels"], batch.get("cu_seq_lens_q"))
        return {"loss": int((labels != IGNORE_INDEX).sum())}

    @staticmethod
    @torch.no_grad()
    def count_right(output: Any, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Counts next tokens that are right."""
        labels = next_token_labels(inputs["labels"], inputs.get("cu_seq_lens_q"))
        is_right = (output.logits.max(-1).indices == labels) & (labels != IGNORE_INDEX)
        return {"loss": is_right.sum()}

    def token_predictions(self, output: Any, inputs: dict[str, Any]) -> TokenPredictions:
        """Returns the predictions at every position. The model has not read the tokens that it predicts."""
        labels = next_token_labels(inputs["labels"], inputs.get("cu_seq_lens_q")).flatten()
        return TokenPredictions(output.logits.max(-1).indices.flatten(), labels, None)

    def loss_of_guessing(self, entropy: float) -> float:
        """Returns the entropy: a model that knows frequencies alone predicts the same at every position."""
        return entropy


OBJECTIVES: list[type[Objective]] = [MaskedLanguageModelWithNsp, MaskedLanguageModel, LeftToRight]
"""All objectives. A configuration gets the first one that it selects."""


def objective_of(config: ExampleConfig) -> Objective:
    """Returns the objective that a configuration selects.

    Raises:
        UserError: no objective is selected by these settings.
    """
    for objective in OBJECTIVES:
        if objective.is_selected_by(config):
            return objective(config)
    raise UserError("No pre-training objective is selected by these settings. Set next_sentence_prediction or another.")


def token_entropy(counts: Int64Array) -> float:
    """Returns the entropy in nats of the frequencies of tokens, given how often each occurs, int64 [V]."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
