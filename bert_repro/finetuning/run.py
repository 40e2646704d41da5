"""Fine-tuning, scoring and predicting, for every task (paper 4, A.3), with one model or the mean of an ensemble."""

import dataclasses
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, send_to_device

from bert_repro.configs import FinetuningConfig, NerConfig, require
from bert_repro.configs.presets import FEATURE_BILSTM_LAYERS, FEATURE_BILSTM_SIZE
from bert_repro.errors import UserError
from bert_repro.finetuning.data import (
    FeatureCache,
    FinetuningSource,
    ModelInputs,
    Split,
    SplitCache,
    SplitReader,
    content_digest,
    rows_of,
)
from bert_repro.finetuning.head_labels import relabel_head, trained_labels
from bert_repro.models import modeling_bert_repro
from bert_repro.models.loading import (
    load_config,
    load_tokenizer,
    longest_input,
    require_vocabulary,
    tokenizer_fingerprint,
)
from bert_repro.results import RunResults
from bert_repro.tasks.base import FloatArray, Predictions, Task
from bert_repro.training import adapters, run
from bert_repro.training.batches import Ids, batch_sizes
from bert_repro.training.best_model import BestModel
from bert_repro.training.optimizer import freeze
from bert_repro.training.performance import resolve_precision
from bert_repro.training.run import load_model
from bert_repro.training.trainer import Trainer

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger("bert_repro")

STEPS_WORTH_COMPILING = 2_500
"""Estimated, not measured: 20 seconds of compiling, and 8 ms less of launching kernels in each step of base."""
NARROW = 256  # hidden size; a learning rate for BERT-base is low for such models
FEATURES_AT_ONCE = 8192  # computed between two exchanges of the processes, and held in memory


def run_finetuning(config: FinetuningConfig, task: Task) -> RunResults:
    """Fine-tunes, scores and predicts once, or sweeps over several runs where the configuration asks for it.

    Args:
        config: the settings.
        task: of `bert_repro.tasks.configured_task`.
    """
    config = resolve_precision(config)
    if config.sweeps:
        from bert_repro.finetuning.sweep import run_sweep

        return run_sweep(config, task)
    return finetune(config, task)


def finetune(config: FinetuningConfig, task: Task, *, last: bool = True, cache: SplitCache | None = None) -> RunResults:
    """Makes one run: reads the data, loads the model, trains, scores, predicts, publishes what was trained.

    Args:
        config: settings of the run; those of a sweep play no part.
        task: what is learned and scored.
        last: leave the process group at the end; False where another run follows.
        cache: tokenized splits that the runs of a sweep share.

    Returns:
        The results, as results.json holds them.

    Raises:
        UserError: the data or the checkpoint cannot be used as asked.
        NonFiniteError, StopRequested: see `bert_repro.training.trainer.Trainer.train`.
    """
    fault = f"--do_train: task {task.name} has no training set; name a finished model and leave it out"
    require(task.train_split or not config.do_train, fault)
    with run.begin(config) as begun:
        return _finetune(begun, task, cache={} if cache is None else cache, last=last)


