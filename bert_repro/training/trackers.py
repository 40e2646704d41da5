"""Experiment trackers: every one that Accelerate knows gets the settings, the log and the final results of a run.

Credentials and servers are the trackers' own business (their logins and environment variables): no setting takes them,
and what is sent has no tokens and no paths of this machine. Trackers run on the main process alone.
"""

import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import get_available_trackers

from bert_repro.configs import RunConfig
from bert_repro.configs.training import TRACKERS
from bert_repro.errors import UserError
from bert_repro.models.loading import first_line
from bert_repro.utils.redaction import redacted, without_machine_paths

logger = logging.getLogger("bert_repro")

_EXTRAS = ("tensorboard", "trackio", "wandb")
"""Trackers that pyproject.toml names as extras."""
_PRIVATE = ("output_dir", "overwrite_output_dir", "report_to", "run_name", "project")
"""Settings that say nothing about a run to who reads its tracker."""


def wanted_trackers(config: RunConfig) -> list[str]:
    """Returns the trackers that a run reports to.

    Raises:
        UserError: the package of one is not installed, or `all` finds none.
    """
    available = [str(name) for name in get_available_trackers()]
    names: list[str] = [name for name in config.report_to if name != "none"]
    if "all" in names:
        if not available:
            raise UserError(f"--report_to all: none is installed; install one of: {', '.join(TRACKERS)}")
        return available
    for name in names:
        if name not in available:
            package = f"'bert-repro[{name}]'" if name in _EXTRAS else name
            raise UserError(f"--report_to {name}: the package is not installed; run: pip install {package}")
    return names


def start_trackers(accelerator: Accelerator, config: RunConfig) -> None:
    """Starts the trackers of `Accelerator(log_with=wanted_trackers(config))` and sends them the run's settings.

    Raises:
        UserError: one does not start, for example because nobody is logged in.
    """
    if not accelerator.log_with or accelerator.trackers:
        return
    project = Path(config.project).name if "tensorboard" in map(str, accelerator.log_with) else config.project
    try:
        accelerator.init_trackers(project, config=_settings(config), init_kwargs=_options(config))
        if accelerator.is_main_process:
            for tracker in accelerator.trackers:
                if tracker.name == "aim":  # Accelerate gives it the project in place of a name
                    tracker.writer.name, tracker.writer.experiment = run_name(config), config.project
    except Exception as error:  # each library has exceptions of its own
        names = " ".join(map(str, accelerator.log_with))
        raise UserError(f"--report_to {names}: does not start: {first_line(error)}") from error


def report(accelerator: Accelerator, values: Mapping[str, Any], step: int) -> None:
    """Sends numbers to all trackers; one that fails is left out from then on, so that training does not end with it."""
    if not accelerator.is_main_process:
        return
    numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
    for tracker in list(accelerator.trackers):
        try:
            tracker.log(numbers, step=step)
        except Exception as error:
            logger.warning("--report_to %s failed (%s); the run continues without it", tracker.name, first_line(error))
            accelerator.trackers.remove(tracker)


def report_results(accelerator: Accelerator, results: Mapping[str, Any]) -> None:
    """Sends the final results of a run: metrics of every split, tokens, seconds and FLOPs of training."""
    if accelerator.trackers:
        report(accelerator, final_values(results), results.get("train", {}).get("steps", 0))


def final_values(results: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers of a run's results as trackers show them, such as `final/validation/accuracy`."""
    splits = results.get("splits") or {"held-out": results}
    metrics = {
        f"final/{split}/{name}": value
        for split, content in splits.items()
        for name, value in content.get("metrics", {}).items()
    }
    train = results.get("train", {})
    names = ("tokens", "seconds", "flops", "mfu", "best_step")
    totals = {f"final/train/{name}": train[name] for name in names if name in train}
    return metrics | totals


def end_trackers(accelerator: Accelerator) -> None:
    """Ends all trackers, however the run ended; a second call does nothing."""
    trackers, accelerator.trackers = list(accelerator.trackers), []
    for tracker in trackers:
        try:
            tracker.finish()
        except Exception as error:
            logger.warning("--report_to %s did not end properly: %s", tracker.name, first_line(error))


def run_name(config: RunConfig) -> str:
    """Returns how trackers name the run: `run_name`, or the output folder's name."""
    return config.run_name or Path(config.output_dir).resolve().name


def _settings(config: RunConfig) -> dict[str, Any]:
    """Returns the settings of a run for a tracker: texts, numbers and flags, without secrets, folders
    of this machine and unset ones."""
    known: dict[str, Any] = without_machine_paths(redacted(asdict(config)))
    settings = {name: value for name, value in known.items() if name not in _PRIVATE}
    return {
        name: value if isinstance(value, str | int | float) else str(value)
        for name, value in settings.items()
        if value not in (None, "", [], ())
    }


def _options(config: RunConfig) -> dict[str, dict[str, Any]]:
    """Returns what each tracker calls the name of a run, and where it writes if it writes beside the run."""
    name = run_name(config)
    options: dict[str, dict[str, Any]] = {
        "wandb": {"name": name},
        "trackio": {"name": name, "resume": "allow" if config.resume_from_checkpoint else "never"},
        "mlflow": {"run_name": name},
        "clearml": {"task_name": name},
        "swanlab": {"experiment_name": name},
        "dvclive": {"exp_name": name, "dir": str(Path(config.output_dir) / "dvclive")},
    }
    if "comet_ml" in config.report_to:
        import comet_ml  # type: ignore[import-not-found, unused-ignore]

        options["comet_ml"] = {"experiment_config": comet_ml.ExperimentConfig(name=name)}
    return options
