"""The folder `<output_dir>.preparing`, where a corpus comes about: several machines may work in it at once.

    settings.json             what decides the parts; whoever comes later must agree
    part-00000.arrow ...      finished parts, each with its record part-00000.json
    shard-3-of-16.json ...    shards that have finished
    (the files of the corpus  once all parts are joined, the manifest last)

Shard k of n prepares the parts whose number leaves k - 1 when divided by n. So every shard reads all of the input,
which is cheap beside splitting and tokenising, and the parts are those of a preparation without shards.
"""

import json
import os
import re
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_repro.corpus import writer
from bert_repro.corpus.prepared_corpus import MANIFEST
from bert_repro.errors import UserError

SETTINGS_FILE = "settings.json"
_SHARD_RECORD = re.compile(r"shard-\d+-of-\d+\.json")


@dataclass(frozen=True)
class Shard:
    """A share of the parts.

    Args:
        number: from 1.
        count: shards in all.
    """

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """From `3/16`, as `CorpusConfig.validate` has checked it."""
        number, _, count = text.partition("/")
        return cls(int(number), int(count))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def holds(self, part: int) -> bool:
        """Whether a part, counted from 0, belongs to this shard."""
        return part % self.count == self.number - 1


def work_folder(output_dir: Path) -> Path:
    """Where the corpus of `output_dir` is prepared."""
    return output_dir.with_name(output_dir.name + ".preparing")


def open_folder(folder: Path, settings: dict[str, Any], overwrite: bool) -> None:
    """Creates the folder, or enters the one of an interrupted preparation or of other shards.

    Args:
        folder: from `work_folder`.
        settings: all that decides what the parts hold.
        overwrite: remove what was prepared there with other settings.

    Raises:
        UserError: the folder holds something else.
    """
    if not folder.exists():
        _create(folder, settings)
    found = _found_settings(folder)
    if found == settings:
        return
    if not overwrite:
        if found is None:
            raise UserError(f"{folder} exists and is no corpus in preparation: remove it or choose another output_dir")
        require_equal(settings, found, str(folder), "choose another output_dir or give --overwrite_output_dir")
    shutil.rmtree(folder)
    _create(folder, settings)


def require_equal(settings: dict[str, Any], found: dict[str, Any], what: str, mend: str) -> None:
    """Raises `UserError` with the first setting in which `what` was prepared otherwise than asked for now."""
    for name, value in settings.items():
        if found.get(name) != value:
            wanted = "" if name == "sources" else f" ({found.get(name)} there, {value} asked for)"
            raise UserError(f"{what} was prepared with other settings: {name} differs{wanted}; {mend}")


def finish_shard(folder: Path, shard: Shard, num_parts: int, settings: dict[str, Any]) -> None:
    """Records that a shard has written all its parts.

    Args:
        folder: from `work_folder`.
        shard: the shard.
        num_parts: parts of the whole input.
        settings: those the shard was prepared with; the join compares them, wherever the files were copied from.
    """
    record = {"shard": str(shard), "num_parts": num_parts, "settings": settings}
    writer.write_json(folder / f"shard-{shard.number}-of-{shard.count}.json", record)


def require_all_parts(folder: Path, settings: dict[str, Any]) -> None:
    """Checks that the shards in a folder make a whole corpus.

    Args:
        folder: from `work_folder`.
        settings: those of the join.

    Raises:
        UserError: no shard has finished; one was prepared otherwise; parts are missing or damaged. Names the shards.
    """
    records = _shard_records(folder)
    if not records:
        raise UserError(f"--join: no shard has finished in {folder}; prepare them with --shard and the same output_dir")
    for record in records:
        mend = "prepare that shard again with the settings of the others"
        require_equal(settings, record["settings"], f"shard {record['shard']} in {folder}", mend)
        if record["num_parts"] != records[0]["num_parts"]:
            raise UserError(
                f"--join: shard {record['shard']} read {record['num_parts']} parts, shard {records[0]['shard']}"
                f" {records[0]['num_parts']}: their input differs; prepare one of them again"
            )
    count = max(Shard.parse(record["shard"]).count for record in records)
    missing = set(range(records[0]["num_parts"])) - set(writer.finished_parts(folder))
    if missing:
        shards = [str(Shard(number, count)) for number in sorted({part % count + 1 for part in missing})]
        raise UserError(
            f"--join: {len(missing)} of {records[0]['num_parts']} parts are missing or damaged in {folder}: prepare"
            f" shard {', '.join(shards)} first"
        )


def is_joined(folder: Path, settings: dict[str, Any]) -> bool:
    """Whether the folder holds a whole corpus already, made with these settings, that was not yet put in place."""
    return (folder / MANIFEST).is_file() and _found_settings(folder) == settings


def corpus_files(folder: Path) -> dict[str, int]:
    """Sizes in bytes of the files that belong to the corpus, by name."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not _is_leftover(path))
    return {path.relative_to(folder).as_posix(): os.path.getsize(path) for path in files}


def put_in_place(folder: Path, output_dir: Path) -> None:
    """Makes a joined folder the output folder, in place of what lies there."""
    for path in [path for path in folder.iterdir() if _is_leftover(path)]:
        path.unlink()
    if output_dir.exists():
        shutil.rmtree(output_dir)
    folder.rename(output_dir)


def _create(folder: Path, settings: dict[str, Any]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Shards start at the same moment: the folder appears with its settings or not at all.
    temporary = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}")
    temporary.mkdir()
    try:
        writer.write_json(temporary / SETTINGS_FILE, settings)
        temporary.rename(folder)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        if not folder.is_dir():
            raise


def _found_settings(folder: Path) -> dict[str, Any] | None:
    if (folder / SETTINGS_FILE).is_file():
        found: dict[str, Any] = json.loads((folder / SETTINGS_FILE).read_text(encoding="utf-8"))
        return found
    if (folder / MANIFEST).is_file():
        return dict(json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["settings"])
    return None


def _shard_records(folder: Path) -> list[dict[str, Any]]:
    if not folder.is_dir():
        return []
    paths = sorted(path for path in folder.iterdir() if _SHARD_RECORD.fullmatch(path.name))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def _is_leftover(path: Path) -> bool:
    is_record = _SHARD_RECORD.fullmatch(path.name) or writer.RECORD.fullmatch(path.name)
    return bool(is_record) or path.name == SETTINGS_FILE or path.suffix == ".tmp"
