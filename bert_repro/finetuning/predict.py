"""Predictions of a finished model for texts that somebody has: from a file or the standard input, to a file or the
standard output (recipes/predict.py).

The model says which task it is for. Texts are read, tokenized and decoded by the code that scored the model.
"""

import csv
import io
import json
import logging
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, TextIO

from accelerate import Accelerator

from bert_repro.configs import (
    FinetuningConfig,
    GlueConfig,
    NerConfig,
    PredictConfig,
    SquadConfig,
    SwagConfig,
)
from bert_repro.errors import UserError
from bert_repro.finetuning.data import SplitReader
from bert_repro.finetuning.run import FinetuningRun
from bert_repro.models.loading import load_config, load_tokenizer, quiet_transformers
from bert_repro.results import read_results
from bert_repro.tasks import configured_task
from bert_repro.utils.files import atomic_path, disk_errors, write_text
from bert_repro.utils.readers import numbered_lines, parse_json, shown
from bert_repro.utils.tables import read_table

logger = logging.getLogger("bert_repro")

Record = dict[str, Any]

_FAMILIES: dict[str, type[FinetuningConfig]] = {
    "ForSequenceClassification": GlueConfig,
    "ForTokenClassification": NerConfig,
    "ForQuestionAnswering": SquadConfig,
    "ForMultipleChoice": SwagConfig,
}
"""Ending of a model's class -> the settings of its task."""
_OF_PREDICTION = {
    "start_segment", "ner_context", "max_query_length", "doc_stride", "decoding", "n_best_size", "max_answer_length",
    "answer_text", "null_score_diff_threshold",
}  # fmt: skip
"""Settings of a task that the model was trained with and that predict its answers."""
_TABLES = ("csv", "tsv", "jsonl")
_STANDARD_INPUT = "the standard input"