def _finetune(begun: run.Run[FinetuningConfig], task: Task, *, cache: SplitCache, last: bool) -> RunResults:
    config: FinetuningConfig = begun.config
    shape = load_config(config.model_name_or_path)
    tokenizer = load_tokenizer(config.model_name_or_path)
    longest = longest_input(tokenizer, shape.max_position_embeddings)
    if config.max_seq_length == type(config).max_seq_length > longest:
        logger.info("inputs of at most %d tokens, as %s was trained on", longest, config.model_name_or_path)
        config = dataclasses.replace(config, max_seq_length=longest)
        begun = dataclasses.replace(begun, config=config)
    require_fit(config, shape)
    if config.do_train and shape.hidden_size <= NARROW and config.learning_rate == type(config).learning_rate:
        logger.info("so narrow a model usually learns more with --learning_rate 3e-4 --bias_correction true")
    task = task.prepared(config, tokenizer)
    is_first = not cache  # of the runs on these splits, which have their baselines in common
    splits = SplitReader(config, task, tokenizer, begun.accelerator, cache)
    splits.read_all()
    finetuning = FinetuningRun(config, task, tokenizer, splits, begun.accelerator)
    source = finetuning.source() if config.do_train else None
    begun.clear()

    results: dict[str, Any] = {"task": task.name, "splits": {}}
    if source is not None:
        results["train"] = finetuning.train(source)
    if config.do_eval:
        results["splits"] |= finetuning.split_results(task.eval_splits, splits.evaluation(), is_dev=True)
        scored = {name: split for name, split in results["splits"].items() if "metrics" in split}
        name, split = next(iter(scored.items()))
        results |= {"split": name, "metrics": split["metrics"], "rows_scored": split["rows_scored"]}
        results |= {"primary_metric": task.primary_metric, "degenerate": split["degenerate"]}
        if config.do_train and is_first and begun.accelerator.is_main_process:
            rows = splits.evaluation()[name].examples
            results["baselines"] = finetuning.task.baselines(splits.train().examples, rows)
            if last:
                log_baselines(config, results)
    if config.do_predict:
        results["splits"] |= finetuning.split_results(task.predict_splits, splits.prediction(), is_dev=False)
    results |= {"deviations": finetuning.deviations(), "data": splits.description(finetuning.task)}
    return begun.finish(finetuning.model, tokenizer, results, save_model=config.do_train, last=last)


def require_fit(config: FinetuningConfig, shape: Any) -> None:
    """Raises `UserError` for a length or a number of layers that a model, given by its configuration, does not have."""
    layers, positions, length = shape.num_hidden_layers, shape.max_position_embeddings, config.max_seq_length
    frozen = config.freeze_layers or 0
    require(frozen <= layers, f"--freeze_layers is {frozen}; the model has {layers} layers")
    require(length <= positions, f"--max_seq_length is {length}; the model has {positions} positions; give fewer")


def model_changes(config: Any) -> dict[str, Any]:
    """Returns the settings of the model's configuration that a fine-tuning run's flags ask for.

    Args:
        config: any fine-tuning configuration.
    """
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob", "bilstm_size")
    asked = {name: getattr(config, name) for name in names if getattr(config, name) is not None}
    row = getattr(config, "feature_based", None)
    if row is None:
        return asked
    return asked | {
        "token_features": row,
        "bilstm_size": config.bilstm_size or FEATURE_BILSTM_SIZE,
        "bilstm_layers": FEATURE_BILSTM_LAYERS,
    }


def log_baselines(config: FinetuningConfig, results: Mapping[str, Any]) -> None:
    """Logs the baselines of a run's results, and what may help a model that is not ahead of them."""
    metric, found = results["primary_metric"], results["baselines"]
    if not found:
        return
    scores = ", ".join(f"{baseline} {values[metric]:.4f}" for baseline, values in found.items())
    logger.info("baselines on the same rows: %s: %s", metric, scores)
    ahead = [baseline for baseline, values in found.items() if values[metric] >= results["metrics"][metric]]
    if ahead and not results["degenerate"]:  # which has advice of its own
        advice = "" if config.bias_correction else ", --bias_correction true"
        names = " and ".join(ahead)
        logger.warning("the model is not ahead of %s; may help: more rows, more --num_train_epochs%s", names, advice)


