"""Warns while a model is pre-trained, and at its end, of what looks wrong in the data or the metrics."""

import logging
from collections.abc import Mapping

from bert_repro.configs import PretrainingConfig
from bert_repro.errors import flag
from bert_repro.pretraining.objectives import objective_of

logger = logging.getLogger("bert_repro")

# Tokens after which a run that learns has left the plateau of single-token frequencies.
_PATIENCE = 4_000_000
_NSP_PATIENCE = 40_000_000

# A model on the plateau has 0.98 to 1.00 of the loss of guessing by frequency; one that learns falls below 0.95 soon.
_PLATEAU_SHARE = 0.95

_CHANCE = 0.5
_CHANCE_MARGIN = 0.02
_UNKNOWN_SHARE = 0.01
_EXPECTED_NOT_NEXT = {"paper": (0.48, 0.52), "original": (0.50, 0.65)}


class HealthChecks:
    """Shows a warning for what looks wrong; each warning is shown once.

    Args:
        config: the run's settings.
        entropy: entropy of the corpus's token frequencies, in nats.
    """

    def __init__(self, config: PretrainingConfig, entropy: float) -> None:
        self.config = config
        self.objective = objective_of(config)
        self.loss_of_guessing = self.objective.loss_of_guessing(entropy)
        self._shown: set[str] = set()

    def check_data(self, not_next_share: float, unknown_share: float) -> None:
        """Checks the examples and their tokens once, before the first step.

        Args:
            not_next_share: share of NotNext among the examples of the first epoch.
            unknown_share: share of [UNK] among the tokens of a sample of examples.
        """
        low, high = _EXPECTED_NOT_NEXT[self.config.nsp_sampling]
        if self.objective.has_sentence_labels and not low <= not_next_share <= high:
            logger.warning(
                f"warning: {not_next_share:.1%} of the pairs are NotNext, but {low:.0%} to {high:.0%} are expected "
                f"with {flag('nsp_sampling', self.config.nsp_sampling)}. The documents may be very short. Run "
                "audit_pretraining_data to see examples."
            )
        if unknown_share > _UNKNOWN_SHARE:
            logger.warning(
                f"warning: {unknown_share:.1%} of the tokens are [UNK]. The vocabulary does not fit the text "
                "(language, case, alphabet). Train one on this text with train_tokenizer."
            )

    def check_row(self, row: Mapping[str, float]) -> None:
        """Checks a row of the training log, if the run has had enough tokens to be judged.

        Args:
            row: means over the logging window, with `tokens` since the beginning.
        """
        tokens = row["tokens"]
        term = self.objective.token_term
        if tokens >= _PATIENCE and term in row:
            self._check_plateau(row[term], tokens)
        if tokens > _NSP_PATIENCE and "nsp_accuracy" in row:
            self._check_nsp(row["nsp_accuracy"])

    def check_end(self, metrics: Mapping[str, float], tokens: float) -> None:
        """Checks the held-out metrics of a finished run, however short it was.

        Args:
            metrics: held-out metrics, as `HeldOutEvaluation.measure` returns them.
            tokens: tokens that the run has read.
        """
        prefix = self.objective.loss_terms[self.objective.token_term]
        self._check_plateau(metrics[f"{prefix}_loss"], tokens)
        if "nsp_accuracy" in metrics:
            self._check_nsp(metrics["nsp_accuracy"])

    def _check_plateau(self, loss: float, tokens: float) -> None:
        """Warns if the token loss is that of a model that knows how often each token occurs and nothing else."""
        if loss <= _PLATEAU_SHARE * self.loss_of_guessing:
            return
        self._warn(
            "plateau",
            f"the loss is {loss:.2f} nats after {tokens:,.0f} tokens. Guessing by token frequency alone gives "
            f"{self.loss_of_guessing:.2f} on this corpus, so the model has hardly learned from context yet. Small "
            "models need 2 to 20 million tokens to leave this plateau. If this run had more, try a higher "
            f"{flag('learning_rate')}, a longer warm-up, or shorter sequences first.",
        )

    def _check_nsp(self, accuracy: float) -> None:
        """Warns if next sentence prediction is at chance."""
        if abs(accuracy - _CHANCE) < _CHANCE_MARGIN:
            self._warn(
                "nsp",
                f"NSP accuracy is {accuracy:.2f}, which is chance. Check that documents contain consecutive sentences "
                "(audit_pretraining_data), or train longer.",
            )

    def _warn(self, subject: str, message: str) -> None:
        if subject not in self._shown:
            self._shown.add(subject)
            logger.warning("warning: %s", message)
