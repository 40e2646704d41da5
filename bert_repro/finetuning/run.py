"""One fine-tuning run for any task: train, score, predict, publish (paper 4, A.3).

The order of events:

1. The output folder is locked and the devices are set up (`training.run.begin`).
2. The splits are read and tokenized, and the model is loaded. Whatever is wrong with them is refused here, and an
   earlier run's folder stays as it was.
3. The products of an earlier run are removed.
4. The model is trained.
5. The dev splits are scored. Settings that are chosen on dev (thresholds) are stored in the model.
6. The test splits are predicted.
7. Results, model and card are written.

A run without `do_train` scores or predicts with a finished model, or with the mean of several (`ensemble_with`).
"""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate import Accelerator

from bert_repro.configs import FinetuningConfig, NerConfig
from bert_repro.configs.presets import FEATURE_BILSTM_LAYERS, FEATURE_BILSTM_SIZE
from bert_repro.errors import UserError, flag
from bert_repro.finetuning.batch_source import FinetuningSource, ModelInputs
from bert_repro.finetuning.data import Split, SplitCache, SplitReader, content_digest
from bert_repro.finetuning.error_analysis import class_scores, never_predicted, predictions_file, wrong_rows
from bert_repro.finetuning.frozen_encoder import FeatureCache
from bert_repro.finetuning.head_labels import relabel_head, trained_labels
from bert_repro.finetuning.outputs import HeadOutputs
from bert_repro.models import modeling_bert_repro
from bert_repro.models.configuration_bert_repro import BertReproConfig
from bert_repro.models.loading import (
    load_config,
    load_tokenizer,
    longest_input,
    require_vocabulary,
    tokenizer_fingerprint,
)
from bert_repro.results import RunResults
from bert_repro.tasks.base import JsonObject, Predictions, Task
from bert_repro.training import adapters, run
from bert_repro.training.batches import batch_sizes
from bert_repro.training.best_model import BestModel
from bert_repro.training.optimizer import freeze
from bert_repro.training.run import load_model
from bert_repro.training.trainer import Trainer
from bert_repro.utils.readers import comma_separated

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger("bert_repro")

STEPS_WORTH_COMPILING = 2_500
"""Estimated, not measured: compiling takes 20 seconds and saves 8 ms of launching kernels in each step of BERT-base."""


@dataclasses.dataclass(frozen=True)
class SweepMember:
    """What a run does differently because it is a member of a sweep.

    Args:
        cache: tokenized splits that the runs share.
        computes_baselines: whether this run computes the baselines, which are equal for all runs.
    """

    cache: SplitCache
    computes_baselines: bool


def finetune(config: FinetuningConfig, task: Task, member: SweepMember | None = None) -> RunResults:
    """Makes one run; see the order of events above.

    Args:
        config: settings of the run. Those of a sweep are ignored.
        task: what is learned and scored, from `bert_repro.tasks.configured_task`.
        member: given if the run is part of a sweep. Other runs then follow in these processes.

    Returns:
        The results, as in results.json.

    Raises:
        UserError: the data or the checkpoint cannot be used.
        NonFiniteError, StopRequested: see `bert_repro.training.trainer.Trainer.train`.
    """
    if config.do_train and not task.train_split:
        raise UserError(
            f"{flag('do_train')}: task {task.name} has no training set. Leave it out and pass a model that is already "
            "fine-tuned.",
            setting="do_train",
        )
    with run.begin(config) as begun:
        return _finetune(begun, task, member)


