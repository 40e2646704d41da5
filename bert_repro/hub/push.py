"""Uploads published folders to the Hub, each as one commit or not at all, and checkpoints as revisions.

Only files that belong to a published model are uploaded (`PUBLISHED`): no optimizer states, and no predictions, which
can repeat data that may not be passed on. Files of an earlier push that no longer exist here are deleted from the
repository by the same commit; files that others put there stay.
"""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_repro.configs import PushConfig
from bert_repro.errors import UserError, flag
from bert_repro.hub.card import make_card, renamed
from bert_repro.hub.upload import hub_errors, prepare_repository, send, show_contents
from bert_repro.models.loading import CONFIG, check_folder
from bert_repro.results import read_results
from bert_repro.utils.files import (
    CARD,
    CHECKPOINTS,
    CONVERSION,
    POOLING,
    POOLING_MODULES,
    POOLING_TEXT,
    RESULTS,
    SCORES_PLOT,
    STATUS,
    STEP,
    TRAIN_LOG,
    TRAINING_PLOT,
)
from bert_repro.utils.readers import read_json_object, read_utf8
from bert_repro.utils.redaction import redacted, without_machine_paths
from bert_repro.utils.schema import conform

PUBLISHED = (
    CONFIG, "generation_config.json", "model*.safetensors", "model.safetensors.index.json",
    "adapter_config.json", "adapter_model.safetensors", "adapter/*.json", "adapter/*.safetensors",
    "onnx/model.onnx", "onnx/model_fp16.onnx", "onnx/model_quantized.onnx",
    "tokenizer*.json", "special_tokens_map.json", "vocab.txt", "*_bert_repro.py",
    POOLING_MODULES, POOLING_TEXT, f"{POOLING}/config.json",
    CARD, RESULTS, TRAIN_LOG, TRAINING_PLOT, SCORES_PLOT, CONVERSION,
)  # fmt: skip
"""The files of a folder that are uploaded, as patterns of paths in it."""

_ALL = "all"
_WRITE_AGAIN = "Write the file again."
# These files can contain paths of this machine, which are removed from what is sent.
_WITH_PATHS = (RESULTS, "adapter_config.json", "adapter/adapter_config.json")


def push_to_hub(config: PushConfig) -> str | None:
    """Uploads a folder and, if asked, checkpoints of its run as revisions; a dry run lists what would be uploaded.

    Returns:
        Address of the commit on main; None for a dry run.

    Raises:
        UserError: see `push_folder`; or the run has no checkpoint of a step that was asked for.
    """
    from huggingface_hub.utils import validate_repo_id

    # A checkpoint is recognized by the name of its folder, which "." would hide.
    folder = Path(config.folder).resolve()
    with hub_errors(config.hub_model_id):
        validate_repo_id(config.hub_model_id)
    # Everything is checked before anything is sent.
    checkpoints = _chosen_checkpoints(folder, config.checkpoints)
    checkpoint_contents = [_checkpoint_contents(folder, checkpoint, config.hub_model_id) for checkpoint in checkpoints]

    if config.dry_run:
        contents = _contents(folder, config.hub_model_id)
        show_contents(contents, config.hub_model_id)
        sent_names = {name.split("/")[0] for name in contents}
        left = sorted(path.name for path in folder.iterdir() if path.name not in sent_names)
        if left:
            sys.stdout.write(f"stays in {folder}: {', '.join(left)}\n")
        for checkpoint, contents in zip(checkpoints, checkpoint_contents, strict=True):
            show_contents(contents, f"revision {revision_name(checkpoint)} of {config.hub_model_id}")
        return None

    address = push_folder(folder, config.hub_model_id, private=config.hub_private_repo)
    for checkpoint, contents in zip(checkpoints, checkpoint_contents, strict=True):
        send(config.hub_model_id, contents, checkpoint, PUBLISHED, revision=revision_name(checkpoint))
    return address


def published_files(folder: Path) -> list[Path]:
    """Returns the files of a folder that a push uploads, relative to it, sorted.

    Raises:
        UserError: the folder has no model that loads, a file is a link, or the run in it has not ended.
    """
    status = read_json_object(folder / STATUS) if (folder / STATUS).exists() else {}
    if status.get("code", 0) != 0 and not (folder / RESULTS).exists():
        raise UserError(
            f"{folder}: its run has not ended ({status.get('reason')}), so there is no finished model. Continue it "
            f"with {flag('resume_from_checkpoint', 'latest')}, or push one of its checkpoints."
        )

    paths: set[Path] = set()
    for pattern in PUBLISHED:
        paths.update(path.relative_to(folder) for path in folder.glob(pattern))
    for path in sorted(paths):
        if (folder / path).resolve() != folder.resolve() / path:
            raise UserError(f"{folder / path} is a link, which a push does not follow. Put the file itself there.")

    has_weights = any(path.match("model*.safetensors") for path in paths)
    has_adapter = any(path.name == "adapter_model.safetensors" for path in paths)
    if not (has_weights or has_adapter):
        raise UserError(
            f"{folder} has no model.safetensors. Pass the folder of a finished run or of a checkpoint.",
            setting="folder",
        )
    if has_weights:
        check_folder(folder)
    return sorted(paths)


