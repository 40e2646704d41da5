"""The zip that GLUE's leaderboard takes: made of finished runs' test predictions, and held to its form.

It holds eleven files, each with the header `index<tab>prediction` and one row for every row of an official test set, in
that order, labels as in the official files (https://gluebenchmark.com, "How do I submit?"). WNLI is the majority
class, as the paper has it (B.1); AX is predicted by the MNLI model.
"""

import io
import logging
import math
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_repro.configs import GlueZipConfig
from bert_repro.errors import UserError
from bert_repro.results import read_results
from bert_repro.tasks.classification import GlueTask
from bert_repro.tasks.glue import glue_tasks
from bert_repro.tasks.split_rows import SPLIT_ROWS
from bert_repro.utils.files import atomic_file
from bert_repro.utils.readers import listed, read_json, shown
from bert_repro.utils.tables import read_tsv

logger = logging.getLogger("bert_repro")

HEADER = "index\tprediction"
WNLI_MAJORITY = "not_entailment"
"""Of the 635 training rows 323 have it."""
_LONGEST_ROW = 100  # bytes, far above an index and the longest label
_SHOWN_FAULTS = 5  # of one file; the others are counted


@dataclass(frozen=True, eq=False)
class LeaderboardFile:
    """One file of the zip.

    Args:
        name: its name.
        task: whose predictions it holds.
        split: the task's name for that set.
    """

    name: str
    task: GlueTask
    split: str = "test"

    @property
    def rows(self) -> int:
        """How many rows the official test set has."""
        return SPLIT_ROWS[self.task.name, self.split]

    @property
    def labels(self) -> tuple[str, ...]:
        """The spelling of every label; empty for numbers."""
        return () if self.task.number_range else self.task.file_labels or self.task.label_names

    def spelled(self, prediction: str) -> str:
        """Returns a prediction of our files in the zip's spelling: its label's, or a number within the range."""
        if self.task.number_range is None:
            names = self.task.label_names
            return self.labels[names.index(prediction)] if prediction in names else prediction
        low, high = self.task.number_range
        number = _number(prediction)
        return prediction if math.isnan(number) else f"{min(max(number, low), high):.6f}"

    def fault(self, prediction: str) -> str | None:
        """Returns what is wrong with a prediction as written in the zip."""
        if self.task.number_range is None:
            fits, wanted = prediction in self.labels, f"one of: {', '.join(self.labels)}"
        else:
            low, high = self.task.number_range
            fits, wanted = low <= _number(prediction) <= high, f"a number from {low:g} to {high:g}"
        return None if fits else f"prediction {shown(prediction)}; it must be {wanted}"


FILES = (
    LeaderboardFile("AX.tsv", glue_tasks.AX),
    LeaderboardFile("CoLA.tsv", glue_tasks.COLA),
    LeaderboardFile("MNLI-m.tsv", glue_tasks.MNLI, "test_matched"),
    LeaderboardFile("MNLI-mm.tsv", glue_tasks.MNLI, "test_mismatched"),
    LeaderboardFile("MRPC.tsv", glue_tasks.MRPC),
    LeaderboardFile("QNLI.tsv", glue_tasks.QNLI),
    LeaderboardFile("QQP.tsv", glue_tasks.QQP),
    LeaderboardFile("RTE.tsv", glue_tasks.RTE),
    LeaderboardFile("SST-2.tsv", glue_tasks.SST2),
    LeaderboardFile("STS-B.tsv", glue_tasks.STSB),
    LeaderboardFile("WNLI.tsv", glue_tasks.WNLI),
)


@dataclass(frozen=True)
class GlueRun:
    """A run of a GLUE task, as its results.json describes it."""

    folder: Path
    results: Mapping[str, Any]

    def predictions(self, split: str) -> Path | None:
        """Returns the file of its predictions for a split, if it made one."""
        written = self.results.get("splits", {}).get(split, {}).get("files", [])
        path = self.folder / f"predictions.{split}.tsv"
        return path if path.name in written and path.is_file() else None

    @property
    def model(self) -> str:
        """The folder or id of the model that predicted."""
        trained = "train" in self.results
        return str(self.folder) if trained else self.results["settings"]["model_name_or_path"]


# -------------------------------------------------------------------------------------------------------- making a zip