def _finetune(begun: run.Run[FinetuningConfig], task: Task, member: SweepMember | None) -> RunResults:
    # Read the data and load the model.
    tokenizer = load_tokenizer(begun.config.model_name_or_path)
    config = _fitting_config(begun.config, tokenizer)
    begun = dataclasses.replace(begun, config=config)
    task = task.prepared(config, tokenizer)
    splits = SplitReader(config, task, tokenizer, begun.accelerator, member.cache if member else {})
    splits.read_all()
    finetuning = FinetuningRun(config, task, tokenizer, splits, begun.accelerator)
    source = finetuning.source() if config.do_train else None

    # Nothing can be refused any more, so an earlier run may be removed.
    begun.clear()

    # Train, score, predict.
    results: JsonObject = {"task": task.name, "splits": {}}
    if source is not None:
        results["train"] = finetuning.train(source)
    if config.do_eval:
        results["splits"] |= finetuning.split_results(task.eval_splits, splits.evaluation(), is_dev=True)
        name = _first_scored_split(results["splits"])
        split = results["splits"][name]
        results |= {"split": name, "metrics": split["metrics"], "rows_scored": split["rows_scored"]}
        results |= {"primary_metric": task.primary_metric, "degenerate": split["degenerate"]}
        if config.do_train and begun.accelerator.is_main_process:
            _add_baselines(results, finetuning, member)
    if config.do_predict:
        results["splits"] |= finetuning.split_results(task.predict_splits, splits.prediction(), is_dev=False)
    results |= {"deviations": finetuning.deviations(), "data": splits.description(finetuning.task)}

    # Publish. The record of a member does not depend on whether the sweep was interrupted.
    if member is not None:
        reported = dataclasses.replace(config, resume_from_checkpoint=None, overwrite_output_dir=True)
        begun = dataclasses.replace(begun, config=reported)
    return begun.finish(finetuning.model, tokenizer, results, save_model=config.do_train, last=member is None)


def _fitting_config(config: FinetuningConfig, tokenizer: "PreTrainedTokenizerBase") -> FinetuningConfig:
    """Returns the settings with a default length that fits the checkpoint.

    Raises:
        UserError: a length or a number of layers does not fit the checkpoint.
    """
    name = config.model_name_or_path
    shape = load_config(name)
    longest = longest_input(tokenizer, shape.max_position_embeddings)
    has_default_length = config.max_seq_length == type(config).max_seq_length
    if has_default_length and config.max_seq_length > longest:
        logger.info("Using %s, the longest input that %s was trained on.", flag("max_seq_length", longest), name)
        config = dataclasses.replace(config, max_seq_length=longest)
    require_fit(config, shape)
    return config


def require_fit(config: FinetuningConfig, shape: BertReproConfig) -> None:
    """Refuses an input length or a number of layers that a model does not have.

    Args:
        config: settings of the run.
        shape: the model's configuration.

    Raises:
        UserError: one of them is larger than the model's.
    """
    if config.freeze_layers is not None and config.freeze_layers > shape.num_hidden_layers:
        raise UserError(
            f"{flag('freeze_layers', config.freeze_layers)} exceeds the {shape.num_hidden_layers} layers of the model. "
            "Use a smaller number.",
            setting="freeze_layers",
        )
    if config.max_seq_length > shape.max_position_embeddings:
        raise UserError(
            f"{flag('max_seq_length', config.max_seq_length)} exceeds the {shape.max_position_embeddings} positions of "
            "the model. Use a smaller number.",
            setting="max_seq_length",
        )


def model_changes(config: FinetuningConfig) -> JsonObject:
    """Returns the entries of the model's configuration that the settings of a run change."""
    changes: JsonObject = {}
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "bilstm_size"):
        value = getattr(config, name)
        if value is not None:
            changes[name] = value
    if isinstance(config, NerConfig) and config.feature_based is not None:
        changes["token_features"] = config.feature_based
        changes["bilstm_size"] = config.bilstm_size or FEATURE_BILSTM_SIZE
        changes["bilstm_layers"] = FEATURE_BILSTM_LAYERS
    return changes


def _first_scored_split(splits: Mapping[str, JsonObject]) -> str:
    """Returns the name of the first split with scores; `SplitReader` has refused data without any."""
    return next(name for name, split in splits.items() if "metrics" in split)


# --- Baselines --------------------------------------------------------------------------------------------------------


