"""`bert-repro predict`: the answers of a fine-tuned model to the rows of a file or of the standard input.

The order of events:

1. The input is read and divided into parts of `ROWS_PER_PART` rows (`input_rows.py`). Rows that the task cannot read
   are refused.
2. Each part is answered (`predictor.py`) and written to a file of its own (`record_files.py`). Without an output file
   it goes to the standard output at once.
3. The parts are joined to the output file. The scores are logged if the rows have labels.

So memory depends on the size of a part, not on the number of rows. The parts are in a folder next to the output file:

    OUTPUT.predicting/settings.json       the settings, and digests of input and model
                      rows-00000.jsonl    the input
                      part-00000.csv      answers, in the form of the output file
                      part-00000.json     counts, and the SHA-256 of the file above; written last

If the process is interrupted, the same command continues with the parts that are missing. The folder is removed at the
end.
"""

import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, cast

from tqdm.auto import tqdm

from bert_repro import __version__
from bert_repro.configs import GlueConfig, NerConfig, PredictConfig, SquadConfig, SwagConfig
from bert_repro.errors import UserError, flag
from bert_repro.inference.input_rows import (
    InputRows,
    Row,
    RowRange,
    RowsInMemory,
    json_line_rows,
    table_rows,
    tagged_rows,
    write_parquet_rows,
    write_rows,
)
from bert_repro.inference.predictor import Answers, Predictor, ScoredRows, family_of, results_of_training
from bert_repro.inference.record_files import Record, header, join_parts, lines_of, part_suffix, write_part
from bert_repro.models.loading import load_config
from bert_repro.tasks.data import TABLES, TAGGED_SUFFIXES, read_file
from bert_repro.tasks.named_datasets import identity_of, read_split
from bert_repro.utils import tables
from bert_repro.utils.files import (
    atomic_path,
    disk_errors,
    file_digest,
    is_stream,
    json_digest,
    lock,
    unlock,
    write_json,
)
from bert_repro.utils.process import broadcast, is_main_process, world_size
from bert_repro.utils.readers import decoded_lines, format_of, numbered_lines, quoted, read_json_object
from bert_repro.utils.spreadsheets import require_writable
from bert_repro.utils.streams import without_controls
from bert_repro.utils.tables import LineReader

if TYPE_CHECKING:
    import datasets

logger = logging.getLogger("bert_repro")

WORK_FOLDER_SUFFIX = ".predicting"
_SETTINGS_FILE = "settings.json"
_STANDARD_INPUT = "the standard input"
_MODEL_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "results.json")


class PartFacts(TypedDict):
    """The JSON object in part-00000.json."""

    sha256: str
    columns: list[str]
    rows: int
    answered: int
    features: int
    truncated: int
    scored: ScoredRows | None


def predict(config: PredictConfig) -> None:
    """Writes what a fine-tuned model says about every row of the input; see the order of events above.

    Raises:
        UserError: the model is not fine-tuned, the input is not as its task needs it, or the output cannot be written.
    """
    if family_of(config.model_name_or_path) is not NerConfig and (config.output_file or "").endswith(".conll"):
        raise UserError(
            f"{flag('output_file', config.output_file)}: only tags are written as .conll. Use .csv or .jsonl.",
            setting="output_file",
        )
    with _work_folder(config) as folder:
        rows = _read_input(config, folder)
        prediction = _Prediction(config, folder, rows, _name_of_input(config))
        facts = prediction.run()
        if config.output_file is not None and is_main_process():
            prediction.join(facts)
        prediction.report(facts)


def predictions_of(config: PredictConfig, data: "datasets.Dataset | None" = None) -> list[Record]:
    """Returns the columns of every row with what a fine-tuned model says about it, as `Task.records` documents it.

    Args:
        config: the settings.
        data: the rows; None: those of `input_file`.

    Raises:
        UserError: the model is not fine-tuned, or the input is not as its task needs it.
    """
    with tempfile.TemporaryDirectory() as folder:
        if data is None:
            rows = _read_input(config, Path(folder))
            where = _name_of_input(config)
        else:
            keeps_documents = family_of(config.model_name_or_path) is NerConfig
            rows = RowsInMemory(data, keeps_documents=keeps_documents)
            where = "the data"
        return _Prediction(config, Path(folder), rows, where).records()


