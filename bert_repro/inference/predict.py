"""Predictions of a finished model for texts that somebody has: from a file or the standard input, to a file or the
standard output (recipes/predict.py).

The model says which task it is for. Texts are read, tokenized and decoded by the code that scored the model.
"""

import csv
import json
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from accelerate import Accelerator

from bert_repro.configs import (
    FAMILIES,
    FinetuningConfig,
    GlueConfig,
    NerConfig,
    PredictConfig,
    SquadConfig,
    SwagConfig,
    require,
)
from bert_repro.errors import UserError
from bert_repro.finetuning.data import SplitReader
from bert_repro.finetuning.run import FinetuningRun, require_fit
from bert_repro.models.loading import load_config, load_tokenizer, quiet_transformers
from bert_repro.results import read_results
from bert_repro.tasks import configured_task
from bert_repro.tasks.classification import found_text_columns
from bert_repro.tasks.data import TABLES, TAGGED_SUFFIXES, Lines, as_dataset, read_file, require_columns, texts
from bert_repro.tasks.tagged_text import write_tagged_text
from bert_repro.tasks.tagging import TAG_COLUMNS, WORD_COLUMNS
from bert_repro.training.performance import resolve_precision
from bert_repro.training.run import forget_precision
from bert_repro.utils.files import atomic_path, disk_errors
from bert_repro.utils.process import is_main_process, world_size
from bert_repro.utils.readers import decode_line, format_of, numbered_lines, shown

if TYPE_CHECKING:
    import datasets

logger = logging.getLogger("bert_repro")

Record = dict[str, Any]

_TASK_SETTINGS = (
    "ner_context", "max_query_length", "doc_stride", "decoding", "n_best_size", "max_answer_length",
    "answer_text", "null_score_diff_threshold",
)  # fmt: skip
"""Settings of a training that decide how texts are read and answers found."""
_ANSWERS = ("prediction", "answer", "probability")
_SHARED = ("model_name_or_path", "per_device_eval_batch_size", "mixed_precision", "attn_implementation")