def _add_baselines(results: JsonObject, finetuning: "FinetuningRun", member: SweepMember | None) -> None:
    """Adds the scores of the baselines to the results. A single run also logs them."""
    if member is not None and not member.computes_baselines:
        return
    splits = finetuning.splits
    dev = splits.evaluation()[results["split"]]
    results["baselines"] = finetuning.task.baselines(splits.train().examples, dev.examples)
    if member is None:
        log_baselines(finetuning.config, results)


def log_baselines(config: FinetuningConfig, results: JsonObject) -> None:
    """Logs the scores of the baselines, and advice if the model does not beat one of them.

    Args:
        config: settings of the run.
        results: the results of the run, with `baselines`.
    """
    baselines = results["baselines"]
    if not baselines:
        return
    metric = results["primary_metric"]
    scores = ", ".join(f"{name} {metrics[metric]:.4f}" for name, metrics in baselines.items())
    logger.info("baselines on the same rows: %s: %s", metric, scores)

    # A degenerate run has been reported with advice of its own.
    if results["degenerate"]:
        return
    score = results["metrics"][metric]
    unbeaten = {name: metrics[metric] for name, metrics in baselines.items() if metrics[metric] >= score}
    if not unbeaten:
        return
    names = " and ".join(unbeaten)
    advice = f"More training data or more epochs ({flag('num_train_epochs')}) may help."
    if not config.bias_correction:
        advice += f" So may {flag('bias_correction', True)}."
    logger.warning(
        "The model does not beat the baseline %s (%s %.4f <= %.4f). %s",
        names,
        metric,
        score,
        min(unbeaten.values()),
        advice,
    )


# --- The run ----------------------------------------------------------------------------------------------------------