class FinetuningRun:
    """A model with its task and tokenized splits, ready to train, score and predict.

    Args:
        config: settings of the run.
        task: the task, as `Task.prepared` returns it.
        tokenizer: the model's tokenizer.
        splits: the data, already read.
        accelerator: devices and processes.

    Raises:
        UserError: the checkpoint cannot be loaded, or does not fit the task, the tokenizer or the length; or another
            model of an ensemble does not fit the first.
    """

    def __init__(
        self,
        config: FinetuningConfig,
        task: Task,
        tokenizer: "PreTrainedTokenizerBase",
        splits: SplitReader,
        accelerator: Accelerator,
    ) -> None:
        self.config, self.tokenizer, self.splits, self.accelerator = config, tokenizer, splits, accelerator
        self.model = self._loaded_model(config, task)
        self.model.to(accelerator.device)
        self.task = task.restored(self.model.config)
        require_vocabulary(config.model_name_or_path, self.model, tokenizer)
        if config.do_train and config.max_seq_length > (trained := tokenizer.model_max_length):
            logger.warning("%s read %d tokens at most: longer inputs cost accuracy", config.model_name_or_path, trained)
            tokenizer.model_max_length = config.max_seq_length
        if config.freeze_layers is not None:
            freeze(self.model, config.freeze_layers)
        self.feature_cache: FeatureCache | None = None
        if isinstance(config, NerConfig) and config.feature_based:
            self.model.bert.requires_grad_(False)
            self.feature_cache = FeatureCache(config, self.model.bert, accelerator.device)
            with accelerator.main_process_first():
                for split in splits.read.values():
                    self.feature_cache.load(split.features)
        device, pad = accelerator.device, tokenizer.pad_token_id
        self.model_inputs = ModelInputs(config, self.task, pad, device, self.feature_cache)
        self._members = [self._checked_member(name) for name in config.ensemble_with]

    @staticmethod
    def _loaded_model(config: FinetuningConfig, task: Task) -> Any:
        """Loads the model to train or to score; a head that was fine-tuned before is matched with the task's labels."""
        model_class = getattr(modeling_bert_repro, task.head)
        name = str(config.model_name_or_path)
        if not config.do_train:
            return load_model(model_class, config, may_add_weights=False)

        changes = {**task.model_settings(), **model_changes(config)}
        checkpoint_labels = trained_labels(load_config(name), task.head)
        if not checkpoint_labels or not task.label_names or checkpoint_labels == list(task.label_names):
            return load_model(model_class, config, may_add_weights=True, **changes)

        # Load the head as it is, with its own labels, and match its rows before an adapter is added.
        for setting in ("id2label", "label2id"):
            changes.pop(setting, None)
        return load_model(
            model_class,
            config,
            may_add_weights=True,
            after_loading=lambda model: relabel_head(model, task.label_names, name),
            **changes,
        )

    def source(self) -> FinetuningSource:
        """Returns the training inputs in their order.

        Raises:
            UserError: the batch cannot be shared, or is larger than the data.
        """
        processes = self.accelerator.num_processes
        features = self.task.training_features(self.splits.train().features)
        sizes = batch_sizes(self.config, processes, self.task.paper_batch)
        source = FinetuningSource(self.config, self.task, features, sizes, processes, self.model_inputs)
        if self.config.do_eval:  # scores on dev choose weights, and end runs
            contents = [content_digest(split.features) for split in self.splits.evaluation().values()]
            source.data_fingerprint["content of the evaluation inputs"] = contents
        return source

    def train(self, source: FinetuningSource) -> dict[str, Any]:
        """Fine-tunes the model; returns the `train` part of the results."""
        task, config, split = self.task, self.config, self.splits.train()
        best, patience = None, config.early_stopping_patience
        if patience is not None or config.load_best_model_at_end:
            best = BestModel(Path(config.output_dir), task.primary_metric, patience=patience)
        trainer = Trainer(
            self.accelerator,
            self.model,
            source,
            config,
            tokenizer=self.tokenizer,
            evaluate=self._evaluate_first,
            best=best,
            layer_decay=config.layerwise_lr_decay,
            compile_options={"dynamic": True} if self._compiles(source.total_steps) else None,
            by_layer=True,
        )
        rows, inputs, batch = len(split.examples), len(source.features), source.sizes.batch
        logger.info("%d rows, %d inputs: %d steps of %d inputs", rows, inputs, source.total_steps, batch)
        trainer.train()
        folder, writes = Path(config.output_dir), self.accelerator.is_main_process
        self.model, adapter = adapters.merge_and_save(trainer.model, self.tokenizer, folder, write=writes)
        return {
            **adapter,
            "examples": rows,
            "published_rows": task.published_rows(str(task.train_split)),
            "rows": inputs,
            "dropped": len(split.features) - inputs,
            "truncated": task.count_truncated(source.features),
            "steps": trainer.state.step,
            "batch": batch,
            "sequences_per_example": task.sequences_per_example,
            "compiled_graphs": trainer.compiled_graphs,
            **({"best_step": best.step} if best else {}),
        }

    def _compiles(self, steps: int) -> bool:
        """Whether the training step is compiled, for any number of tokens."""
        if self.config.torch_compile is not None:
            return self.config.torch_compile
        # A BiLSTM's sequences and cached states of an encoder are no part of one graph.
        one_graph = self.config.packing and self.feature_cache is None and self.model.config.bilstm_size is None
        return self.accelerator.device.type == "cuda" and one_graph and steps >= STEPS_WORTH_COMPILING

    def split_results(self, names: Sequence[str], found: Mapping[str, Split], *, is_dev: bool) -> dict[str, Any]:
        """Predicts splits, scores those with labels and writes the predictions; a missing one is reported as missing.

        Args:
            names: of the splits, for the results.
            found: those that are there.
            is_dev: the task's settings may be chosen on them, and a degenerate run is reported.
        """
        return {
            name: self._results_of(name, found[name], is_dev=is_dev) if name in found else {"missing": True}
            for name in names
        }

    def _results_of(self, name: str, split: Split, *, is_dev: bool) -> dict[str, Any]:
        predictions, examples = self.predictions(split), split.examples
        if is_dev and (self.config.do_train or self.config.ensemble_with):
            self.task = self.task.tuned(predictions, examples)
        if is_dev and self.config.do_train:
            self.model.config.update(self.task.model_settings())
        results: dict[str, Any] = {}
        if self.task.is_labelled(examples):  # as some test sets are (CoNLL-2003)
            metrics = self.task.score(predictions, examples)
            shown = ", ".join(f"{metric} {value:.4f}" for metric, value in metrics.items())
            logger.info("%s %s: %s", self.task.name, name, shown)
            published_rows = self.task.published_rows(name)
            results = {"metrics": metrics, "rows_scored": len(examples), "published_rows": published_rows}
            if details := self.task.score_details(predictions, examples):
                results["details"] = details
        if is_dev:
            results["degenerate"] = self.task.is_degenerate(predictions, examples)
            if results["degenerate"]:
                logger.warning(
                    "%s %s: degenerate run, the same answer for every row or none right; try more steps, another "
                    "--seed, a lower --learning_rate or a longer warm-up",
                    self.task.name,
                    name,
                )
        files = []
        if self.accelerator.is_main_process:
            files = self.task.write_predictions(self.config.output_dir, name, examples, predictions)
        truncated = self.task.count_truncated(split.features)
        return results | {"rows": len(examples), "truncated": truncated, "files": [path.name for path in files]}

    def deviations(self) -> dict[str, str]:
        """Returns where the given data or model make the run depart from the paper; each is logged as a warning."""
        found = self.task.deviations(self.tokenizer, {name: split.examples for name, split in self.splits.read.items()})
        for name, explanation in found.items():
            logger.warning("deviation %s: %s", name, explanation)
        return found

    def _evaluate_first(self) -> dict[str, Any]:
        """Scores the first evaluation split, for the training log."""
        split = next(iter(self.splits.evaluation().values()))
        return self.task.score(self.predictions(split), split.examples)

    def predictions(self, split: Split) -> Predictions:
        """Returns what the model predicts for a split."""
        outputs = self.outputs(split.features)
        return self.task.postprocess(split.examples, split.features, outputs)

    def outputs(self, features: "datasets.Dataset") -> Iterator[FloatArray]:
        """Yields the head's output for every feature of a split, computed once over all processes, in order.

        Those of an ensemble are the mean of its models' outputs.
        """
        lengths = np.asarray(features["length"][:])
        for start in range(0, len(features), FEATURES_AT_ONCE):
            # Sorted by length, so that a batch has little padding.
            rows = start + np.argsort(-lengths[start : start + FEATURES_AT_ONCE], kind="stable")
            yield from self._mean_outputs(features, rows)

    def _mean_outputs(self, features: "datasets.Dataset", rows: Ids) -> list[FloatArray]:
        outputs = self._outputs_of(self.model, features, rows)
        if not self.config.ensemble_with:
            return outputs
        sums = [output.astype(np.float64) for output in outputs]
        for member in self._members:
            # Only one of them is in the device's memory together with the first.
            member.to(self.accelerator.device)
            for total, output in zip(sums, self._outputs_of(member, features, rows), strict=True):
                total += output
            member.to("cpu")
        return [(total / (1 + len(self.config.ensemble_with))).astype(np.float32) for total in sums]

    def _outputs_of(self, model: Any, features: "datasets.Dataset", rows: Ids) -> list[FloatArray]:
        """Computes one model's outputs for some features, in the order of the split.

        XLA processes cannot exchange objects, so there each computes all.
        """
        batches = np.array_split(rows, math.ceil(len(rows) / self.config.per_device_eval_batch_size))
        model.eval()
        if self.accelerator.device.type == "xla":
            return _in_order(pair for batch in batches for pair in self._forward(model, features, batch))
        mine = batches[self.accelerator.process_index :: self.accelerator.num_processes]
        return _in_order(gather_object([pair for batch in mine for pair in self._forward(model, features, batch)]))

    @torch.no_grad()
    def _forward(self, model: Any, features: "datasets.Dataset", rows: Ids) -> Iterator[tuple[int, FloatArray]]:
        chosen = [{key: value for key, value in row.items() if key != "labels"} for row in rows_of(features, rows)]
        batch = self.model_inputs(features, rows, chosen)
        with self.accelerator.autocast():
            output = model(**send_to_device(batch, self.accelerator.device))
        outputs = output_rows(output, [row["length"] for row in chosen])
        columns = self.task.label_columns(model.config.id2label) if self.task.label_names else None
        for row, array in zip(rows, outputs, strict=True):
            yield int(row), array if columns is None else array[..., columns]

    def _checked_member(self, name: str) -> Any:
        """Loads another model of the ensemble, which must read the inputs of the first and have the same labels."""
        config = self.config
        tokenizer = load_tokenizer(name)
        if tokenizer_fingerprint(tokenizer) != tokenizer_fingerprint(self.tokenizer):
            raise UserError(f"--ensemble_with {name}: has another tokenizer than {config.model_name_or_path}")
        model_class = getattr(modeling_bert_repro, self.task.head)
        loaded = load_model(model_class, dataclasses.replace(config, model_name_or_path=name), may_add_weights=False)
        require_fit(config, loaded.config)
        return loaded


def output_rows(output: Any, lengths: Sequence[int]) -> list[FloatArray]:
    """Takes a head's output for a batch apart.

    Args:
        output: its `logits`, or `start_logits` and `end_logits`.
        lengths: tokens of each row of the batch.

    Returns:
        One array per row: its logits, (labels,); of a head that answers for every token, (length, labels), where start
        and end of a span are two labels.
    """
    names = ("start_logits", "end_logits") if hasattr(output, "start_logits") else ("logits",)
    arrays = [getattr(output, name).detach().float().cpu().numpy() for name in names]
    logits = np.stack(arrays, axis=-1) if len(arrays) > 1 else arrays[0]
    if logits.ndim == 2:
        return list(logits)
    if len(logits) == len(lengths):
        return [row[:length].copy() for row, length in zip(logits, lengths, strict=True)]
    return np.split(logits[0], np.cumsum(lengths)[:-1])


def _in_order(pairs: Iterable[tuple[int, FloatArray]]) -> list[FloatArray]:
    by_row = dict(pairs)
    return [by_row[row] for row in sorted(by_row)]