# --- The work folder --------------------------------------------------------------------------------------------------


@contextmanager
def _work_folder(config: PredictConfig) -> Iterator[Path]:
    """Yields the folder for the parts. Only the main process's is kept if the block does not end.

    Raises:
        UserError: the folder contains parts from other input, another model or other settings.
    """
    output = Path(config.output_file) if config.output_file else None
    has_stable_input = config.input_file is not None or config.dataset_name is not None
    can_continue = output is not None and not is_stream(output) and has_stable_input
    if output is None or not can_continue or not is_main_process():
        with tempfile.TemporaryDirectory() as temporary:
            yield Path(temporary)
        return

    folder = output.with_name(output.name + WORK_FOLDER_SUFFIX)
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if not lock(folder):
        raise UserError(
            f"Another process is writing {flag('output_file', output)}. Wait for it, or choose another file.",
            setting="output_file",
        )
    try:
        _open_folder(config, folder)
        try:
            yield folder
        except UserError:
            # Input that is refused leaves nothing behind. Finished parts are kept, for example if the disk is full.
            if not any(folder.glob("part-*.json")):
                shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder)
    finally:
        unlock(folder)


def _open_folder(config: PredictConfig, folder: Path) -> None:
    """Accepts the folder of an interrupted prediction with the same settings, or prepares it for a new one."""
    settings = _settings(config)
    path = folder / _SETTINGS_FILE
    if path.is_file():
        if read_json_object(path) == settings:
            logger.info("Continuing the predictions in %s.", folder)
            return
        if not config.overwrite_output_file:
            raise UserError(
                f"{folder} contains parts of predictions from other input, another model or other settings. Remove it, "
                f"or add {flag('overwrite_output_file')} to start again.",
                setting="output_file",
            )
    elif any(folder.iterdir()):
        raise UserError(
            f"{folder} is needed for the predictions and contains other files. Choose another {flag('output_file')}.",
            setting="output_file",
        )
    for file in folder.iterdir():
        file.unlink()
    write_json(path, settings)


def _settings(config: PredictConfig) -> dict[str, object]:
    """Returns everything that decides the parts; equal settings make equal parts."""
    settings: dict[str, object] = {"version": __version__}
    for name, value in asdict(config).items():
        if name not in ("output_file", "overwrite_output_file"):
            settings[name] = list(value) if isinstance(value, tuple) else value
    settings["output_suffix"] = Path(config.output_file or "").suffix
    if config.dataset_name is not None:
        settings["dataset"] = identity_of(config.dataset_name, config.dataset_config_name)
    for name in ("input_file", "context_file"):
        file = getattr(config, name)
        settings[f"{name} sha256"] = file_digest(Path(file)) if file else None

    # A model folder may be replaced by another run with the same name. Reading gigabytes would take long.
    model = Path(config.model_name_or_path)
    files = [*sorted(model.glob("*.safetensors")), *(model / name for name in _MODEL_FILES)]
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()]
    settings["model files"] = json_digest(stats)
    return settings


# --- Predictions ------------------------------------------------------------------------------------------------------


