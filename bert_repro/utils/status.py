"""status.json: how a run ended, in one place that survives launchers, which turn every exit code into 1."""

import json
import os
import tempfile
from pathlib import Path

from bert_repro.errors import UserError
from bert_repro.utils.distributed import is_main_process
from bert_repro.utils.files import is_running, write_json
from bert_repro.utils.locks import unlock
from bert_repro.utils.output_files import STATUS
from bert_repro.utils.redaction import redacted


def try_writing(folder: Path) -> None:
    """Raises OSError where nothing can be written in a folder, before hours are spent on what belongs there."""
    with tempfile.TemporaryFile(dir=folder):
        pass


def claim(output_dir: Path) -> None:
    """Marks the folder as this process's run: code null, reason "running"."""
    output_dir.mkdir(parents=True, exist_ok=True)
    write_json(output_dir / STATUS, {"code": None, "reason": "running", "pid": os.getpid()})


def finish(output_dir: str | None, code: int, reason: str) -> None:
    """Records how the run ended. A run that was refused its folder leaves the record of the earlier run alone."""
    if output_dir is None:
        return
    folder = Path(output_dir)
    if not is_main_process():
        _report_killed_main_process(folder)
        return
    unlock(folder)
    try:
        if code == 0 or is_free(folder) or _claimed_here(folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / STATUS, {"code": code, "reason": redacted(reason)})
    except (OSError, UserError):
        return  # a full or read-only disk has already been reported as the reason of the exit


def is_free(folder: Path) -> bool:
    """Returns whether the folder is absent or holds nothing but the status of a run that produced nothing."""
    return not folder.exists() or all(entry.name == STATUS for entry in folder.iterdir())


def exit_code(folder: Path) -> int | None:
    """Returns the exit code of the run that ended in a folder; None where none ended there."""
    try:
        code = json.loads((folder / STATUS).read_text(encoding="utf-8"))["code"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return code if isinstance(code, int) else None


def _report_killed_main_process(folder: Path) -> None:
    """Says it in the place of a main process on this machine that was killed and could not."""
    if os.environ.get("GROUP_RANK", "0") != "0":
        return
    try:
        content = json.loads((folder / STATUS).read_text(encoding="utf-8"))
        if content["code"] is None and not is_running(content["pid"]):
            write_json(folder / STATUS, {"code": 137, "reason": "the main process was killed"})
    except (OSError, UserError, ValueError, KeyError, TypeError):
        return


def _claimed_here(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / STATUS).read_text(encoding="utf-8")).get("pid") == os.getpid())
    except (OSError, ValueError):
        return False