def predict(config: PredictConfig) -> None:
    """Writes what a fine-tuned model says about every text of the input.

    Raises:
        UserError: the model is not fine-tuned, the input is not as its task needs it, or the output cannot be written.
    """
    kind = _output_format(config)
    if config.output_file and Path(config.output_file).exists() and not config.overwrite_output_file:
        raise UserError(f"--output_file {config.output_file} exists; name another, or add --overwrite_output_file")
    records = predictions_of(config)
    write = _write_csv if kind == "csv" else _write_json_lines
    if config.output_file is None:
        write(records, sys.stdout)
        sys.stdout.flush()
        return
    path = Path(config.output_file)
    with disk_errors(path), atomic_path(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        write(records, file)
    logger.info("wrote %s: %d predictions", path, len(records))


def predictions_of(config: PredictConfig) -> list[Record]:
    """Returns what a fine-tuned model says about every text of the input, as `Task.records` documents it.

    Raises:
        UserError: the model is not fine-tuned, or the input is not as its task needs it.
    """
    quiet_transformers()
    family = _family(config)
    with _input(config, family) as (path, name), _errors_about(path, name):
        run_config = _run_config(config, family, path)
        task = configured_task(run_config)
        accelerator = Accelerator(mixed_precision=config.mixed_precision)
        tokenizer = load_tokenizer(config.tokenizer_name or config.model_name_or_path)
        splits = SplitReader(run_config, task.prepared(run_config, tokenizer), tokenizer, accelerator, {})
        (split,) = splits.prediction().values()
        run = FinetuningRun(run_config, splits.task, tokenizer, splits, accelerator)
        predictions = run.predictions(split)
        if run.task.is_labelled(split.examples):
            scores = run.task.score(predictions, split.examples)
            logger.info("%s", ", ".join(f"{metric} {value:.4f}" for metric, value in scores.items()))
        return list(_with_ids(run.task.records(split.examples, predictions), config, path))


def _family(config: PredictConfig) -> type[FinetuningConfig]:
    model = load_config(config.model_name_or_path)
    (name, *_) = getattr(model, "architectures", None) or [""]
    for ending, family in _FAMILIES.items():
        if str(name).endswith(ending):
            return family
    raise UserError(
        f"--model_name_or_path {config.model_name_or_path}: is {name or 'a model'} without a task; fine-tune it first, "
        "for example with: bert-repro run_glue --train_file FILE"
    )


def _run_config(config: PredictConfig, family: type[FinetuningConfig], path: Path) -> FinetuningConfig:
    """Returns the settings of a run that predicts a file, as the recipe of the family has them."""
    shared: dict[str, Any] = {
        name: getattr(config, name)
        for name in (
            "model_name_or_path", "tokenizer_name", "per_device_eval_batch_size", "mixed_precision",
            "attn_implementation",
        )
    }  # fmt: skip
    if family is GlueConfig:
        shared |= {"text_columns": config.text_columns, "label_column": config.label_column}
    elif config.text_columns and family is not NerConfig:
        raise UserError("--text_columns is for classified and tagged texts; this model's task has columns of its own")
    trained = _trained_settings(config.model_name_or_path)
    positions = load_config(config.model_name_or_path).max_position_embeddings
    length = config.max_seq_length or min(positions, trained.get("max_seq_length") or positions)
    names = _OF_PREDICTION & {item.name for item in fields(family)}
    shared |= {name: trained[name] for name in names if trained.get(name) is not None}
    if family is SquadConfig:
        shared["max_query_length"] = min(shared.get("max_query_length", 64), length - 8)
    return family(**shared, max_seq_length=length, test_file=str(path), do_predict=True)  # type: ignore[call-arg]


def _trained_settings(name: str) -> dict[str, Any]:
    """Returns the settings that the model was trained with, where its folder says so."""
    try:
        return dict(read_results(Path(name)).get("settings", {}))
    except UserError:
        return {}


# --- Input ----------------------------------------------------------------------------------------------------------


@contextmanager
def _input(config: PredictConfig, family: type[FinetuningConfig]) -> Iterator[tuple[Path, str]]:
    """Gives the input as a file that the task's reader takes, and its name for messages."""
    source = Path(config.input_file) if config.input_file else None
    if source is not None and not source.is_file():
        raise UserError(f"--input_file {source}: no such file")
    kind = config.input_format or _format_of(source)
    with tempfile.TemporaryDirectory(prefix="bert-repro-") as folder:
        path = source or _saved_standard_input(Path(folder) / f"input.{kind}")
        name = str(source or _STANDARD_INPUT)
        if kind == "text":
            path = _table_of_lines(config, family, path, Path(folder), name)
        if family is NerConfig and kind != "conll":
            path = _words_of_texts(config, path, Path(folder))
        elif path.suffix != f".{kind}" and kind != "text":
            path = _with_suffix(path, Path(folder) / f"input.{'txt' if kind == 'conll' else kind}")
        yield path, name


def _format_of(path: Path | None) -> str:
    if path is None:
        return "text"
    if path.suffix in (".conll", ".bio", ".iob", ".iob2"):
        return "conll"
    return path.suffix[1:] if path.suffix in (".csv", ".tsv", ".jsonl", ".json") else "text"


def _saved_standard_input(path: Path) -> Path:
    if sys.stdin.isatty():
        logger.info("reading texts, one on each line; end them with Ctrl-D")
    path.write_bytes(sys.stdin.buffer.read() if hasattr(sys.stdin, "buffer") else sys.stdin.read().encode())
    return path


def _with_suffix(source: Path, path: Path) -> Path:
    if source.resolve() != path.resolve():
        path.symlink_to(source.resolve())
    return path


def _table_of_lines(
    config: PredictConfig, family: type[FinetuningConfig], source: Path, folder: Path, name: str
) -> Path:
    """Writes the lines of a plain text as a table with the columns of the task."""
    if family is SwagConfig:
        raise UserError(
            f"{name}: a choice needs a table with sent1, sent2, ending0, ending1 ...; give a .csv or .jsonl"
        )
    lines = [line for _, line in numbered_lines(source) if line.strip()]
    if not lines:
        raise UserError(f"{name}: no text; write one on each line")
    if family is SquadConfig:
        if config.context_file is None:
            raise UserError(
                f"{name}: a question needs a passage; name its file with --context_file, or give a .csv or .jsonl with "
                "the columns question and context"
            )
        context = "\n".join(line for _, line in numbered_lines(Path(config.context_file)))
        rows: list[Record] = [{"question": line, "context": context} for line in lines]
    else:
        rows = [{"text": line} for line in lines]
    path = folder / "lines.jsonl"
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
    return path


def _words_of_texts(config: PredictConfig, source: Path, folder: Path) -> Path:
    """Writes the texts of a table as tagged text without tags: words and punctuation, as BERT's tokenizer divides."""
    if source.suffix == ".jsonl" and (sentences := _listed_words(source)):
        pass
    else:
        names = config.text_columns or ("text",)
        texts = read_table(source, names[:1]).columns[names[0]]
        splitter = load_tokenizer(config.tokenizer_name or config.model_name_or_path).backend_tokenizer.pre_tokenizer
        sentences = [[word for word, _ in splitter.pre_tokenize_str(text)] for text in texts]
    if empty := next((number for number, words in enumerate(sentences, 1) if not words), None):
        raise UserError(f"{source}: text {empty} has no word; leave it out")
    path = folder / "words.txt"
    write_text(path, "".join("".join(f"{word}\n" for word in words) + "\n" for words in sentences))
    return path


def _listed_words(source: Path) -> list[list[str]] | None:
    """Returns the lists of words of JSON lines that have them (`words` or `tokens`)."""
    sentences = []
    for number, line in numbered_lines(source):
        where = f"{source}, line {number}"
        row = parse_json(line, where, "write one object per line") if line.strip().startswith("{") else {}
        words = row.get("words", row.get("tokens"))
        if not isinstance(words, list):
            return None
        sentences.append([re.sub(r"\s", "", str(word)) for word in words])
    return sentences


@contextmanager
def _errors_about(path: Path, name: str) -> Iterator[None]:
    """Names the input in messages as its user does, where a temporary file holds it."""
    try:
        yield
    except UserError as error:
        raise UserError(str(error).replace("--test_file", "--input_file").replace(str(path), name)) from error


def _with_ids(records: Iterable[Record], config: PredictConfig, path: Path) -> Iterator[Record]:
    if config.id_column is None:
        yield from records
        return
    source = Path(config.input_file) if config.input_file else path
    if source.suffix[1:] not in _TABLES:
        raise UserError(f"--id_column {config.id_column}: the input is no table; give a .csv, .tsv or .jsonl")
    ids = read_table(source, (config.id_column,)).columns[config.id_column]
    for identity, record in zip(ids, records, strict=True):
        yield {"id": identity, **{name: value for name, value in record.items() if name not in ("id", "index")}}


# --- Output ---------------------------------------------------------------------------------------------------------


def _output_format(config: PredictConfig) -> str:
    ending = Path(config.output_file or "").suffix
    if config.output_format:
        return config.output_format
    if ending and ending not in (".csv", ".jsonl"):
        raise UserError(f"--output_file {config.output_file}: ends in {shown(ending)}; write .csv or .jsonl")
    return "jsonl" if ending == ".jsonl" else "csv"


def _write_json_lines(records: Sequence[Record], file: TextIO) -> None:
    for record in records:
        file.write(json.dumps(record, ensure_ascii=False) + "\n")


def _write_csv(records: Sequence[Record], file: TextIO) -> None:
    """Writes a row for each record; lists become one text, and every probability has a column."""
    rows = [dict(_flat(record)) for record in records]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    file.write(text.getvalue())


def _flat(record: Record) -> Iterator[tuple[str, Any]]:
    separator = " " if "words" in record else "|"
    for name, value in record.items():
        if isinstance(value, dict):
            yield from ((f"probability_{label}", share) for label, share in value.items())
        else:
            yield name, separator.join(map(str, value)) if isinstance(value, list) else value
