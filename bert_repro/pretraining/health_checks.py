"""Warns while pre-training of what looks wrong, and says what to try. Each warning is given once."""

import logging
from collections.abc import Mapping

from bert_repro.configs import PretrainingConfig

logger = logging.getLogger("bert_repro")

_PATIENCE = 4_000_000  # tokens after which a run that learns has left the plateau of single-token frequencies
_PLATEAU = 6.5  # nats; frequencies alone give about 7 on English text
_UNKNOWN_SHARE = 0.01
_EXPECTED_NOT_NEXT = {"paper": (0.48, 0.52), "original": (0.50, 0.65)}


class HealthChecks:
    """Checks the data and the logged metrics of a run."""

    def __init__(self, config: PretrainingConfig) -> None:
        self.config = config
        self._given: set[str] = set()

    def check_data(self, not_next_share: float, unknown_share: float) -> None:
        """Checks the examples and their tokens once, before the first step.

        Args:
            not_next_share: NotNext among the examples of the first epoch.
            unknown_share: [UNK] among the tokens of a sample of examples.
        """
        low, high = _EXPECTED_NOT_NEXT[self.config.nsp_sampling]
        if self.config.next_sentence_prediction and not low <= not_next_share <= high:
            self._warn(
                "pairs",
                f"{not_next_share:.1%} of the pairs are NotNext, {low:.0%} to {high:.0%} are expected with "
                f"nsp_sampling={self.config.nsp_sampling}: documents may be very short; run "
                "recipes/audit_pretraining_data.py",
            )
        if unknown_share > _UNKNOWN_SHARE:
            self._warn(
                "unknown",
                f"{unknown_share:.1%} of the tokens are [UNK]: the vocabulary does not fit the text (language, case, "
                "alphabet); train one on it with recipes/train_tokenizer.py",
            )

    def check_row(self, row: Mapping[str, float]) -> None:
        """Checks a row of the training log.

        Args:
            row: means over the logging window, with `tokens` since the beginning.
        """
        if row["tokens"] < _PATIENCE:
            return
        if row.get("mlm_loss", 0.0) > _PLATEAU:
            self._warn(
                "plateau",
                f"the MLM loss is {row['mlm_loss']:.2f} after {row['tokens']:,.0f} tokens: the model still "
                "guesses by token frequency. Try a higher learning rate or a longer warm-up; small models need 5 "
                "to 20 million tokens to leave this plateau",
            )
        accuracy = row.get("nsp_accuracy")
        if accuracy is not None and accuracy > 0.999:
            self._warn("leak", "NSP accuracy is 1.0: something other than the text reveals the label; audit the data")
        if accuracy is not None and abs(accuracy - 0.5) < 0.02 and row["tokens"] > 10 * _PATIENCE:
            self._warn(
                "chance", "NSP accuracy is still 0.5: check that documents hold consecutive sentences (audit the data)"
            )

    def _warn(self, about: str, message: str) -> None:
        if about not in self._given:
            self._given.add(about)
            logger.warning("warning: %s", message)
