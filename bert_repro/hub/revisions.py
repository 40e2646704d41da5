"""Pushes a run: its published folder, and its checkpoints as revisions of the same repository.

`from_pretrained(repo_id, revision="step-100000")` loads such a checkpoint.
"""

import logging
import sys
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bert_repro.configs import PushConfig
from bert_repro.errors import UserError
from bert_repro.hub.card import make_card
from bert_repro.hub.push import MAIN, check_card, check_repo_id, contents_for_others, published_files, push_folder
from bert_repro.models.configuration_bert_repro import AUTO_CLASSES
from bert_repro.results import read_results
from bert_repro.utils.files import CHECKPOINTS, MANIFEST, RESULTS, STEP, step_of
from bert_repro.utils.readers import read_json_object

logger = logging.getLogger("bert_repro")

_ABOUT_THE_END = (
    "metrics", "splits", "split", "rows_scored", "wall_time_seconds", "sweep", "primary_metric", "degenerate",
)  # fmt: skip
_TOTALS = ("tokens", "seconds", "flops", "mfu")  # of the complete run


def push_to_hub(config: PushConfig) -> list[str]:
    """Uploads a folder and, where asked, its run's checkpoints; or lists what would be uploaded.

    Returns:
        Addresses of the commits.

    Raises:
        UserError: see `bert_repro.hub.push.push_folder`; a dry run finds all of it that is not up to the Hub.
    """
    folder = Path(config.folder).resolve()  # a checkpoint is known by its name, which "." hides
    if not folder.is_dir():
        raise UserError(f"--folder {folder}: no such folder; name the output folder of a finished run")
    check_repo_id(config.hub_model_id)
    folders = [*(checkpoints_of(folder) if config.checkpoints else []), folder]
    for path in folders:
        published_files(path)  # before any of them is sent
    commits = []
    for path in folders:
        revision = revision_of(path) if path != folder or config.hub_revision is None else config.hub_revision
        card = None
        if step_of(path) is not None:
            card = checkpoint_card(path, results_of_checkpoint(path), config.hub_model_id)
        if config.dry_run:
            _show(path, config.hub_model_id, revision, card)
        else:
            commits.append(
                push_folder(path, config.hub_model_id, private=config.hub_private_repo, revision=revision, card=card)
            )
    return commits


def _show(folder: Path, repo_id: str, revision: str, card: str | None) -> None:
    """Writes the files that a push would send, with their sizes, and the rest, which stays."""
    files = published_files(folder)
    check_card(folder, card)
    sizes = {path.as_posix(): (folder / path).stat().st_size for path in files}
    sizes |= {name: len(content) for name, content in contents_for_others(folder, repo_id, card).items()}
    lines = [f"{size:>15,}  {name}" for name, size in sorted(sizes.items())]
    left = sorted(path.name for path in folder.iterdir() if path.name not in {name.split("/")[0] for name in sizes})
    lines += [f"{sum(sizes.values()):>15,}  bytes in {len(sizes)} files to {repo_id} ({revision})"]
    lines += [f"stays in {folder}: {', '.join(left)}"] if left else []
    sys.stdout.write("\n".join(lines) + "\n")


def revision_of(folder: Path) -> str:
    """Returns the branch that a folder is pushed to by default: `step-N` for a checkpoint, else `main`."""
    return folder.name if step_of(folder) is not None else MAIN


def checkpoints_of(folder: Path) -> list[Path]:
    """Returns the checkpoints of a run, in the order of their steps.

    Raises:
        UserError: it has none.
    """
    found = [path for path in (folder / CHECKPOINTS).glob(f"{STEP}*") if step_of(path) is not None]
    if not found:
        raise UserError(f"{folder / CHECKPOINTS} holds no checkpoint; leave --checkpoints out")
    return sorted(found, key=lambda path: step_of(path) or 0)


def checkpoint_card(checkpoint: Path, results: Mapping[str, Any], repo_id: str) -> str:
    """Returns the card of a checkpoint: that of its run, without the scores, which are those of the finished model.

    Args:
        checkpoint: its folder.
        results: what is known of the run; see `bert_repro.hub.card`.
        repo_id: the repository.

    Raises:
        UserError: the checkpoint holds an adapter alone.
    """
    if not (checkpoint / "config.json").exists():
        raise UserError(
            f"{checkpoint}: holds an adapter alone, no model; leave --checkpoints out, and push the finished run"
        )
    config = read_json_object(checkpoint / "config.json")
    known = {name: value for name, value in results.items() if name not in _ABOUT_THE_END}
    upstream = (config.get("architectures") or ["BertModel"])[0]
    ours = next((head.ours for head in AUTO_CLASSES.values() if head.upstream == upstream), upstream)
    known["model"] = {"class": ours, "model_type": config["model_type"], **results.get("model", {})}
    train = {name: value for name, value in results.get("train", {}).items() if name not in _TOTALS}
    known["train"] = {**train, "steps": step_of(checkpoint), "steps_of_the_run": _steps(results)}
    return make_card({**known, "revision": checkpoint.name}, repo_id)


def results_of_checkpoint(checkpoint: Path) -> dict[str, Any]:
    """Returns what is known of the run of a checkpoint: its results.json, else what the checkpoint's manifest says."""
    run = checkpoint.parents[1]
    if (run / RESULTS).exists():
        return dict(read_results(run))
    manifest = checkpoint / MANIFEST
    if not manifest.exists():
        return {}
    environment = read_json_object(manifest)["environment"]
    hardware = {name: environment[name] for name in ("device", "processes", "cpu_threads")}
    return {"versions": environment["versions"], "hardware": hardware}


class RevisionUploads:
    """Uploads checkpoints in a thread of its own while training continues, one at a time.

    A failed upload is a warning, so that it does not end a week of training; `recipes/push_to_hub.py --checkpoints`
    makes up for it as long as the checkpoint is there.

    Args:
        repo_id: the repository.
        private: see `bert_repro.hub.push.prepare_repository`.
        results: what is known of the run, for the cards.
    """

    def __init__(self, repo_id: str, *, private: bool | None, results: Mapping[str, Any]) -> None:
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()  # they would tear the one of the training
        self.repo_id, self.private, self.results = repo_id, private, results
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._running: Future[str] | None = None

    def start(self, checkpoint: Path) -> None:
        """Begins the upload of a checkpoint that is complete."""
        self.wait()
        self._running = self._thread.submit(self._push, checkpoint)

    def wait(self) -> None:
        """Waits for the upload under way; before older checkpoints are removed, for example."""
        if self._running is None:
            return
        try:
            self._running.result()
        except UserError as error:
            logger.warning("%s", error)
        self._running = None

    def _push(self, checkpoint: Path) -> str:
        card = checkpoint_card(checkpoint, self.results, self.repo_id)
        return push_folder(checkpoint, self.repo_id, private=self.private, revision=checkpoint.name, card=card)


def _steps(results: Mapping[str, Any]) -> int | None:
    steps: int | None = results.get("train", {}).get("steps")
    return steps