@dataclass
class _Prediction:
    """Answers the parts of the input.

    Args:
        config: the settings.
        folder: the work folder.
        rows: the input.
        where: what messages call the input.
    """

    config: PredictConfig
    folder: Path
    rows: InputRows
    where: str

    def __post_init__(self) -> None:
        self.num_rows = sum(part.rows for part in self.rows.parts)
        self.predictor = Predictor(
            self.config, self.rows.column_names, self.where, is_single_part=len(self.rows.parts) == 1
        )
        self.suffix = Path(self.config.output_file or "").suffix or ".csv"
        if self.suffix == ".xlsx":
            require_writable(Path(str(self.config.output_file)), self.num_rows)

    def run(self) -> list[PartFacts]:
        """Answers all parts that are not finished and returns the facts about every part."""
        self._check()
        finished: list[PartFacts | None] = [self._finished(part) for part in self.rows.parts]
        # All processes compute the parts together, so they must agree on which ones.
        pending: list[int] = broadcast([part.number for part in self.rows.parts if finished[part.number] is None])
        rows_done = self.num_rows - sum(self.rows.parts[number].rows for number in pending)
        with self._bar(rows_done) as bar:
            for number in pending:
                try:
                    finished[number] = self._make(self.rows.parts[number], bar)
                except KeyboardInterrupt:
                    self._log_interruption(number)
                    raise
                if self.config.output_file is None and is_main_process():
                    self._print(number, finished[number])
        return [facts for facts in finished if facts is not None]

    def records(self) -> list[Record]:
        """Answers all parts and returns the records in memory."""
        self._check()
        records: list[Record] = []
        scored: list[ScoredRows | None] = []
        features = truncated = 0
        with self._bar(0) as bar:
            for part in self.rows.parts:
                answers = self._answer(part, bar)
                records += answers.records
                scored.append(answers.scored)
                features += answers.features
                truncated += answers.truncated
        self._log_truncated(features, truncated)
        self._log_scores(scored)
        return records

    def _check(self) -> None:
        """Refuses rows that the task cannot read before the first answer.

        Raises:
            UserError: a row is not as the task needs it, or no row has a text.
        """
        texts_seen = False
        for part in self.rows.parts:
            dataset = self.rows.load(part)
            if self.predictor.has_text(dataset):
                texts_seen = True
                self.predictor.check(dataset, part.place(self.where))
        # The task says what to do about a first part without texts.
        if not texts_seen:
            first = self.rows.parts[0]
            self.predictor.check(self.rows.load(first), first.place(self.where))

    def _bar(self, rows_done: int) -> "tqdm[Any]":
        # None shows a bar on a terminal only.
        hides_bar = None if is_main_process() else True
        return tqdm(total=self.num_rows, initial=rows_done, unit="row", desc="predicting", disable=hides_bar)

    def _answer(self, part: RowRange, bar: "tqdm[Any]") -> Answers:
        features_done = rows_shown = 0

        def advance(features_of_batch: int, features: int) -> None:
            nonlocal features_done, rows_shown
            features_done = min(features, features_done + features_of_batch)
            rows = part.rows * features_done // features
            bar.update(rows - rows_shown)
            rows_shown = rows

        answers = self.predictor.answer(self.rows.load(part), part.place(self.where), on_batch=advance)
        bar.update(part.rows - rows_shown)
        return answers

    def _make(self, part: RowRange, bar: "tqdm[Any]") -> PartFacts:
        """Answers a part and writes its two files."""
        answers = self._answer(part, bar)
        path = self._part_path(part.number)
        with disk_errors(path):
            write_part(answers.records, path, escape_formulas=self.config.escape_formulas)
        answered = sum(record["prediction"] is not None for record in answers.records)
        facts = PartFacts(
            sha256=file_digest(path),
            columns=list(answers.records[0]),
            rows=len(answers.records),
            answered=answered,
            features=answers.features,
            truncated=answers.truncated,
            scored=answers.scored,
        )
        write_json(path.with_suffix(".json"), facts)
        return facts

    def _part_path(self, number: int) -> Path:
        return self.folder / f"part-{number:05d}{part_suffix(self.suffix)}"

    def _finished(self, part: RowRange) -> PartFacts | None:
        """Returns the facts about a part that an earlier process has finished, or None."""
        path = self._part_path(part.number)
        try:
            facts = cast(PartFacts, read_json_object(path.with_suffix(".json")))
            if facts["rows"] == part.rows and file_digest(path) == facts["sha256"]:
                return facts
        except (UserError, OSError, KeyError):
            # A file that is missing or damaged means that the part must be made again.
            return None
        return None

    def _log_interruption(self, number: int) -> None:
        rows = sum(part.rows for part in self.rows.parts[:number])
        if self.folder.name.endswith(WORK_FOLDER_SUFFIX):
            logger.warning(
                "%d of %d rows are answered, in %s. The same command continues there.", rows, self.num_rows, self.folder
            )

    def _print(self, number: int, facts: PartFacts | None) -> None:
        """Writes a part to the standard output."""
        assert facts is not None
        try:
            if number == 0:
                sys.stdout.write(header(facts["columns"], self.suffix))
            lines = lines_of(self._part_path(number))
            if sys.stdout.isatty():
                # A program gets the texts as they are, a terminal without their control characters.
                lines = map(without_controls, lines)
            sys.stdout.writelines(lines)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader has seen enough, as in `| head`. Python would report the error again when it exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(0) from None

    # --- The end

    def join(self, facts: Sequence[PartFacts]) -> None:
        """Writes the output file from the parts."""
        path = Path(str(self.config.output_file))
        parts = [self._part_path(part.number) for part in self.rows.parts]
        with atomic_path(path) as unfinished:
            join_parts(parts, facts[0]["columns"], unfinished, suffix=self.suffix)
        answered = sum(part["answered"] for part in facts)
        logger.info("Wrote %s: %d rows, %d predictions.", path, self.num_rows, answered)

    def report(self, facts: Sequence[PartFacts]) -> None:
        """Logs what happened to the rows, and the scores if they have labels."""
        blank = self.num_rows - sum(part["answered"] for part in facts)
        # Of a single part the task has said so itself.
        if blank and len(facts) > 1:
            logger.warning("%d of %d rows have no text and get no answer.", blank, self.num_rows)
        self._log_truncated(sum(part["features"] for part in facts), sum(part["truncated"] for part in facts))
        self._log_scores([part["scored"] for part in facts])

    def _log_truncated(self, features: int, truncated: int) -> None:
        if truncated:
            length = self.predictor.run_config.max_seq_length
            logger.info(
                "%s: %d of %d inputs were truncated to %d tokens (%s).",
                self.where,
                truncated,
                features,
                length,
                flag("max_seq_length"),
            )

    def _log_scores(self, scored: Sequence[ScoredRows | None]) -> None:
        scores = self.predictor.score(scored, self.rows.load(self.rows.parts[0]))
        if scores:
            logger.info("%s", ", ".join(f"{metric} {value:.4f}" for metric, value in scores.items()))


