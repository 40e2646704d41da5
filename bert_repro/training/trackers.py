"""Experiment trackers, through Accelerate: they get a run's settings, its log and its final results.

Credentials and servers are the trackers' own business (their logins and environment variables), so no setting contains
them. Trackers run on the main process alone, and what is sent has no tokens and no paths of this machine.
"""

import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import get_available_trackers

from bert_repro.configs import RunConfig
from bert_repro.errors import UserError, flag
from bert_repro.utils.readers import first_line
from bert_repro.utils.redaction import redacted, without_machine_paths

logger = logging.getLogger("bert_repro")


def requested_trackers(config: RunConfig) -> list[str]:
    """Returns the names of the trackers that a run reports to, with `all` as it is.

    Raises:
        UserError: the package of one is not installed.
    """
    available = {str(name) for name in get_available_trackers()}
    names = [name for name in config.report_to if name != "none"]
    for name in names:
        if name != "all" and name not in available:
            raise UserError(
                f"{flag('report_to', name)}: the package {name} is not installed. Run: pip install {name}",
                setting="report_to",
            )
    return list(names)


def start_trackers(accelerator: Accelerator, config: RunConfig) -> None:
    """Starts the trackers of `Accelerator(log_with=requested_trackers(config))` and sends them the run's settings.

    Raises:
        UserError: one does not start, for example because nobody is logged in.
    """
    if not accelerator.log_with or accelerator.trackers:
        return
    try:
        accelerator.init_trackers(config.project, config=_settings(config), init_kwargs=_options(config))
    except Exception as error:
        # Each library raises exceptions of its own.
        names = [str(name) for name in accelerator.log_with]
        raise UserError(
            f"{flag('report_to', names)} cannot be started: {first_line(error)}", setting="report_to"
        ) from error


def report(accelerator: Accelerator, values: Mapping[str, Any], step: int) -> None:
    """Sends numbers to all trackers. One that fails is left out from then on, so that training does not end with it."""
    if not accelerator.is_main_process:
        return
    # Texts, such as a metric's name, cannot be plotted.
    numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
    for tracker in list(accelerator.trackers):
        try:
            tracker.log(numbers, step=step)
        except Exception as error:
            logger.warning(
                "%s failed (%s). The run continues without it.", flag("report_to", tracker.name), first_line(error)
            )
            accelerator.trackers.remove(tracker)


def report_results(accelerator: Accelerator, results: Mapping[str, Any]) -> None:
    """Sends the final results of a run, such as `final/validation/accuracy`, and the totals of its training."""
    # A pre-training has one set of metrics, on held-out text; a fine-tuning has one for each split.
    values: dict[str, Any] = {}
    splits = results.get("splits") or {"held-out": results}
    for split, content in splits.items():
        for name, value in content.get("metrics", {}).items():
            values[f"final/{split}/{name}"] = value
    train = results.get("train", {})
    for name, value in train.items():
        values[f"final/train/{name}"] = value
    report(accelerator, values, train.get("steps", 0))


def end_trackers(accelerator: Accelerator) -> None:
    """Ends all trackers, however the run ended. A second call does nothing."""
    # Cleared first, so that a second call finds none.
    trackers = list(accelerator.trackers)
    accelerator.trackers = []
    for tracker in trackers:
        try:
            tracker.finish()
        except Exception as error:
            logger.warning("%s did not end properly: %s", flag("report_to", tracker.name), first_line(error))


def run_name(config: RunConfig) -> str:
    """Returns the name of the run in trackers: `run_name`, or the output folder's name."""
    return config.run_name or Path(config.output_dir).resolve().name


def _settings(config: RunConfig) -> dict[str, Any]:
    """Returns the settings of a run as texts and numbers, without secrets and folders of this machine."""
    settings: dict[str, Any] = without_machine_paths(redacted(asdict(config)))
    # Trackers accept texts and numbers only.
    for name, value in settings.items():
        if not isinstance(value, str | int | float):
            settings[name] = str(value)
    return settings


def _options(config: RunConfig) -> dict[str, dict[str, Any]]:
    """Returns the arguments of those trackers that accept a name."""
    name = run_name(config)
    return {
        "wandb": {"name": name},
        "trackio": {"name": name, "resume": "allow" if config.resume_from_checkpoint else "never"},
        "mlflow": {"run_name": name},
    }