def make_glue_zip(config: GlueZipConfig) -> Path:
    """Gathers the test predictions of finished runs into a zip and holds it to the leaderboard's form.

    Returns:
        The zip.

    Raises:
        UserError: something is missing or wrong, all of which is logged line by line; no zip is written.
    """
    target = Path(config.output_file)
    if target.exists() and not config.overwrite_output_file:
        raise UserError(f"--output_file {target} exists; name another, or give --overwrite_output_file")
    runs = find_runs(Path(folder) for folder in config.runs)
    chosen = {file: _run_for(file, runs) for file in FILES if file.task is not glue_tasks.WNLI}
    contents = {file.name: _content(file, run) for file, run in chosen.items() if run is not None}
    majority = next(file for file in FILES if file.task is glue_tasks.WNLI)
    contents[majority.name] = _text([(str(row), majority.spelled(WNLI_MAJORITY)) for row in range(majority.rows)])
    logger.info("%s: the majority class for every row, as the paper has it", majority.name)
    faults = [*find_faults(contents), *_foreign_diagnostics(chosen)]
    _refuse(faults, f"{target} is not written", hints=_commands(chosen))
    _write_zip(target, contents)
    logger.info("%s: %d files, ready for the leaderboard", target, len(contents))
    return target


def find_runs(folders: Iterable[Path]) -> list[GlueRun]:
    """Finds the finished runs of GLUE tasks in some folders, at any depth, but not below a run's own folder.

    Raises:
        UserError: a folder does not exist, or a results.json cannot be read.
    """
    names = {task.name for task in glue_tasks.GLUE_TASKS}
    found: dict[Path, GlueRun] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"--runs {folder}: no such folder; name one that holds finished runs")
        for path in _results_files(folder):
            results = _read_results(path)
            if results.get("task") in names:
                found[path.parent.resolve()] = GlueRun(path.parent, results)
    return list(found.values())


def _results_files(folder: Path) -> Iterator[Path]:
    if (folder / "results.json").is_file():
        yield folder / "results.json"
        return
    for below in sorted(folder.iterdir()):
        if below.is_dir() and not below.name.startswith("."):
            yield from _results_files(below)


def _read_results(path: Path) -> Mapping[str, Any]:
    results = read_json(path, damaged="make the run again")
    return read_results(path) if isinstance(results, dict) and "task" in results else {}


def _run_for(file: LeaderboardFile, runs: Iterable[GlueRun]) -> GlueRun | None:
    found = [run for run in runs if run.results["task"] == file.task.name and run.predictions(file.split)]
    if len(found) > 1:
        folders = " and ".join(str(run.folder) for run in found)
        raise UserError(f"--runs: {folders} predict {file.split} of {file.task.name} all; name only one of them")
    return found[0] if found else None


def _content(file: LeaderboardFile, run: GlueRun) -> bytes:
    path = run.predictions(file.split)
    assert path is not None, "the run was chosen by its predictions"
    columns = read_tsv(path, HEADER.split("\t")).columns
    rows = zip(columns["index"], columns["prediction"], strict=True)
    return _text((index, file.spelled(prediction)) for index, prediction in rows)


def _text(rows: Iterable[tuple[str, str]]) -> bytes:
    return "".join(f"{line}\n" for line in (HEADER, *("\t".join(row) for row in rows))).encode()


def _foreign_diagnostics(chosen: Mapping[LeaderboardFile, GlueRun | None]) -> list[str]:
    """Returns a fault if AX was predicted by another model than MNLI; what was moved since cannot be seen."""
    models = {file.task.name: run.model for file, run in chosen.items() if run is not None}
    ax, mnli = models.get("ax"), models.get("mnli")
    if ax is None or mnli is None or ax == mnli:
        return []
    folders = [Path(model).expanduser() for model in (ax, mnli)]
    if not all(folder.exists() for folder in folders):
        logger.warning("AX.tsv: %s predicted it, MNLI was predicted by %s; make sure that they are the same", ax, mnli)
        return []
    if folders[0].resolve() == folders[1].resolve():
        return []
    return [f"AX.tsv: predicted by {ax}, but MNLI by {mnli}; predict AX with the MNLI model"]


def _commands(chosen: Mapping[LeaderboardFile, GlueRun | None]) -> dict[str, str]:
    """Returns, for every file without a run, the command that makes one."""
    mnli = next(
        (run.model for file, run in chosen.items() if run is not None and file.task is glue_tasks.MNLI), "MNLI_RUN"
    )
    commands = {}
    for file, run in chosen.items():
        if run is None:
            model = mnli if file.task is glue_tasks.AX else f"{file.task.name.upper()}_RUN"
            commands[file.name] = (
                f"bert-repro run_glue --task_name {file.task.name} --model_name_or_path {model} --do_predict"
            )
    return commands


