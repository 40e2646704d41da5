"""The phases of a pre-training: lengths, steps and batches, from settings or from a time limit.

Shape legend: `F` phases.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from bert_repro.configs import Phase, PretrainingConfig
from bert_repro.errors import UserError, flag
from bert_repro.pretraining.dataset import PretrainingSource
from bert_repro.training.batches import batch_sizes
from bert_repro.utils.arrays import Int64Array, row_starts
from bert_repro.utils.process import broadcast

logger = logging.getLogger("bert_repro")

PAPER_BATCH = 256  # sequences per step (A.2)
PROVISIONAL_STEPS = 1_000  # Length of the schedule under --max_train_hours until the speed has been measured.

# A plan is only replaced by a shorter one if the run would otherwise end so much too late.
_TOLERATED_SHARE = 0.98


def resolve_phases(config: PretrainingConfig, processes: int) -> tuple[Phase, ...]:
    """Returns the phases of the run with their `per_device_batch`: those of the settings, or one of `max_steps`.

    If the settings have both, `max_steps` is divided among the phases in proportion to their own steps.

    Raises:
        UserError: neither phases nor max_steps are set, or a batch cannot be divided among the processes.
    """
    if config.phases:
        return _phases_of_settings(config, processes)
    if not (config.max_steps or config.max_train_hours):
        raise UserError(
            f"The length of the run is missing. Set {flag('max_steps')} or {flag('max_train_hours')}, or phases "
            f"through {flag('preset')} or {flag('config')}.",
            setting="max_steps",
        )
    sizes = batch_sizes(config, processes, PAPER_BATCH)
    steps = config.max_steps or PROVISIONAL_STEPS
    return (Phase(config.max_seq_length, steps, sizes.batch, config.max_predictions_per_seq, sizes.micro),)


def _phases_of_settings(config: PretrainingConfig, processes: int) -> tuple[Phase, ...]:
    _warn_of_settings_without_effect(config)

    # Where each phase ends, scaled to `max_steps` and rounded.
    ends = row_starts(np.array([phase.steps for phase in config.phases]))
    if config.max_steps is not None:
        ends = np.round(ends * (config.max_steps / ends[-1])).astype(int)

    # Each phase gets its share of the steps and its own division into forward passes.
    phases: list[Phase] = []
    for phase, steps in zip(config.phases, np.diff(ends).tolist(), strict=True):
        if steps <= 0:
            raise UserError(
                f"{flag('max_steps', config.max_steps)} leaves no step for one of the {len(config.phases)} phases. "
                "Raise it.",
                setting="max_steps",
            )
        per_device_batch = phase.per_device_batch or config.per_device_train_batch_size
        phase_config = replace(config, per_device_train_batch_size=per_device_batch)
        sizes = batch_sizes(phase_config, processes, 0, fixed=phase.batch)
        phases.append(replace(phase, steps=steps, per_device_batch=sizes.micro))
    return tuple(phases)


def _warn_of_settings_without_effect(config: PretrainingConfig) -> None:
    """Warns of settings that each phase has for itself; a preset with phases would silently win over their flags."""
    for name in ("max_seq_length", "train_batch_size", "max_predictions_per_seq"):
        value = getattr(config, name)
        if value != getattr(PretrainingConfig, name):
            logger.warning(
                "%s has no effect, because each phase has its own. Set phases in a file and pass it with %s.",
                flag(name, value),
                flag("config"),
            )


def with_steps(phases: Sequence[Phase], steps: Sequence[int]) -> tuple[Phase, ...]:
    """Returns the phases with other numbers of steps."""
    return tuple(replace(phase, steps=count) for phase, count in zip(phases, steps, strict=True))


class TimeBudget:
    """Plans as many steps as fit into the time of a run (`max_train_hours`), from the speed that it measures.

    The trainer calls it at each row of the log. The order of events:

    1. At the first row the clock starts; compiling and filling caches are over by then.
    2. At the second row the speed since then gives the first plan.
    3. At each later row a plan that would end more than 2% too late is replaced.

    Args:
        source: source of the run; its phases get other steps, in their own proportions.
        seconds: seconds of training.
    """

    def __init__(self, source: PretrainingSource, seconds: float) -> None:
        self.source = source
        self.seconds = seconds
        self.proportions = np.array([phase.steps for phase in source.phases])
        self._first_row: tuple[int, float] | None = None  # step and seconds
        self._has_plan = False

    def __call__(self, step: int, seconds: float) -> None:
        """Makes a plan if one is due.

        Args:
            step: steps taken.
            seconds: seconds of training so far. All processes use the main process's count.
        """
        seconds = broadcast(seconds)
        if self._first_row is None:
            self._first_row = (step, seconds)
            return

        # Tokens per second since the first row, and the tokens that fit into the time that is left.
        first_step, first_seconds = self._first_row
        tokens_read = self.source.tokens_until(step)
        tokens_per_second = (tokens_read - self.source.tokens_until(first_step)) / (seconds - first_seconds)
        tokens_left = max(0.0, self.seconds - seconds) * tokens_per_second

        planned_tokens = self.source.tokens_until(self.source.total_steps)
        is_in_time = tokens_read + tokens_left > _TOLERATED_SHARE * planned_tokens
        if self._has_plan and is_in_time:
            return

        steps = planned_steps(self.source.phases, self.proportions, step, tokens_read, tokens_left)
        self.source.set_steps(steps)
        self._has_plan = True
        logger.info(
            "%s steps fit into the time, at %s tokens per second.",
            f"{self.source.total_steps:,}",
            f"{tokens_per_second:,.0f}",
        )


def planned_steps(
    phases: Sequence[Phase], proportions: Int64Array, step: int, tokens_read: float, tokens_left: float
) -> list[int]:
    """Divides the tokens of a run among its phases.

    Args:
        phases: phases of the run, as planned so far.
        proportions: steps of each phase in the settings, int64 [F].
        step: steps taken.
        tokens_read: tokens of these steps.
        tokens_left: tokens that the rest of the run can read.

    Returns:
        Steps of each phase, those taken included; at least one in the last phase.
    """
    phase_starts = row_starts(np.array([phase.steps for phase in phases]))
    steps_taken = np.diff(np.minimum(phase_starts, step))
    tokens_per_step = np.array([phase.batch * phase.max_seq_length for phase in phases])

    # Steps that each phase still needs to get its proportion of all tokens.
    factor = (tokens_read + tokens_left) / (proportions * tokens_per_step).sum()
    missing: npt.NDArray[np.float64] = np.maximum(proportions * factor - steps_taken, 0)
    # A phase that already took more than its proportion leaves less to the others, so scale them to the tokens left.
    missing *= tokens_left / max(1.0, (missing * tokens_per_step).sum())

    steps: list[int] = (steps_taken + np.round(missing)).astype(int).tolist()
    steps[-1] = max(1, steps[-1])
    return steps