# --- The input --------------------------------------------------------------------------------------------------------


def _read_input(config: PredictConfig, folder: Path) -> InputRows:
    """Reads a file or the standard input and divides it into parts.

    Raises:
        UserError: it cannot be read, or is not what the model's task needs.
    """
    keeps_documents = family_of(config.model_name_or_path) is NerConfig
    if config.dataset_name is not None:
        rows_of_split = read_split(
            config.dataset_name, config.dataset_config_name, config.dataset_split, streaming=config.streaming
        )
        return write_rows(rows_of_split, folder, _name_of_input(config), keeps_documents=keeps_documents)
    if config.input_file is None and world_size() > 1:
        raise UserError(
            f"Several processes cannot share the standard input. Use {flag('input_file')}.", setting="input_file"
        )
    where = _name_of_input(config)
    kind = _kind_of_input(config)
    if kind == "parquet":
        return write_parquet_rows(Path(where), folder)

    read_lines = _line_reader(config, folder)
    if kind in tables.KINDS:
        rows: Iterator[Row] | None = table_rows(read_lines, Path(where), kind, has_tags=keeps_documents)
    elif kind == "conll":
        rows = tagged_rows(read_lines, where)
    elif kind in ("jsonl", "json"):
        rows = json_line_rows(read_lines, where)
    else:
        return _text_rows(config, read_lines, where, folder)
    # One JSON value, such as SQuAD's form, can only be read as a whole.
    if rows is None:
        dataset = read_file(Path(where), lines=read_lines(), kind=kind)
        return RowsInMemory(dataset, keeps_documents=keeps_documents)
    return write_rows(rows, folder, where, keeps_documents=keeps_documents)