def _write_zip(target: Path, contents: Mapping[str, bytes]) -> None:
    """Writes the zip so that the same predictions give the same bytes, and never a part of it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in sorted(contents.items()):
            entry = zipfile.ZipInfo(name)  # dated 1980
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, content)
    with atomic_file(target, binary=True) as file:
        file.write(buffer.getvalue())


# ------------------------------------------------------------------------------------------------------ checking a zip


def check_glue_zip(config: Any) -> None:
    """Checks that a zip has the leaderboard's form.

    Raises:
        UserError: it is no zip, or something is missing or wrong in it, all of which is logged line by line.
    """
    path = Path(config.zip_file)
    contents, faults = read_zip(path)
    _refuse([*faults, *find_faults(contents)], f"{path} is not ready for the leaderboard")
    logger.info("%s: %d files, ready for the leaderboard", path, len(contents))


def read_zip(path: Path) -> tuple[dict[str, bytes], list[str]]:
    """Reads the files of a zip by name, and what is wrong with the zip itself.

    Only the eleven files are unpacked, none beyond a size that its rows can have; of others the name is read. Damaged,
    repeated and oversized files are faults.

    Raises:
        UserError: it is missing or no zip.
    """
    known = {file.name: file for file in FILES}
    contents: dict[str, bytes] = {}
    faults = []
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                name = entry.filename
                limit = _LONGEST_ROW * (known[name].rows + 1) if name in known else 0
                if name in contents:
                    faults.append(f"{listed([name])}: is in the zip more than once")
                    continue
                contents[name] = b""
                if limit and entry.file_size > limit:
                    faults.append(f"{name}: unpacks to {entry.file_size:,} bytes; it cannot have more than {limit:,}")
                elif limit:
                    try:
                        contents[name] = archive.read(entry)
                    except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, NotImplementedError) as error:
                        faults.append(f"{name}: cannot be read ({error})")  # damaged or encrypted
    except OSError as error:
        raise UserError(f"--zip_file {path}: cannot be read ({error.strerror}); name an existing zip") from error
    except zipfile.BadZipFile as error:
        raise UserError(f"--zip_file {path}: is no zip ({error}); make it again") from error
    return contents, faults


def find_faults(contents: Mapping[str, bytes]) -> list[str]:
    """Lists everything that is missing or wrong, one line each; empty when the leaderboard would take it.

    Args:
        contents: the files of the zip by name.
    """
    known = {file.name: file for file in FILES}
    faults = []
    others = [name for name in contents if name not in known]
    for name in others[:_SHOWN_FAULTS]:
        faults.append(
            f"{listed([name])}: is none of the eleven files; they lie at the top of the zip, in this spelling"
        )
    if len(others) > _SHOWN_FAULTS:
        faults.append(f"{len(others) - _SHOWN_FAULTS} more files that are none of the eleven")
    for name, file in known.items():
        if name not in contents:
            faults.append(f"{name}: missing; it needs {file.rows} predictions for {file.split} of {file.task.title}")
            continue
        found = list(_file_faults(file, contents[name]))
        faults += [f"{name}{fault}" for fault in found[:_SHOWN_FAULTS]]
        if len(found) > _SHOWN_FAULTS:
            faults.append(f"{name}: {len(found) - _SHOWN_FAULTS} more faults of this kind")
    return faults


def _file_faults(file: LeaderboardFile, content: bytes) -> Iterator[str]:
    """Yields what is wrong with one file; lines are numbered as an editor numbers them."""
    try:
        lines = content.decode("utf-8").replace("\r\n", "\n").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        yield f": byte 0x{content[error.start]:02x} is not UTF-8"
        return
    if lines[0] != HEADER:
        yield f", line 1: {shown(lines[0])}; it must be index and prediction with a tab between them"
    rows = lines[1:]
    if len(rows) != file.rows:
        yield f": {len(rows)} predictions; the official test set has {file.rows} rows"
    for number, row in enumerate(rows):
        fields = row.split("\t")
        if len(fields) != 2:
            yield f", line {number + 2}: {shown(row)} has {len(fields)} columns; it must have index and prediction"
            continue
        if fields[0] != str(number):
            must = f"it must be {number}, rows are in the order of the test set"
            yield f", line {number + 2}: index {shown(fields[0])}; {must}"
        if fault := file.fault(fields[1]):
            yield f", line {number + 2}: {fault}"


def _refuse(faults: list[str], what: str, *, hints: Mapping[str, str] | None = None) -> None:
    """Logs every fault and raises `UserError` if there is one."""
    if not faults:
        return
    files = list(dict.fromkeys(fault.split(":")[0].split(",")[0] for fault in faults))
    for fault in faults:
        hint = (hints or {}).get(fault.split(":")[0])
        logger.error("%s%s", fault, f": {hint}" if hint else "")
    raise UserError(f"{what}: {len(faults)} faults, listed above, in {', '.join(files)}")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
