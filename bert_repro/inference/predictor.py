"""A fine-tuned model that answers rows of data: the model says which task it is for, and the task does the rest.

Rows are read, tokenized and decoded by the code that scored the model after its training.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from accelerate import Accelerator

from bert_repro.configs import FAMILIES, FinetuningConfig, GlueConfig, NerConfig, PredictConfig, SquadConfig
from bert_repro.errors import UserError, flag
from bert_repro.finetuning.batch_source import ModelInputs
from bert_repro.finetuning.data import encode, load_splits, warn_of_losses
from bert_repro.finetuning.outputs import HeadOutputs
from bert_repro.finetuning.run import require_fit
from bert_repro.inference.record_files import Record
from bert_repro.models import modeling_bert_repro
from bert_repro.models.loading import load_config, load_tokenizer, quiet_transformers, require_vocabulary
from bert_repro.results import RunResults, read_results
from bert_repro.tasks import configured_task
from bert_repro.tasks.base import Predictions, Task
from bert_repro.tasks.columns import find_text_columns, require_columns, texts
from bert_repro.tasks.data import as_dataset
from bert_repro.tasks.multi_label import MultiLabelTask
from bert_repro.tasks.tagged_text import TAG_COLUMNS, WORD_COLUMNS
from bert_repro.training.performance import resolve_precision
from bert_repro.training.run import forget_precision, load_model

if TYPE_CHECKING:
    import datasets

logger = logging.getLogger("bert_repro")

_TASK_SETTINGS = (
    "ner_context", "max_query_length", "doc_stride", "decoding", "n_best_size", "max_answer_length",
    "answer_text", "null_score_diff_threshold",
)  # fmt: skip
"""Settings of a training run that decide how texts are read and answers found."""
_SHARED_SETTINGS = ("model_name_or_path", "per_device_eval_batch_size", "mixed_precision", "attn_implementation")
_ANSWER_COLUMNS = ("prediction", "answer", "probability")
_REFERENCE_COLUMNS = ("id", "is_impossible")
"""Columns of examples that a score may need besides the task's `reference_column`."""


class ScoredRows(TypedDict):
    """What the score of some rows is made of, ready for JSON: column -> a value per row."""

    predictions: dict[str, list[Any]]
    references: dict[str, list[Any]]


@dataclass(frozen=True)
class Answers:
    """The answers to some rows.

    Args:
        records: for each row its columns, and what the model says about it; see `Task.records`.
        features: how many model inputs the rows made.
        truncated: how many of them were truncated.
        scored: what a score is made of, if the rows have labels.
    """

    records: list[Record]
    features: int
    truncated: int
    scored: ScoredRows | None


def family_of(model_name: str) -> type[FinetuningConfig]:
    """Returns the settings class of the task that a model was fine-tuned for.

    Raises:
        UserError: the model has no head of a task.
    """
    architectures = load_config(model_name).architectures or [""]
    name = str(architectures[0])
    for ending, family in FAMILIES.items():
        if name.endswith(ending):
            return family
    raise UserError(
        f"{flag('model_name_or_path', model_name)} is {name or 'a model'} without a task. Fine-tune it first.",
        setting="model_name_or_path",
    )


def results_of_training(model_name: str) -> RunResults:
    """Returns the results of the run that made a model; empty for a model of the Hub or of another library."""
    try:
        return read_results(Path(model_name))
    except UserError:
        return RunResults()