def _name_of_input(config: PredictConfig) -> str:
    """Returns what messages call the input."""
    if config.dataset_name is not None:
        return f"{config.dataset_name}, split {config.dataset_split}"
    return config.input_file or _STANDARD_INPUT


def _kind_of_input(config: PredictConfig) -> str:
    """Returns the format of the input: as set, by the suffix of the file, or text."""
    if config.input_format is not None:
        return config.input_format
    path = Path(config.input_file or "")
    if path.suffix in TAGGED_SUFFIXES and path.suffix != ".txt":
        return "conll"
    suffix = format_of(path)
    return suffix if suffix in TABLES else "text"


def _line_reader(config: PredictConfig, folder: Path) -> LineReader:
    """Returns a function that reads the lines of the input. The standard input is copied to a file first."""
    if config.input_file is not None:
        path = Path(config.input_file)
        return lambda: numbered_lines(path, config.encoding)

    if sys.stdin.isatty():
        logger.info("Reading texts, one on each line. End them with Ctrl-D.")
    copy = folder / "standard_input"
    source = getattr(sys.stdin, "buffer", None) or (line.encode() for line in sys.stdin)
    with copy.open("wb") as file:
        file.writelines(source)

    def read_copy() -> Iterator[tuple[int, str]]:
        with copy.open("rb") as file:
            yield from decoded_lines(file, _STANDARD_INPUT, config.encoding)

    return read_copy


def _text_rows(config: PredictConfig, read_lines: LineReader, where: str, folder: Path) -> InputRows:
    """Reads a text per line: for a question-answering model a question, for other models a text."""
    family = family_of(config.model_name_or_path)
    has_text = any(line.strip() for _, line in read_lines())
    if not has_text:
        raise UserError(f"{where} contains no text. Write one text on each line.")
    if config.input_format is None:
        _require_no_table(config, read_lines, where)
    if family is SwagConfig:
        raise UserError(
            f"{where} is plain text, but a multiple-choice model needs a table with the columns sent1, sent2, ending0, "
            "ending1 ... Use a .csv or .jsonl file."
        )
    if family is NerConfig:
        _require_no_tags(config, read_lines, where)
    if family is SquadConfig:
        if config.context_file is None:
            raise UserError(
                f"{where} contains questions without the passage that they are about. Name its file with "
                f"{flag('context_file')}, or use a .csv or .jsonl file with question and context.",
                setting="context_file",
            )
        context = "\n".join(line for _, line in numbered_lines(Path(config.context_file), config.encoding))
        questions = ({"question": line} for _, line in read_lines())
        return write_rows(questions, folder, where, keeps_documents=False, constants={"context": context})
    return write_rows(({"text": line} for _, line in read_lines()), folder, where, keeps_documents=False)


def _require_no_table(config: PredictConfig, read_lines: LineReader, where: str) -> None:
    """Refuses plain text that begins like a table, whose lines would be taken for texts."""
    first = next((line for _, line in read_lines()), "")
    fields = re.split(r"[,;\t]", first)
    usual_names = {"text", "text_a"}
    usual_names.update(results_of_training(config.model_name_or_path).get("data", {}).get("text_columns", []))
    is_glue = family_of(config.model_name_or_path) is GlueConfig
    has_column_names = is_glue and len(fields) > 1 and bool(usual_names & set(fields))
    if has_column_names or first.startswith("{"):
        raise UserError(
            f"{where} begins like a table: {quoted(first)}. Say what it is with {flag('input_format')}: csv, tsv, "
            "jsonl or text.",
            setting="input_format",
        )


def _require_no_tags(config: PredictConfig, read_lines: LineReader, where: str) -> None:
    """Refuses plain text most of whose lines end in a tag of the model."""
    tags = set(load_config(config.model_name_or_path).id2label.values())
    num_lines = num_tagged = 0
    for _, line in read_lines():
        words = line.split()
        num_lines += 1
        num_tagged += len(words) > 1 and words[-1] in tags
    if 2 * num_tagged >= num_lines:
        raise UserError(
            f"{where}: most lines end in a tag. If there is one word per line, use {flag('input_format', 'conll')}.",
            setting="input_format",
        )
