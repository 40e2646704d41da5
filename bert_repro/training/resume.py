"""What a resumed run may change: its data and settings are compared with those of its checkpoint.

Order of events when a run resumes (`Trainer._resume`):

1. `checkpoint.find` chooses the checkpoint: the named one, or the newest valid one. Every file is compared with the
   manifest.
2. `require_same_data` compares the data and the steps of each phase.
3. `require_same_settings` compares the settings that decide the result, and logs the others.
4. The output folder of a finished run becomes this run's.
5. Weights and optimizer state are loaded, then the best score, the gradient scaler and the log.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from bert_repro.configs import LOCATIONS, RunConfig, TrainingSettings, decides_result
from bert_repro.errors import UserError, flag
from bert_repro.training import checkpoint
from bert_repro.training.checkpoint import TrainerState
from bert_repro.utils.readers import quoted
from bert_repro.utils.redaction import redacted

if TYPE_CHECKING:
    from bert_repro.training.batches import BatchSource

logger = logging.getLogger("bert_repro")

# Settings that differ in almost every resumed run; saying so would not inform anybody.
_NOT_LOGGED = frozenset({"resume_from_checkpoint", "output_dir", "overwrite_output_dir"})


class _Difference(NamedTuple):
    """A setting that has changed.

    Args:
        setting: name of the setting.
        path: the setting, or the entry of it that differs: `phases[1].steps`.
        old: value of the checkpoint's run.
        new: value of this run.
    """

    setting: str
    path: str
    old: object
    new: object

    def text(self) -> str:
        """Returns the setting with its old and new value."""
        return f"{flag(self.path)} {quoted(self.old)} (now {quoted(self.new)})"


def resumes(config: RunConfig | TrainingSettings) -> bool:
    """Returns whether a run resumes from a checkpoint: one is named, or `auto` finds any."""
    name = config.resume_from_checkpoint
    if name is None:
        return False
    if name == "auto":
        return bool(checkpoint.newest_first(Path(config.output_dir)))
    return True


def stored_settings(config: RunConfig | TrainingSettings) -> dict[str, Any]:
    """Returns a run's settings as a checkpoint stores them: plain JSON without secrets."""
    return cast(dict[str, Any], json.loads(json.dumps(redacted(asdict(config)))))


def require_same_data(
    folder: Path, state: TrainerState, source: "BatchSource", config: RunConfig | TrainingSettings
) -> None:
    """Refuses to resume a run on other data, or with fewer steps than it has taken.

    What a batch source derives from settings alone, such as the steps of each phase, is compared here too, unless
    `allow_changed_settings` is set.

    Args:
        folder: the checkpoint, for messages.
        state: its state.
        source: data of the resumed run.
        config: settings of the resumed run.

    Raises:
        UserError: the data differ; the message says in what.
    """
    fingerprint = state.data_fingerprint or {}
    names_of_settings = {"steps", *(state.settings or {})}
    for name, before in fingerprint.items():
        now = source.data_fingerprint.get(name)
        # A number that follows from a setting may be changed on purpose, other data may not.
        follows_from_setting = name in names_of_settings
        if now == before or (follows_from_setting and config.allow_changed_settings):
            continue
        if follows_from_setting:
            remedy = f"accept another result with {flag('allow_changed_settings')}"
        else:
            remedy = f"start again with {flag('overwrite_output_dir')}"
        raise UserError(
            f"{folder} cannot be resumed: its run had the {name} {before}, not {now}. Use the same data and "
            f"settings, or {remedy}.",
            setting="resume_from_checkpoint",
        )

    _require_same_beginning(folder, state.step, fingerprint.get("steps", ()), source.data_fingerprint.get("steps", ()))
    if state.step > source.total_steps:
        raise UserError(
            f"{folder} cannot be resumed: its run has taken {state.step} steps, but this one has "
            f"{source.total_steps} in all. Ask for more steps, or resume from an earlier checkpoint.",
            setting="resume_from_checkpoint",
        )


def _require_same_beginning(folder: Path, step: int, before: list[int], now: list[int]) -> None:
    """Refuses phases in which the steps of a checkpoint were not taken.

    Phases that are over must have the same length, and the phase of the checkpoint must be long enough.

    Args:
        folder: the checkpoint, for messages.
        step: steps that its run has taken.
        before: steps of each phase of its run.
        now: steps of each phase of this run.
    """
    # Walk through the phases of the checkpoint's run, and count the steps that it has taken in each.
    begin = 0
    for number, steps in enumerate(before):
        steps_now = now[number] if number < len(now) else 0
        steps_taken = min(steps, step - begin)
        begin += steps
        is_over = step > begin
        if steps_now < steps_taken or (is_over and steps_now != steps):
            raise UserError(
                f"{folder} cannot be resumed: it has taken {steps_taken:,} steps of phases[{number}], which has "
                f"{steps_now:,} now. Keep the phases and steps that were trained, or resume from an earlier "
                "checkpoint.",
                setting="phases",
            )


def require_same_settings(folder: Path, before: Mapping[str, Any] | None, config: RunConfig | TrainingSettings) -> None:
    """Compares the settings of a run with those of the checkpoint that it resumes from, and logs what differs.

    Args:
        folder: the checkpoint, for messages.
        before: settings of the checkpoint, from `stored_settings`.
        config: settings of the resumed run.

    Raises:
        UserError: a setting that decides the result differs, and `allow_changed_settings` is not set.
    """
    # A setting that the checkpoint's version did not have is not compared.
    now = stored_settings(config)
    differences: list[_Difference] = []
    for name, value in (before or {}).items():
        for path, old, new in _differences(name, value, now.get(name, value)):
            differences.append(_Difference(name, path, old, new))

    # Files may move, so their locations are not compared; their content is (`require_same_data`).
    comparable = [difference for difference in differences if difference.setting not in LOCATIONS]
    deciding = [difference.text() for difference in comparable if decides_result(difference.setting)]
    if deciding and not config.allow_changed_settings:
        raise UserError(
            f"{folder} cannot be resumed with these settings: its run had {'; '.join(deciding)}. Use the same "
            f"settings, or accept another result with {flag('allow_changed_settings')}.",
            setting="resume_from_checkpoint",
        )

    # Settings that do not decide the result may change; say which did.
    for difference in differences:
        if difference.setting not in _NOT_LOGGED:
            logger.info(
                "Resuming with %s %s, was %s", flag(difference.path), quoted(difference.new), quoted(difference.old)
            )


def _differences(path: str, old: object, new: object) -> Iterator[tuple[str, object, object]]:
    """Yields the path of each difference with its old and new value; of lists of objects only the entries that "
    "differ."""
    if old == new:
        return
    old_objects, new_objects = _list_of_objects(old), _list_of_objects(new)
    if old_objects is None or new_objects is None or len(old_objects) != len(new_objects):
        yield path, old, new
        return
    for number, (old_object, new_object) in enumerate(zip(old_objects, new_objects, strict=True)):
        # In the order of the configuration.
        for entry in {**old_object, **new_object}:
            yield from _differences(f"{path}[{number}].{entry}", old_object.get(entry), new_object.get(entry))


def _list_of_objects(value: object) -> list[dict[str, object]] | None:
    """Returns the value if it is a list whose entries are all JSON objects, else None."""
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        return None
    return value