def predict(config: PredictConfig) -> None:
    """Writes what a fine-tuned model says about every text of the input.

    Raises:
        UserError: the model is not fine-tuned, the input is not as its task needs it, or the output cannot be written.
    """
    records = predictions_of(config)
    if not is_main_process():
        return
    ending = Path(config.output_file or "").suffix
    write = {".jsonl": _write_json_lines, ".conll": _write_tagged, ".tsv": _write_tsv}.get(ending, _write_csv)
    if config.output_file is None:
        try:
            write(records, sys.stdout)
            sys.stdout.flush()
        except BrokenPipeError:  # who reads has seen enough, as in `| head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    path = Path(config.output_file)
    with disk_errors(path), atomic_path(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        write(records, file)
    answered = sum(record["prediction"] is not None for record in records)
    logger.info("wrote %s: %d rows, %d predictions", path, len(records), answered)


def predictions_of(config: PredictConfig, rows: "datasets.Dataset | None" = None) -> list[Record]:
    """Returns the columns of every row, and what a fine-tuned model says about it: its `prediction`, `probability` and
    the probability of each label, as `Task.records` documents them.

    Args:
        config: the settings.
        rows: the texts; None: those of `input_file` or the standard input.

    Raises:
        UserError: the model is not fine-tuned, or the input is not as its task needs it.
    """
    quiet_transformers()
    config = resolve_precision(config)
    family = _family(config)
    tagged = family is NerConfig or not (config.output_file or "").endswith(".conll")
    require(tagged, f"--output_file {config.output_file}: only tags go into .conll; write .csv or .jsonl")
    where = "the data" if rows is not None else config.input_file or "the standard input"
    try:
        trained: Any = read_results(Path(config.model_name_or_path))
    except UserError:  # a model of the Hub, or of another library
        trained = {}
    rows = _read_input(config, family, where, trained) if rows is None else rows
    tokenizer = load_tokenizer(config.model_name_or_path)
    if family is NerConfig and not set(WORD_COLUMNS) & set(rows.column_names):
        rows = _divided_into_words(rows, config, tokenizer, where)
    run_config = _run_config(config, family, rows, where, trained)
    require_fit(run_config, load_config(config.model_name_or_path))
    names = TAG_COLUMNS if family is NerConfig else (getattr(run_config, "label_column", "label"),)
    labels = [name for name in names if name in rows.column_names]
    try:
        task = configured_task(run_config, {"test": rows})
    except UserError as error:
        if not labels or config.label_column:
            raise
        logger.warning("no scores, as the labels are others: %s", error)
        task = configured_task(run_config, {"test": rows.remove_columns(labels)})
    task = task.prepared(run_config, tokenizer)
    forget_precision(config.mixed_precision)
    splits = SplitReader(run_config, task, tokenizer, Accelerator(mixed_precision=config.mixed_precision), {})
    (split,) = splits.prediction().values()
    run = FinetuningRun(run_config, task, tokenizer, splits, splits.accelerator)
    predictions, examples = run.predictions(split), split.examples
    records = list(run.task.records(examples, predictions))
    answers = [name for name in records[0] if name in _ANSWERS or name.startswith("probability_")]
    taken = ", ".join(sorted({*answers} & {*rows.column_names}))
    require(not taken, f"{where}: has columns that predictions are written to: {taken}; rename or remove them")
    if run.task.is_labelled(examples):
        answered = [row for row, record in enumerate(records) if record["prediction"] is not None]
        if len(answered) < len(records):  # rows without text
            examples = examples.select(answered)
            predictions = {name: value[answered] for name, value in predictions.items()}
        scores = run.task.score(predictions, examples)
        logger.info("%s", ", ".join(f"{metric} {value:.4f}" for metric, value in scores.items()))
        if family is NerConfig and labels:  # in the scheme of the predictions
            rows = rows.remove_columns(labels).add_column(labels[0], run.task.references(examples))
    return [{**row, **{name: record[name] for name in answers}} for row, record in zip(rows, records, strict=True)]


def _family(config: PredictConfig) -> type[FinetuningConfig]:
    name = str(next(iter(getattr(load_config(config.model_name_or_path), "architectures", None) or [""])))
    for ending, family in FAMILIES.items():
        if name.endswith(ending):
            return family
    raise UserError(
        f"--model_name_or_path {config.model_name_or_path}: is {name or 'a model'} without a task; fine-tune it first"
    )


def _run_config(
    config: PredictConfig, family: type[FinetuningConfig], rows: "datasets.Dataset", where: str, trained: Any
) -> FinetuningConfig:
    """Returns the settings of a run that predicts the rows, with what the model was trained with where flags are not
    given."""
    settings = trained.get("settings", {})
    shared: dict[str, Any] = {name: getattr(config, name) for name in _SHARED}
    positions = load_config(config.model_name_or_path).max_position_embeddings
    length = config.max_seq_length or min(positions, settings.get("max_seq_length") or positions)
    known = family.__dataclass_fields__
    shared |= {name: settings[name] for name in _TASK_SETTINGS if name in known and settings.get(name) is not None}
    if family is SquadConfig:
        shared["max_query_length"] = min(shared.get("max_query_length", 64), length - 8)
    if family is GlueConfig:
        columns = trained.get("data", {}).get("text_columns", [])
        shared["text_columns"] = _text_columns(config.text_columns, rows.column_names, where, columns)
        shared["label_column"] = config.label_column or settings.get("label_column") or "label"
    return family(**shared, max_seq_length=length, test_file=where, do_predict=True)  # type: ignore[call-arg]


def _text_columns(asked: Sequence[str], present: Sequence[str], where: str, trained: Sequence[str]) -> tuple[str, ...]:
    """Returns the columns of text: as asked for, as in training, or by their usual names; as many as in training."""
    columns = tuple(asked or found_text_columns(present, where, trained))
    if trained and len(columns) != len(trained):
        needed = "pairs of texts" if len(trained) == 2 else "single texts"
        raise UserError(
            f"{where}: has {' and '.join(columns)}, but the model was trained on {needed} ({' and '.join(trained)}); "
            "give a table and name its columns with --text_columns"
        )
    return columns


# --- Input and output -------------------------------------------------------------------------------------------------


def _read_input(config: PredictConfig, family: type[FinetuningConfig], where: str, trained: Any) -> "datasets.Dataset":
    """Reads a file or the standard input, a text on each line unless its ending or a flag says otherwise."""
    path = Path(where)
    ending = "conll" if path.suffix in TAGGED_SUFFIXES[1:] else format_of(path)
    kind = config.input_format or (ending if ending in (*TABLES, "conll") else "text")
    require(config.input_file or world_size() == 1, "several processes read no standard input; use --input_file")
    lines = numbered_lines(path) if config.input_file else _standard_input()
    if kind != "text":
        return read_file(path, tagged=kind == "conll", lines=lines, kind=kind)
    found = [line for _, line in lines]
    require(any(line.strip() for line in found), f"{where}: no text; write one on each line")
    header, trained_on = re.split(r"[,;\t]", found[0]), trained.get("data", {}).get("text_columns", [])
    of_names = family is GlueConfig and len(header) > 1 and {"text", "text_a", *trained_on}.intersection(header)
    table = f"{where}: begins as a table, {shown(found[0])}; give --input_format csv, tsv, jsonl or text"
    require(config.input_format or not (of_names or found[0].startswith("{")), table)
    tabular = f"{where}: a choice needs a table with sent1, sent2, ending0 ...; give a .csv or .jsonl"
    require(family is not SwagConfig, tabular)
    if family is NerConfig:
        tags = {*load_config(config.model_name_or_path).id2label.values()}
        tagged = sum(len(words) > 1 and words[-1] in tags for words in map(str.split, found))
        require(2 * tagged < len(found), f"{where}: lines end in tags; give --input_format conll")
    if family is SquadConfig:
        lonely = f"{where}: a question needs a passage; name its file with --context_file, or give a .csv or .jsonl"
        require(config.context_file is not None, lonely)
        context = "\n".join(line for _, line in numbered_lines(Path(config.context_file or "")))
        return as_dataset({"question": found, "context": [context] * len(found)}, where)
    return as_dataset({"text": found}, where)


def _standard_input() -> Lines:
    if sys.stdin.isatty():
        logger.info("reading texts, one on each line; end them with Ctrl-D")
    lines = getattr(sys.stdin, "buffer", None) or (line.encode() for line in sys.stdin)
    for number, line in enumerate(lines, 1):
        yield number, decode_line(line, Path("the standard input"), number)


def _divided_into_words(
    rows: "datasets.Dataset", config: PredictConfig, tokenizer: Any, where: str
) -> "datasets.Dataset":
    """Divides texts into words and punctuation, as BERT's tokenizer does, for a tagger."""
    name = (config.text_columns or ("text",))[0]
    require_columns(rows, [name], where, "name the column of text with --text_columns")
    splitter = tokenizer.backend_tokenizer.pre_tokenizer
    words = [[word for word, _ in splitter.pre_tokenize_str(text)] for text in texts(rows, name, where)]
    return rows.add_column("words", words)


def _write_json_lines(records: Sequence[Record], file: TextIO) -> None:
    file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def _write_csv(records: Sequence[Record], file: TextIO, delimiter: str = ",") -> None:
    """Writes a row for each record; lists become one text."""
    rows = [dict(_flat(record)) for record in records]
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n", delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)


def _write_tsv(records: Sequence[Record], file: TextIO) -> None:
    _write_csv(records, file, "\t")


def _flat(record: Record) -> Iterator[tuple[str, Any]]:
    separator = " " if "words" in record else "|"
    for name, value in record.items():
        if name == "answers":  # the right ones to a question
            yield name, json.dumps(value, ensure_ascii=False)
        else:
            yield name, separator.join(map(str, value)) if isinstance(value, list) else value


def _write_tagged(records: Sequence[Record], file: TextIO) -> None:
    """Writes a word on each line, its right tag where that is known and its predicted one, as conlleval reads it."""
    columns = [name for name in (*WORD_COLUMNS, *TAG_COLUMNS, "prediction") if name in records[0]]
    write_tagged_text(file, ([record[name] for name in columns] for record in records))