class FinetuningRun:
    """A model with its task and tokenized splits, ready to train, score and predict.

    Args:
        config: settings of the run.
        task: the task, from `Task.prepared`.
        tokenizer: the model's tokenizer.
        splits: the data, already read.
        accelerator: devices and processes.

    Raises:
        UserError: the checkpoint cannot be loaded, or does not fit the task, the tokenizer or the length; or another
            model of an ensemble does not fit the first one.
    """

    def __init__(
        self,
        config: FinetuningConfig,
        task: Task,
        tokenizer: "PreTrainedTokenizerBase",
        splits: SplitReader,
        accelerator: Accelerator,
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.splits = splits
        self.accelerator = accelerator

        # The model.
        self.model = _load_model(config, task)
        self.model.to(accelerator.device)
        self.task = task.restored(self.model.config)
        require_vocabulary(config.model_name_or_path, self.model, tokenizer)
        if config.do_train:
            self._allow_length()
        if config.freeze_layers is not None:
            freeze(self.model, config.freeze_layers)

        # Its inputs.
        self.feature_cache = self._frozen_encoder_states()
        pad_token_id = int(tokenizer.pad_token_id)  # type: ignore[arg-type]
        self.model_inputs = ModelInputs(config, self.task, pad_token_id, accelerator.device, self.feature_cache)

        # The other models of an ensemble.
        self._members = [self._load_member(name) for name in config.ensemble_with]

    def _allow_length(self) -> None:
        """Stores a longer input length than the checkpoint was trained on in the tokenizer, with a warning."""
        trained_length = self.tokenizer.model_max_length
        if self.config.max_seq_length > trained_length:
            logger.warning(
                "%s was trained on inputs of at most %d tokens. Longer inputs cost accuracy.",
                self.config.model_name_or_path,
                trained_length,
            )
            self.tokenizer.model_max_length = self.config.max_seq_length

    def _frozen_encoder_states(self) -> FeatureCache | None:
        """Returns the hidden states of all splits if the encoder is frozen (`feature_based`), else None."""
        if not isinstance(self.config, NerConfig) or not self.config.feature_based:
            return None
        self.model.bert.requires_grad_(False)
        cache = FeatureCache(self.config, self.model.bert, self.accelerator.device)
        with self.accelerator.main_process_first():
            for split in self.splits.read.values():
                cache.load(split.features)
        return cache

    def _load_member(self, name: str) -> Any:
        """Loads another model of the ensemble. It must read the same inputs as the first model and have its labels."""
        if tokenizer_fingerprint(load_tokenizer(name)) != tokenizer_fingerprint(self.tokenizer):
            raise UserError(
                f"{flag('ensemble_with', name)} has another tokenizer than {self.config.model_name_or_path}. The "
                "models of an ensemble need the same one.",
                setting="ensemble_with",
            )
        model_class = getattr(modeling_bert_repro, self.task.head)
        config = dataclasses.replace(self.config, model_name_or_path=name)
        model = load_model(model_class, config, may_add_weights=False)
        require_fit(config, model.config)
        return model

    # --- Training

    def source(self) -> FinetuningSource:
        """Returns the training inputs in their order.

        Raises:
            UserError: the batch cannot be shared among the processes, or is larger than the data.
        """
        processes = self.accelerator.num_processes
        features = self.task.training_features(self.splits.train().features)
        sizes = batch_sizes(self.config, processes, self.task.paper_batch)
        source = FinetuningSource(self.config, self.task, features, sizes, processes, self.model_inputs)
        # Scores on dev may choose the weights and end the run, so a resumed run needs the same dev data.
        if self.config.do_eval:
            evaluation = self.splits.evaluation().values()
            source.data_fingerprint["content of the evaluation inputs"] = [
                content_digest(split.features) for split in evaluation
            ]
        return source

    def train(self, source: FinetuningSource) -> JsonObject:
        """Fine-tunes the model and returns the part `train` of the results."""
        task, config, split = self.task, self.config, self.splits.train()
        output_dir = Path(config.output_dir)
        best = None
        patience = config.early_stopping_patience
        if patience is not None or config.load_best_model_at_end:
            best = BestModel(output_dir, task.primary_metric, patience=patience)
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
        num_inputs = len(source.features)
        inputs = "" if num_inputs == len(split.examples) else f", {num_inputs} inputs"
        logger.info(
            "Training on %d rows%s: %d steps, batch size %d.",
            len(split.examples),
            inputs,
            source.total_steps,
            source.sizes.batch,
        )
        trainer.train()

        # An adapter is saved alone, then merged into the weights.
        is_main_process = self.accelerator.is_main_process
        self.model, adapter = adapters.merge_and_save(trainer.model, self.tokenizer, output_dir, write=is_main_process)
        results: JsonObject = {
            **adapter,
            "examples": len(split.examples),
            "published_rows": task.published_rows(str(task.train_split)),
            "rows": num_inputs,
            "dropped": len(split.features) - num_inputs,
            "truncated": task.count_truncated(source.features),
            "steps": trainer.state.step,
            "batch": source.sizes.batch,
            "sequences_per_example": task.sequences_per_example,
            "compiled_graphs": trainer.compiled_graphs,
        }
        if best is not None:
            results["best_step"] = best.step
        return results

    def _compiles(self, steps: int) -> bool:
        """Returns whether the training step is compiled, for any number of tokens."""
        if self.config.torch_compile is not None:
            return self.config.torch_compile
        # A BiLSTM over sequences, and stored states of an encoder, cannot be part of the graph.
        is_one_graph = self.config.packing and self.feature_cache is None and self.model.config.bilstm_size is None
        return self.accelerator.device.type == "cuda" and is_one_graph and steps >= STEPS_WORTH_COMPILING

    def _evaluate_first(self) -> JsonObject:
        """Scores the first evaluation split, for the training log."""
        split = next(iter(self.splits.evaluation().values()))
        return self.task.score(self.predictions(split), split.examples)

    # --- Scores and predictions

    def split_results(self, names: Sequence[str], splits: Mapping[str, Split], *, is_dev: bool) -> JsonObject:
        """Predicts splits, scores those with labels, and writes the predictions.

        Args:
            names: the splits that the results name. Those that do not exist are reported as missing.
            splits: the splits that exist.
            is_dev: whether settings of the task may be chosen on them, and a degenerate run is reported.
        """
        results: JsonObject = {}
        for name in names:
            results[name] = self._results_of(name, splits[name], is_dev=is_dev) if name in splits else {"missing": True}
        return results

    def _results_of(self, name: str, split: Split, *, is_dev: bool) -> JsonObject:
        predictions, examples = self.predictions(split), split.examples
        # Choose thresholds on dev. After training, the model stores them.
        if is_dev and (self.config.do_train or self.config.ensemble_with):
            self.task = self.task.tuned(predictions, examples)
        if is_dev and self.config.do_train:
            self.model.config.update(self.task.model_settings())

        # Some test sets have labels too (CoNLL-2003).
        results: JsonObject = {}
        if self.task.is_labelled(examples):
            results = self._scores(name, predictions, split)
        if is_dev:
            results["degenerate"] = self.task.is_degenerate(predictions, examples)
            if results["degenerate"]:
                self._warn_of_degenerate_run(name)
        files: list[Path] = []
        if self.accelerator.is_main_process:
            files = self.task.write_predictions(self.config.output_dir, name, examples, predictions)
            if "metrics" in results:
                self._log_wrong_rows(name, results)
        results |= {"rows": len(examples), "truncated": self.task.count_truncated(split.features)}
        results["files"] = [path.name for path in files]
        return results

    def _scores(self, name: str, predictions: Predictions, split: Split) -> JsonObject:
        metrics = self.task.score(predictions, split.examples)
        text = ", ".join(f"{metric} {value:.4f}" for metric, value in metrics.items())
        logger.info("%s %s: %s", self.task.name, name, text)
        results: JsonObject = {
            "metrics": metrics,
            "rows_scored": len(split.examples),
            "published_rows": self.task.published_rows(name),
        }
        details = self.task.score_details(predictions, split.examples)
        # Entities have a table of their own, in which words do not count one by one.
        if "confusion_matrix" in details and "entities" not in details:
            labels, matrix = details["labels"], details["confusion_matrix"]
            details["classes"] = class_scores(labels, matrix)
            missing = never_predicted(labels, matrix)
            if missing:
                details["never_predicted"] = missing
                logger.warning("%s %s: the model never predicts %s.", self.task.name, name, comma_separated(missing))
        if details:
            results["details"] = details
        return results

    def _log_wrong_rows(self, name: str, results: JsonObject) -> None:
        """Logs how many rows of a scored split are wrong, and where to read them."""
        path = predictions_file(Path(self.config.output_dir), name)
        # A number is neither right nor wrong.
        if path is None or "pearson" in results["metrics"]:
            return
        logger.info("%s: %d of %d wrong: %s", name, len(wrong_rows(path)), results["rows_scored"], path)

    def _warn_of_degenerate_run(self, name: str) -> None:
        logger.warning(
            "%s %s: degenerate run. The model gives the same answer for every row, or no right one. Try more steps, "
            "another %s, a lower %s or a longer warm-up.",
            self.task.name,
            name,
            flag("seed"),
            flag("learning_rate"),
        )

    def deviations(self) -> dict[str, str]:
        """Returns where data or model make the run differ from the paper's, and logs each as a warning."""
        examples = {name: split.examples for name, split in self.splits.read.items()}
        deviations = self.task.deviations(self.tokenizer, examples)
        for name, explanation in deviations.items():
            logger.warning("deviation %s: %s", name, explanation)
        return deviations

    def predictions(self, split: Split) -> Predictions:
        """Returns what the model, or the mean of the ensemble, predicts for a split."""
        models = (self.model, *self._members)
        outputs = HeadOutputs(self.config, self.task, models, self.model_inputs, self.accelerator)
        return self.task.postprocess(split.examples, split.features, outputs.of(split.features))


def _load_model(config: FinetuningConfig, task: Task) -> Any:
    """Loads the model to train or to score. A head that was fine-tuned before is matched with the task's labels."""
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
