"""Fine-tuning, scoring and predicting: one run for every task (paper 4, A.3)."""

import hashlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate import Accelerator

from bert_repro.configs import FinetuningConfig, NerConfig
from bert_repro.corpus.tokenizer import load_tokenizer
from bert_repro.errors import UserError
from bert_repro.finetuning.feature_based import FeatureCache, model_changes
from bert_repro.finetuning.prediction import Collate, Predictor, rows_of
from bert_repro.models import modeling_bert_repro
from bert_repro.tasks.base import Predictions, Task
from bert_repro.training import adapters, run
from bert_repro.training.model_loading import load_model
from bert_repro.training.trainer import BatchSizes, Ids, MicroBatch, Step, Trainer, batch_sizes
from bert_repro.utils.randomness import draw

if TYPE_CHECKING:
    import datasets

logger = logging.getLogger("bert_repro")

ORDER = 3  # what is drawn, in the names of `randomness.draw`

Splits = dict[str, tuple["datasets.Dataset", "datasets.Dataset"]]
"""Dataset and features of each split that is there."""
ReadSplits = dict[tuple[tuple[str, ...], int | None], Splits]
"""What has been read and tokenised: the splits of a role (training, evaluation, prediction) up to so many rows."""


def finetune(
    config: FinetuningConfig, task: Task, *, last: bool = True, read: ReadSplits | None = None
) -> dict[str, Any]:
    """Trains, scores and predicts as the configuration says; publishes the model when it was trained.

    Args:
        config: one run's settings; those of a search play no part.
        task: what is learnt and scored.
        last: leave the process group; False where these processes go on with another run.
        read: what earlier runs of the same task, files, tokenizer and length have read; this run's splits are added.

    Returns:
        The record that results.json holds.

    Raises:
        UserError: the data or the checkpoint are not usable as asked.
        NonFiniteError, StopRequested: see `bert_repro.training.trainer.Trainer.train`.
    """
    if config.do_train and task.train_split is None:
        raise UserError(f"--do_train: task {task.name} has no training set; name a finished model and leave it out")
    begun = run.begin(config)
    config = begun.config
    bench = _Bench(config, task, begun.accelerator, {} if read is None else read)
    results: dict[str, Any] = {"task": task.name, "splits": {}}
    bench.read()
    begun.clear()
    if config.do_train:
        results["train"] = bench.train()
    if config.do_eval:
        results["splits"] |= bench.evaluate_all()
        scored = {name: split for name, split in results["splits"].items() if "metrics" in split}
        name, split = next(iter(scored.items()))
        results |= {"split": name, "metrics": split["metrics"], "rows_scored": split["rows_scored"]}
        results |= {"primary_metric": task.primary_metric, "collapsed": split["collapsed"]}
    if config.do_predict:
        results["splits"] |= bench.predict_all()
    results |= {"deviations": bench.deviations(), "data": bench.task.data_description()}
    return begun.finish(bench.model, bench.tokenizer, results, save_model=config.do_train, last=last)


