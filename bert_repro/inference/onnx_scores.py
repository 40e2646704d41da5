"""Scores of a fine-tuned model and of its ONNX files on the task's dev set, one text at a time.

One at a time, because an 8-bit graph chooses one scale for the activations of a batch: among others, and beside
padding, a text would get other outputs than alone, as a page reads it.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from bert_repro.configs import (
    FinetuningConfig,
    GlueConfig,
    NerConfig,
    OnnxConfig,
    SquadConfig,
    SwagConfig,
)
from bert_repro.errors import UserError
from bert_repro.finetuning.data import encode, load_splits
from bert_repro.finetuning.run import output_rows
from bert_repro.models.loading import load_tokenizer
from bert_repro.results import read_results
from bert_repro.tasks import configured_task
from bert_repro.tasks.base import FloatArray, Task

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedModel

Forward = Callable[..., Any]
"""A model, or an ONNX file in its place: named int64 tensors in, an object with its outputs as float tensors out."""
DevScores = dict[str, dict[str, Any]]
"""Split -> `metrics` and `rows_scored`."""
_CONFIGS: dict[str, type[FinetuningConfig]] = {
    "ForSequenceClassification": GlueConfig,
    "ForTokenClassification": NerConfig,
    "ForQuestionAnswering": SquadConfig,
    "ForMultipleChoice": SwagConfig,
}
_OF_THE_DATA = {  # settings that say how texts are read
    "task_name", "data_dir", "max_seq_length", "train_file", "validation_file", "test_file", "validation_fraction",
    "text_columns", "label_column", "regression", "multi_label", "label_separator", "start_segment", "ner_context",
    "max_query_length", "doc_stride", "qa_loss", "qa_softmax", "decoding", "n_best_size", "max_answer_length",
    "answer_text", "null_score_diff_threshold", "max_train_samples", "max_eval_samples",
}  # fmt: skip


def open_graph(path: Path) -> Forward:
    """Opens an ONNX file on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(**inputs: torch.Tensor) -> SimpleNamespace:
        arrays = session.run(names, {name: tensor.numpy() for name, tensor in inputs.items()})
        return SimpleNamespace(**{name: torch.from_numpy(array) for name, array in zip(names, arrays, strict=True)})

    return run


class DevScorer:
    """The labelled splits of a finished run's task, tokenized as the run did.

    Args:
        config: the run's folder, and where the data is.
        model: the run's model.

    Raises:
        UserError: the folder is of no fine-tuning run, or the data is not that of its task.
    """

    def __init__(self, config: OnnxConfig, model: "PreTrainedModel") -> None:
        settings = _run_settings(config, type(model).__name__)
        self._tokenizer = load_tokenizer(config.folder)
        self._task: Task = configured_task(settings).prepared(settings, self._tokenizer).restored(model.config)
        self._columns = self._task.label_columns(model.config.id2label) if self._task.label_names else None
        self._splits: dict[str, tuple[datasets.Dataset, datasets.Dataset]] = {}
        for name, split in load_splits(self._task, settings.data_dir, self._task.eval_splits).items():
            if not self._task.is_labelled(split):
                raise UserError(f"split {name} of {self._task.name} has no labels; name data that can be scored")
            examples = split.select(range(min(config.max_eval_samples or len(split), len(split))))
            self._splits[name] = examples, encode(self._task, examples, self._tokenizer, settings.max_seq_length)

    def scores(self, run: Forward) -> DevScores:
        """Scores a model, or an ONNX file, on every split."""
        found = {}
        for name, (examples, features) in self._splits.items():
            predictions = self._task.postprocess(examples, features, self._outputs(run, features))
            found[name] = {"metrics": self._task.score(predictions, examples), "rows_scored": len(examples)}
        return found

    @torch.no_grad()
    def _outputs(self, run: Forward, features: "datasets.Dataset") -> Iterator[FloatArray]:
        for row in features:
            inputs = {key: value for key, value in row.items() if key != "labels"}
            batch = self._task.collate([inputs], pad_token_id=self._tokenizer.pad_token_id, packing=False)
            (array,) = output_rows(run(**batch), [row["length"]])
            yield array if self._columns is None else array[..., self._columns]


def _run_settings(config: OnnxConfig, class_name: str) -> FinetuningConfig:
    """Returns the settings of the run that made the folder, for scoring alone and with the data that was named."""
    kind = next((found for head, found in _CONFIGS.items() if class_name.endswith(head)), None)
    if kind is None:
        raise UserError(f"--folder {config.folder}: a {class_name} has no task to score; leave the data out")
    stored = read_results(Path(config.folder), needs=("settings",))["settings"]
    kept = {
        item.name: tuple(stored[item.name]) if isinstance(stored[item.name], list) else stored[item.name]
        for item in fields(kind)
        if item.name in _OF_THE_DATA and item.name in stored
    }
    others: dict[str, Any] = dict.fromkeys({"train_file", "test_file", "validation_fraction"} & kept.keys())
    if config.validation_file is not None and kind is not SquadConfig:
        kept.pop("task_name", None)  # custom data has the labels of the model
    data = {"data_dir": config.data_dir, "validation_file": config.validation_file, "do_eval": True}
    return kind(**{**kept, **others, **data, "model_name_or_path": config.folder, "output_dir": config.folder})