class Predictor:
    """Answers rows. The model is loaded once, with the first rows.

    Args:
        config: the settings.
        column_names: the columns of the rows.
        where: what messages call the rows.
        is_single_part: whether all rows come at once. Otherwise notes about a part of them are not logged.

    Raises:
        UserError: the model is not fine-tuned, or the rows do not have the columns that its task needs.
    """

    def __init__(self, config: PredictConfig, column_names: Sequence[str], where: str, *, is_single_part: bool) -> None:
        quiet_transformers()
        config = resolve_precision(config)
        self.config = config
        self.where = where
        self.is_single_part = is_single_part
        self.family = family_of(config.model_name_or_path)
        self.tokenizer = load_tokenizer(config.model_name_or_path)
        trained = results_of_training(config.model_name_or_path)
        self.run_config = self._run_config(trained, column_names)
        shape = load_config(config.model_name_or_path)
        require_fit(self.run_config, shape)

        # The columns of right answers, if the rows have them. They are only read for the score.
        label_names: Sequence[str] = TAG_COLUMNS
        if self.family is not NerConfig:
            label_names = (getattr(self.run_config, "label_column", "label"),)
        self._label_columns = [name for name in label_names if name in column_names]
        self._uses_labels = True

        forget_precision(config.mixed_precision)
        self._accelerator = Accelerator(mixed_precision=config.mixed_precision)
        self._model: Any = None
        self._has_checked_losses = False

    def _run_config(self, trained: RunResults, column_names: Sequence[str]) -> FinetuningConfig:
        """Returns the settings of a run that predicts. What no flag decides is as in the model's training."""
        settings = trained.get("settings", {})
        values: dict[str, Any] = {name: getattr(self.config, name) for name in _SHARED_SETTINGS}
        for name in _TASK_SETTINGS:
            if name in self.family.__dataclass_fields__ and settings.get(name) is not None:
                values[name] = settings[name]

        positions = load_config(self.config.model_name_or_path).max_position_embeddings
        trained_length = settings.get("max_seq_length") or positions
        length = self.config.max_seq_length or min(positions, trained_length)
        if self.family is SquadConfig:
            values["max_query_length"] = min(values.get("max_query_length", 64), length - 8)
        if self.family is GlueConfig:
            trained_columns = trained.get("data", {}).get("text_columns", [])
            values["text_columns"] = self._text_columns(column_names, trained_columns)
            values["label_column"] = self.config.label_column or settings.get("label_column") or "label"
        values |= {"max_seq_length": length, "test_file": self.where, "do_predict": True}
        return self.family(**values)

    def _text_columns(self, column_names: Sequence[str], trained: Sequence[str]) -> tuple[str, ...]:
        """Returns the columns of text: as set, as in training, or by their usual names; as many as in training."""
        columns = self.config.text_columns or find_text_columns(column_names, self.where, trained)
        if trained and len(columns) != len(trained):
            kind = "pairs of texts" if len(trained) == 2 else "single texts"
            raise UserError(
                f"{self.where} has {' and '.join(columns)}, but the model was trained on {kind} "
                f"({' and '.join(trained)}). Pass a table and name its columns with {flag('text_columns')}.",
                setting="text_columns",
            )
        return tuple(columns)

    # --- Before the first answer

    def check(self, rows: "datasets.Dataset", where: str) -> None:
        """Reads rows as `answer` will do, so that a bad row is refused before anything is predicted.

        Labels that the model does not know are not an error. There is then no score.

        Raises:
            UserError: the rows are not as the task needs them.
        """
        rows = self._as_task_input(rows, where)
        # Notes about some rows of many would mislead.
        quiet = nullcontext if self.is_single_part else _without_log
        try:
            with quiet():
                self._task(rows, where)
        except UserError as error:
            can_do_without_labels = self._label_columns and self._uses_labels and not self.config.label_column
            if not can_do_without_labels:
                raise
            self._uses_labels = False
            with quiet():
                self._task(rows, where)
            logger.warning("There are no scores, because the labels are not those of the model: %s", error)

    def has_text(self, rows: "datasets.Dataset") -> bool:
        """Returns whether any row has a text; rows of other tasks than classification always do."""
        if self.family is not GlueConfig:
            return True
        assert isinstance(self.run_config, GlueConfig)
        for name in self.run_config.text_columns:
            if name not in rows.column_names:
                return True
            if any(str(value or "").strip() for value in rows[name]):
                return True
        return False

    def _as_task_input(self, rows: "datasets.Dataset", where: str) -> "datasets.Dataset":
        """Returns rows with words for a tagger, which are made from a column of texts if there are none."""
        if self.family is not NerConfig or set(WORD_COLUMNS) & set(rows.column_names):
            return rows
        # Words and punctuation, as BERT's tokenizer divides a text.
        name = (self.config.text_columns or ("text",))[0]
        require_columns(rows, [name], where, f"name the column of text with {flag('text_columns')}")
        splitter = self.tokenizer.backend_tokenizer.pre_tokenizer
        words = []
        for text in texts(rows, name, where):
            words.append([word for word, _ in splitter.pre_tokenize_str(text)])
        return rows.add_column("words", words)

    def _task(self, rows: "datasets.Dataset", where: str) -> Task:
        if not self._uses_labels:
            rows = rows.remove_columns(self._label_columns)
        config = replace(self.run_config, test_file=where)  # type: ignore[call-arg]
        return configured_task(config, {"test": rows}).prepared(config, self.tokenizer)

    # --- Answers

    def answer(
        self, rows: "datasets.Dataset", where: str, *, on_batch: Callable[[int, int], None] | None = None
    ) -> Answers:
        """Answers rows.

        Args:
            rows: the rows, accepted by `check`.
            where: what messages call them.
            on_batch: called after each batch with the number of model inputs in it and in all rows.

        Raises:
            UserError: the rows have columns with the names of the answers.
        """
        if not self.is_single_part and not self.has_text(rows):
            return self._answer_blank_rows(rows, where)
        rows = self._as_task_input(rows, where)
        # Everything that there is to say about the rows has been logged by `check`.
        with _without_log():
            task = self._task(rows, where)
        if self._model is None:
            self._model = self._load(task)
        task = task.restored(self._model.config)

        # Tokenize, compute, decode.
        (examples,) = load_splits(task, None, task.predict_splits).values()
        if not self._has_checked_losses:
            self._has_checked_losses = True
            warn_of_losses(task, examples, self.tokenizer, self.where)
        features = encode(task, examples, self.tokenizer, self.run_config.max_seq_length)
        pad_token_id = int(self.tokenizer.pad_token_id)  # type: ignore[arg-type]
        model_inputs = ModelInputs(self.run_config, task, pad_token_id, self._accelerator.device)
        outputs = HeadOutputs(self.run_config, task, (self._model,), model_inputs, self._accelerator)
        predictions = task.postprocess(examples, features, outputs.of(features, on_batch))
        answers = list(task.records(examples, predictions))

        # Put the answers next to the columns of the rows.
        answer_columns = [name for name in answers[0] if name in _ANSWER_COLUMNS or name.startswith("probability_")]
        self._require_free(answer_columns, rows.column_names)
        is_labelled = task.is_labelled(examples)
        if is_labelled and self.family is NerConfig and self._label_columns:
            # Right tags in the scheme of the predicted ones.
            name = self._label_columns[0]
            rows = rows.remove_columns(self._label_columns).add_column(name, task.references(examples))
        records = []
        for row, answer in zip(rows, answers, strict=True):
            records.append({**row, **{name: answer[name] for name in answer_columns}})
        scored = _scored_rows(task, examples, predictions, answers) if is_labelled else None
        return Answers(records, len(features), task.count_truncated(features), scored)

    def _answer_blank_rows(self, rows: "datasets.Dataset", where: str) -> Answers:
        """Answers a part in which no row has a text. The task refuses such data, so a row with a text is added."""
        assert isinstance(self.run_config, GlueConfig)
        columns = {name: list(rows[name]) for name in rows.column_names}
        for name, values in columns.items():
            values.append("." if name in self.run_config.text_columns else values[0])
        answers = self.answer(as_dataset(columns, where), where)
        return Answers(answers.records[:-1], answers.features - 1, answers.truncated, None)

    def _load(self, task: Task) -> Any:
        model_class = getattr(modeling_bert_repro, task.head)
        model = load_model(model_class, self.run_config, may_add_weights=False)
        model.to(self._accelerator.device)
        require_vocabulary(self.config.model_name_or_path, model, self.tokenizer)
        return model

    def _require_free(self, answer_columns: Sequence[str], column_names: Sequence[str]) -> None:
        taken = sorted(set(answer_columns) & set(column_names))
        if taken:
            raise UserError(
                f"{self.where} has columns with the names of the answers: {', '.join(taken)}. Rename or remove them."
            )

    def score(self, parts: Sequence[ScoredRows | None], rows: "datasets.Dataset") -> Mapping[str, float]:
        """Scores answers.

        Args:
            parts: `Answers.scored` of all rows.
            rows: some of the rows, from which the task is made.

        Returns:
            metric -> value; empty if no row has a label.
        """
        import datasets

        predictions: dict[str, list[Any]] = {}
        references: dict[str, list[Any]] = {}
        for part in parts:
            if part is None:
                continue
            for name, values in part["predictions"].items():
                predictions.setdefault(name, []).extend(values)
            for name, values in part["references"].items():
                references.setdefault(name, []).extend(values)
        if not references:
            return {}
        with _without_log():
            task = self._task(self._as_task_input(rows, self.where), self.where)
        task = task.restored(load_config(self.config.model_name_or_path))
        columns: Predictions = dict(predictions)
        # Tags and answers are lists of texts; labels and numbers are an array.
        if self.family not in (NerConfig, SquadConfig):
            columns = {name: np.asarray(values) for name, values in predictions.items()}
        return task.score(columns, datasets.Dataset.from_dict(references))


def _scored_rows(
    task: Task, examples: "datasets.Dataset", predictions: Predictions, answers: Sequence[Record]
) -> ScoredRows:
    """Returns what the score of labelled rows is made of. Rows without a text have no answer and do not count."""
    answered = [row for row, answer in enumerate(answers) if answer["prediction"] is not None]
    scored = ScoredRows(predictions={}, references={})
    # Several labels per row are chosen by thresholds on their probabilities.
    names = ("prediction", "null_odds", "probabilities" if isinstance(task, MultiLabelTask) else "")
    for name in names:
        if name in predictions:
            values = predictions[name]
            if isinstance(values, np.ndarray):
                values = values.tolist()
            scored["predictions"][name] = [values[row] for row in answered]
    for name in (task.reference_column, *_REFERENCE_COLUMNS):
        if name in examples.column_names:
            values = examples[name][:]
            scored["references"][name] = [values[row] for row in answered]
    return scored


@contextmanager
def _without_log() -> Iterator[None]:
    """Drops log messages inside the block."""

    def drop(record: logging.LogRecord) -> bool:  # noqa: ARG001 (the signature of a filter)
        return False

    logger.addFilter(drop)
    try:
        yield
    finally:
        logger.removeFilter(drop)