class _Bench:
    """One task, one model and one tokenizer, ready to train, score and predict."""

    def __init__(self, config: FinetuningConfig, task: Task, accelerator: Accelerator, read: ReadSplits) -> None:
        self.config, self.accelerator = config, accelerator
        self.on_xla = accelerator.device.type == "xla"
        self.tokenizer = load_tokenizer(config.tokenizer_name or config.model_name_or_path)
        task = task.prepared(config, self.tokenizer)
        model_class = getattr(modeling_bert_repro, task.head)
        changes: dict[str, Any] = {}
        if config.do_train:
            changes = {**task.model_settings(), **model_changes(config)}
        self.model = load_model(model_class, config, may_add_weights=config.do_train, **changes)
        self.model.to(accelerator.device)
        self.feature_cache: FeatureCache | None = None
        if isinstance(config, NerConfig) and config.feature_based:
            self.model.bert.requires_grad_(False)
            self.feature_cache = FeatureCache(config, self.model.bert, accelerator.device)
        self.task = task.restored(self.model.config)
        self._check_fit()
        self.predictor = Predictor(config, self.task, self.tokenizer, accelerator, self._collate)
        self._read = read
        self._used: dict[str, datasets.Dataset] = {}

    def read(self) -> None:
        """Reads and tokenises all that the run asks for, so that what is wrong there comes out before training."""
        task, config = self.task, self.config
        if config.do_train and task.train_split is not None:
            self._splits([task.train_split], config.max_train_samples)
        if config.do_eval:
            for name, (dataset, _) in self._splits(task.eval_splits, config.max_eval_samples).items():
                if not task.is_labelled(dataset):
                    raise UserError(f"--do_eval: split {name} of {task.name} has no labels; use --do_predict")
        if config.do_predict:
            self._splits(task.predict_splits, None)

    def train(self) -> dict[str, Any]:
        """Fine-tunes the model; returns what the record says about it."""
        task, config = self.task, self.config
        assert task.train_split is not None, "checked before the run began"
        examples, read = self._splits([task.train_split], config.max_train_samples)[task.train_split]
        features = task.training_features(read)
        sizes = batch_sizes(config, self.accelerator.num_processes, task.paper_batch)
        source = FinetuningSource(config, task, features, sizes, self._collate)
        trainer = Trainer(
            self.accelerator,
            self.model,
            source,
            config,
            tokenizer=self.tokenizer,
            evaluate=self._evaluate_first,
        )
        trainer.train()
        writes = self.accelerator.is_main_process
        self.model, adapter = adapters.settle(trainer.model, self.tokenizer, Path(config.output_dir), write=writes)
        return {
            **adapter,
            **(self.feature_cache.record() if self.feature_cache else {}),
            "examples": len(examples),
            "rows": len(features),
            "dropped": len(read) - len(features),
            "truncated": task.count_truncated(features),
            "steps": source.total_steps,
            "batch": sizes.batch,
            "compiled_graphs": trainer.compiled_graphs,
        }

    def evaluate_all(self) -> dict[str, Any]:
        """Scores every evaluation split; a missing one is reported as missing."""
        splits = self._splits(self.task.eval_splits, self.config.max_eval_samples)
        return {
            name: self._evaluate(name, *splits[name]) if name in splits else {"missing": True}
            for name in self.task.eval_splits
        }

    def predict_all(self) -> dict[str, Any]:
        """Writes predictions for every prediction split."""
        splits = self._splits(self.task.predict_splits, None)
        return {
            name: self._predict(name, *splits[name]) if name in splits else {"missing": True}
            for name in self.task.predict_splits
        }

    def deviations(self) -> dict[str, str]:
        """Where the data or the model given make the run depart from the paper; each is logged as a warning."""
        found = self.task.deviations(self.tokenizer, self._used)
        for name, explanation in found.items():
            logger.warning("deviation %s: %s", name, explanation)
        return found

    def _evaluate_first(self) -> dict[str, Any]:
        splits = self._splits(self.task.eval_splits, self.config.max_eval_samples)
        dataset, features = next(iter(splits.values()))
        return self.task.score(self._predictions(dataset, features), dataset)

    def _evaluate(self, name: str, dataset: "datasets.Dataset", features: "datasets.Dataset") -> dict[str, Any]:
        predictions = self._predictions(dataset, features)
        if self.config.do_train or self.config.ensemble_with:
            self.task = self.task.tuned(predictions, dataset)
        if self.config.do_train:
            self.model.config.update(self.task.model_settings())
        scores = self._score(name, dataset, predictions)
        scores["collapsed"] = self.task.is_degenerate(predictions, dataset)
        if scores["collapsed"]:
            logger.warning(
                "%s %s: collapsed, the model says the same of every row; try another --seed, a lower --learning_rate "
                "or a longer warm-up",
                self.task.name,
                name,
            )
        return scores | self._write(name, dataset, features, predictions)

    def _predict(self, name: str, dataset: "datasets.Dataset", features: "datasets.Dataset") -> dict[str, Any]:
        predictions = self._predictions(dataset, features)
        # Some test sets have labels (CoNLL-2003): they are scored, but nothing is tuned on them.
        scores = self._score(name, dataset, predictions) if self.task.is_labelled(dataset) else {}
        return scores | self._write(name, dataset, features, predictions)

    def _score(self, name: str, dataset: "datasets.Dataset", predictions: Predictions) -> dict[str, Any]:
        metrics = self.task.score(predictions, dataset)
        told = ", ".join(f"{metric} {value:.4f}" for metric, value in metrics.items())
        logger.info("%s %s: %s", self.task.name, name, told)
        return {"metrics": metrics, "rows_scored": len(dataset)}

    def _predictions(self, dataset: "datasets.Dataset", features: "datasets.Dataset") -> Predictions:
        return self.task.postprocess(dataset, features, self.predictor.outputs(self.model, features))

    def _write(
        self, name: str, dataset: "datasets.Dataset", features: "datasets.Dataset", predictions: Predictions
    ) -> dict[str, Any]:
        files = []
        if self.accelerator.is_main_process:
            files = self.task.write_predictions(self.config.output_dir, name, dataset, predictions)
        truncated = self.task.count_truncated(features)
        return {"rows": len(dataset), "truncated": truncated, "files": [path.name for path in files]}

    def _collate(self, features: "datasets.Dataset", ids: Ids, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """The inputs of the model for some rows of a split; of a frozen encoder, the hidden states in their place."""
        # XLA compiles a graph for every shape: there, all batches are padded to one length.
        config = self.config
        inputs = self.task.collate(
            rows,
            pad_token_id=self.tokenizer.pad_token_id,
            packing=config.packing and not self.on_xla,
            pad_to_multiple_of=config.max_seq_length if self.on_xla else None,
        )
        return inputs if self.feature_cache is None else self.feature_cache.batch(features, ids.tolist(), inputs)

    def _splits(self, names: Sequence[str], limit: int | None) -> Splits:
        """The splits of a role that are there, read and tokenised once, in a search once for all its runs."""
        key = (tuple(names), limit)
        if key not in self._read:
            with self.accelerator.main_process_first():
                loaded = self.task.load(self.config.data_dir, names)
                self._read[key] = {name: self._tokenised(loaded[name], limit) for name in names if name in loaded}
        self._used |= {name: dataset for name, (dataset, _) in self._read[key].items()}
        return self._read[key]

    def _tokenised(self, dataset: "datasets.Dataset", limit: int | None) -> "tuple[datasets.Dataset, datasets.Dataset]":
        kept = dataset.select(range(min(limit or len(dataset), len(dataset))))
        features = self.task.encode(kept, self.tokenizer, self.config.max_seq_length)
        if self.feature_cache:
            self.feature_cache.load(features)
        return kept, features

    def _check_fit(self) -> None:
        config, model = self.config, self.model
        positions = model.config.max_position_embeddings
        if config.max_seq_length > positions:
            raise UserError(f"--max_seq_length is {config.max_seq_length}; the model has {positions} positions")
        if len(self.tokenizer) > model.config.vocab_size:
            raise UserError(
                f"--model_name_or_path {config.model_name_or_path}: its vocabulary of {model.config.vocab_size} is "
                f"smaller than the tokenizer's {len(self.tokenizer)} ids; name the tokenizer it was trained with"
            )


class FinetuningSource:
    """The plan of a fine-tuning run: shuffled epochs laid end to end and cut into full batches, as released.

    Args:
        config: epochs or steps, seed, packing.
        task: collates features and counts their loss terms.
        features: the tokenised training set.
        sizes: sequences per optimiser step, and per device and forward pass.
        collate: makes the model's inputs.
    """

    def __init__(
        self,
        config: FinetuningConfig,
        task: Task,
        features: "datasets.Dataset",
        sizes: BatchSizes,
        collate: Collate,
    ) -> None:
        self.config, self.task, self.features = config, task, features
        self.sizes, self.collate = sizes, collate
        self._orders: dict[int, Ids] = {}
        epochs = config.num_train_epochs or task.paper_epochs
        self.plan: dict[str, Any] = {
            "seed": config.seed,
            "train_batch_size": sizes.batch,
            "number of training inputs": len(features),
            "labels": list(task.label_names),
            "fingerprint of the training inputs": _fingerprint(features),
        }
        self.total_steps = config.max_steps or max(1, int(len(features) * epochs / sizes.batch))

    def steps(self, position: dict[str, Any] | None) -> Iterator[Step]:
        """See `BatchSource.steps`; the position is the number of steps taken."""
        for number in range(position["step"] if position else 0, self.total_steps):
            ids = self._ids(np.arange(number * self.sizes.batch, (number + 1) * self.sizes.batch))
            yield Step(ids, self._count(ids), self.sizes.micro, 0, {"step": number + 1})

    def load(self, ids: Ids, group: int) -> MicroBatch:
        """See `BatchSource.load`; there is one group."""
        rows = rows_of(self.features, ids)
        inputs = self.collate(self.features, ids, rows)
        return MicroBatch(inputs, self._count(ids), sum(row["length"] for row in rows))

    def count_right(self, output: Any, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
        """See `BatchSource.count_right`; the dev set says more than training accuracy does."""
        return {}

    def _ids(self, places: Ids) -> Ids:
        """Feature rows at places of the endless order, in which every epoch is a permutation of its own."""
        size = len(self.features)
        ids = np.empty_like(places)
        for epoch in np.unique(places // size):
            inside = places // size == epoch
            ids[inside] = self._order(int(epoch))[places[inside] % size]
        return ids

    def _order(self, epoch: int) -> Ids:
        """The permutation of an epoch; sorted once, and kept while steps of it come."""
        if epoch not in self._orders:
            order = np.argsort(draw(self.config.seed, ORDER, epoch, np.arange(len(self.features))), kind="stable")
            self._orders = {number: kept for number, kept in self._orders.items() if number == epoch - 1} | {
                epoch: order
            }
        return self._orders[epoch]

    def _count(self, ids: Ids) -> dict[str, int]:
        return {"loss": int(self.task.loss_items(rows_of(self.features, ids)).sum())}


def _fingerprint(features: "datasets.Dataset") -> str:
    """Tells inputs of other lengths, or in another order, apart, without reading them all."""
    return hashlib.sha256(np.asarray(features["length"][:], dtype=np.int32).tobytes()).hexdigest()[:16]