def push_folder(folder: Path, repo_id: str, *, private: bool | None = None) -> str:
    """Creates the repository if necessary and uploads a run's output folder to its main branch, as one commit.

    Args:
        folder: the folder.
        repo_id: for example `org/bert-repro-base`; the card uses it as the model's name.
        private: see `prepare_repository`.

    Returns:
        Address of the commit that contains the folder.

    Raises:
        UserError: not logged in, no right or no room to write there, or a broken connection.
    """
    contents = _contents(folder, repo_id)
    prepare_repository(repo_id, private=private)
    return send(repo_id, contents, folder, PUBLISHED)


def _contents(folder: Path, repo_id: str) -> dict[str, bytes | Path]:
    """Returns the files to send: path in the repository -> file, or changed content.

    config.json's `auto_map` names the repository, so that a model fine-tuned from it elsewhere and saved without the
    code still finds the code.
    """
    contents: dict[str, bytes | Path] = {path.as_posix(): folder / path for path in published_files(folder)}
    if CARD in contents:
        contents[CARD] = renamed(read_utf8(folder / CARD), repo_id).encode()
    for name in (CONFIG, *_WITH_PATHS):
        if name not in contents:
            continue
        # A text that UTF-8 cannot express is refused here, before anything is sent.
        content = conform(read_json_object(folder / name), dict[str, Any], str(folder / name), _WRITE_AGAIN)
        record = without_machine_paths(redacted(content))
        if name == CONFIG and isinstance(record.get("auto_map"), dict):
            record["auto_map"] = _code_in_repository(record["auto_map"], repo_id)
        contents[name] = (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode()
    return contents


def _code_in_repository(auto_map: dict[str, Any], repo_id: str) -> dict[str, Any]:
    """Prefixes the classes of an `auto_map` with the repository. transformers writes a list for a tokenizer's pair."""
    named: dict[str, Any] = {}
    for auto_class, place in auto_map.items():
        if isinstance(place, list):
            named[auto_class] = [item and f"{repo_id}--{str(item).split('--')[-1]}" for item in place]
        else:
            named[auto_class] = f"{repo_id}--{str(place).split('--')[-1]}"
    return named


# --- Checkpoints as revisions -----------------------------------------------------------------------------------------


def revision_name(checkpoint: Path) -> str:
    """Returns the Hub's revision for a checkpoint: step-500 -> step-000500, so that names sort by step."""
    return f"{STEP}{_step(checkpoint):06d}"


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix(STEP))


def _chosen_checkpoints(folder: Path, wanted: Sequence[str]) -> list[Path]:
    """Returns the checkpoints of a run to publish, by step."""
    if not wanted:
        return []
    found = [path for path in (folder / CHECKPOINTS).glob(f"{STEP}*") if re.fullmatch(rf"{STEP}\d+", path.name)]
    by_step = {_step(path): path for path in sorted(found, key=_step)}
    if not by_step:
        raise UserError(
            f"{folder / CHECKPOINTS} has no checkpoints. A run keeps them with {flag('save_steps')} and "
            f"{flag('save_total_limit')}.",
            setting="checkpoints",
        )
    if list(wanted) == [_ALL]:
        return list(by_step.values())
    chosen = []
    for word in wanted:
        if not word.isdigit() or int(word) not in by_step:
            steps = " ".join(map(str, by_step))
            raise UserError(
                f"{flag('checkpoints', word)}: the run has no checkpoint of this step. It has: {steps}.",
                setting="checkpoints",
            )
        chosen.append(by_step[int(word)])
    return chosen


def _checkpoint_contents(folder: Path, checkpoint: Path, repo_id: str) -> dict[str, bytes | Path]:
    """Returns the files of a checkpoint to send, with a card that says how far the run had come."""
    contents = _contents(checkpoint, repo_id)
    results: dict[str, Any] = dict(read_results(folder))
    step = _step(checkpoint)
    row = _log_row(folder / TRAIN_LOG, step)
    last_step = results.get("train", {}).get("steps")
    note = f"This revision is the checkpoint after step {step:,}"
    if last_step:
        note += f" of {last_step:,}"
    if row.get("tokens"):
        note += f", when the run had read {row['tokens']:,} tokens"
    # The scores are those of the finished model, which is on main.
    for name in ("metrics", "splits", "rows_scored", "split", "mlm_breakdown", "baselines"):
        results.pop(name, None)
    data = dict(results.get("data", {}))
    data["note"] = f"{note}. The scores of the finished model are on the main revision."
    results["data"] = data
    results["train"] = {**results.get("train", {}), "steps": step, "tokens": row.get("tokens")}
    contents[CARD] = make_card(results, repo_id).encode()
    return contents


def _log_row(path: Path, step: int) -> dict[str, Any]:
    """Returns the last row of a training log up to a step; empty if there is no log."""
    last: dict[str, Any] = {}
    if not path.exists():
        return last
    for line in read_utf8(path).splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if "tokens" in row and row.get("step", step + 1) <= step:
            last = row
    return last
