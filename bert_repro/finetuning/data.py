"""What a fine-tuning run reads: the task's splits, tokenized once, and the batches that training takes from one.

A split is a pair of `datasets.Dataset`s: its examples as the task reads them, and their features, one row per model
input. A sweep hands the same cache to all its runs, so that files are read and tokenized once. `datasets` keeps the
features of what it reads from the Hub.
"""

import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device

from bert_repro.configs import FinetuningConfig, NerConfig, require
from bert_repro.errors import UserError
from bert_repro.models.loading import tokenizer_fingerprint
from bert_repro.models.modeling_bert_repro import BertReproTokenFeatures
from bert_repro.tasks.base import Task
from bert_repro.training.batches import BatchSizes, Ids, MicroBatch, Step, collate_features, even_passes
from bert_repro.utils.files import atomic_path, create_array, disk_errors, json_digest
from bert_repro.utils.randomness import Stream, draw, drawn_rows
from bert_repro.utils.readers import listed

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger("bert_repro")

_ROWS_HASHED_AT_ONCE, _ROWS_WITHOUT_BAR = 10_000, 5_000  # the latter are tokenized within about a second
STATES = "states.npy"
_REPLACED = ("input_ids", "token_type_ids", "position_ids")
_COMPUTING = ("num_attention_heads", "hidden_act", "layer_norm_eps", "is_decoder", "_attn_implementation")
"""Settings that decide an encoder's states, its weights apart."""


class Split(NamedTuple):
    """One split of a task.

    Args:
        examples: a row per example.
        features: a row per model input, as `encode` returns them.
    """

    examples: "datasets.Dataset"
    features: "datasets.Dataset"


SplitCache = dict[tuple[tuple[str, ...], int | None], dict[str, Split]]
"""Splits already read, by their names and the limit on examples."""


@dataclass
class SplitReader:
    """Reads and tokenizes the splits of a task.

    Args:
        config: where the files are, the length, limits on examples, what the run does.
        task: the task, as `Task.prepared` returns it.
        tokenizer: the model's tokenizer.
        accelerator: the main process reads first, the others find the tokenized files.
        cache: splits that earlier runs of the same task, files, tokenizer and length have read; new ones are added.
        read: every split that this run has read.
    """

    config: FinetuningConfig
    task: Task
    tokenizer: "PreTrainedTokenizerBase"
    accelerator: Accelerator
    cache: SplitCache
    read: dict[str, Split] = field(default_factory=dict)

    def read_all(self) -> None:
        """Reads every split that the run needs, so that a fault in the data is found before the model is loaded.

        Raises:
            UserError: a split is missing or malformed, or a split to score has no labels.
        """
        if self.config.do_train:
            self.train()
        if self.config.do_eval:
            for name, split in self.evaluation().items():
                if not self.task.is_labelled(split.examples):
                    raise UserError(f"--do_eval: split {name} of {self.task.name} has no labels; use --do_predict")
        if self.config.do_predict:
            self.prediction()

    def train(self) -> Split:
        """Returns the training split."""
        name = self.task.train_split
        assert name is not None, "checked before the run begins"
        is_new = ((name,), self.config.max_train_samples) not in self.cache
        split = self._read([name], self.config.max_train_samples, drawn=True)[name]
        if is_new:
            self._warn_of_labels_without_rows(split.examples)
        return split

    def evaluation(self) -> dict[str, Split]:
        """Returns the splits to score, by name; a missing one is left out."""
        return self._read(self.task.eval_splits, self.config.max_eval_samples)

    def prediction(self) -> dict[str, Split]:
        """Returns the splits to predict, by name; a missing one is left out."""
        return self._read(self.task.predict_splits, None)

    def description(self, task: Task) -> dict[str, Any]:
        """Returns what results and the card say about the data, with an example of it for the card."""
        known, example = task.data_description(), task.example(self.train().examples if self.config.do_train else None)
        return {"title": task.title, **known, **({"example": example} if example else {})}

    def _warn_of_labels_without_rows(self, examples: "datasets.Dataset") -> None:
        """Names the labels that no training row has; the model cannot learn them."""
        names = self.task.label_names
        if len(names) < 2 or "label" not in examples.column_names:
            return
        labels = examples["label"][:]
        if not all(isinstance(label, int) for label in labels):
            return
        missing = [name for index, name in enumerate(names) if index not in set(labels)]
        if missing and labels:
            logger.warning("No training row has the label %s, so the model cannot learn it.", listed(missing))

    def _read(self, names: Sequence[str], limit: int | None, *, drawn: bool = False) -> dict[str, Split]:
        key = (tuple(names), limit)
        if key not in self.cache:
            with self.accelerator.main_process_first():
                loaded = load_splits(self.task, self.config.data_dir, names)
                self.cache[key] = {
                    name: self._tokenize(name, loaded[name], limit, drawn=drawn) for name in names if name in loaded
                }
        self.read |= self.cache[key]
        return self.cache[key]

    def _tokenize(self, name: str, dataset: "datasets.Dataset", limit: int | None, *, drawn: bool) -> Split:
        """Tokenizes a split, or `limit` of its rows: drawn at random for training, the first ones for scoring."""
        length = self.config.max_seq_length
        rows = min(limit or len(dataset), len(dataset))
        if drawn and rows < len(dataset):
            kept = dataset.select(drawn_rows(Stream.TRAINING_ROWS, len(dataset), rows))
        else:
            kept = dataset.select(range(rows))
        features = encode(self.task, kept, self.tokenizer, length)
        if cut := self.task.count_truncated(features):
            whose = self.task.data_names.get(name, f"{self.task.name} {name}")
            logger.info("%s: %d of %d inputs were cut at --max_seq_length %d", whose, cut, len(features), length)
        return Split(kept, features)


def load_splits(task: Task, data_dir: str | None, names: Sequence[str]) -> "dict[str, datasets.Dataset]":
    """Reads splits of a task; see `Task.load`. A missing one is logged."""
    found = task.load(None if data_dir is None else Path(data_dir), names)
    for name in names:
        if name not in found:
            logger.warning("%s: split %s is missing", task.name, name)
    return found


def encode(
    task: Task, dataset: "datasets.Dataset", tokenizer: "PreTrainedTokenizerBase", max_seq_length: int
) -> "datasets.Dataset":
    """Tokenizes a split. Texts that were cut are counted in the log.

    Args:
        task: the task, as `Task.prepared` returns it.
        dataset: a split from `Task.load`.
        tokenizer: the model's tokenizer.
        max_seq_length: tokens per sequence, special tokens included.

    Returns:
        One row per feature, in the order of the examples, with the columns of `Task.encode_batch`.

    Raises:
        UserError: the tokenizer lacks special tokens, or the disk is full.
    """
    import datasets

    from bert_repro import __version__

    # `datasets` would hash the pickled task, in which settings that change no feature and the version are wrong keys.
    key = [
        dataset._fingerprint, __version__, type(task).__name__, task.encoding_settings(),
        tokenizer_fingerprint(tokenizer), max_seq_length,
    ]  # fmt: skip
    folders = {os.path.dirname(file["filename"]) for file in dataset.cache_files}
    folder = Path(datasets.config.HF_DATASETS_CACHE)
    with disk_errors(folder, "cannot be written"), ExitStack() as stack:
        if len(dataset) < _ROWS_WITHOUT_BAR and not datasets.are_progress_bars_disabled():
            datasets.disable_progress_bars()
            stack.callback(datasets.enable_progress_bars)
        return dataset.map(
            task.encode_batch,
            batched=True,
            batch_size=task.rows_at_once,
            fn_kwargs={"tokenizer": tokenizer, "max_seq_length": max_seq_length},
            remove_columns=dataset.column_names,
            keep_in_memory=not all(os.access(folder, os.W_OK) for folder in folders),
            new_fingerprint=datasets.fingerprint.Hasher.hash(key),
            desc=f"tokenizing {task.name}",
        )


@dataclass
class ModelInputs:
    """Makes the model's inputs of rows of a tokenized split; for a frozen encoder, hidden states replace the tokens.

    Args:
        config: packing and length.
        task: collates features.
        pad_token_id: fills the places after a sequence's end.
        device: where the model is. XLA compiles a graph for every shape: there, all batches are padded to one length.
        feature_cache: hidden states of a frozen encoder.
    """

    config: FinetuningConfig
    task: Task
    pad_token_id: int
    device: torch.device
    feature_cache: "FeatureCache | None" = None

    def __call__(self, features: "datasets.Dataset", ids: Ids, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Returns inputs of the head.

        Args:
            features: a tokenized split.
            ids: numbers of some of its rows.
            rows: these rows, from `rows_of`; without `labels` to predict.
        """
        on_xla = self.device.type == "xla"
        packing, multiple = self.config.packing and not on_xla, self.config.max_seq_length if on_xla else None
        inputs = self.task.collate(rows, pad_token_id=self.pad_token_id, packing=packing, pad_to_multiple_of=multiple)
        return inputs if self.feature_cache is None else self.feature_cache.batch(features, ids.tolist(), inputs)


class FinetuningSource:
    """The batch source of a fine-tuning run: shuffled epochs laid end to end and cut into full batches, as in the
    original implementation.

    Args:
        config: epochs or steps, seed, packing.
        task: collates features and counts their loss terms.
        features: the tokenized training set.
        sizes: sequences per optimizer step, and per device and forward pass.
        processes: devices that share the work.
        model_inputs: makes the model's inputs.
    """

    def __init__(
        self,
        config: FinetuningConfig,
        task: Task,
        features: "datasets.Dataset",
        sizes: BatchSizes,
        processes: int,
        model_inputs: ModelInputs,
    ) -> None:
        self.config, self.task, self.features = config, task, features
        self.sizes, self.processes, self.model_inputs = sizes, processes, model_inputs
        self._orders: dict[int, Ids] = {}
        given = config.train_batch_size
        fault = f"--train_batch_size is {given}, but there are {len(features):,} inputs; lower it"
        require(given is None or given <= len(features), fault)
        epochs = config.num_train_epochs or task.paper_epochs
        self.data_fingerprint: dict[str, Any] = {
            "seed": config.seed,
            "train_batch_size": sizes.batch,
            "number of training inputs": len(features),
            "labels": list(task.label_names),
            "class weights": task.model_settings().get("class_weights"),
            "content of the training inputs": content_digest(features),
        }
        self.total_steps = config.max_steps or max(1, int(task.epoch_size(features) * epochs / sizes.batch))

    def steps(self, position: dict[str, Any] | None) -> Iterator[Step]:
        """See `BatchSource.steps`; the position is the number of steps taken."""
        for number in range(position["step"] if position else 0, self.total_steps):
            ids = self._ids(np.arange(number * self.sizes.batch, (number + 1) * self.sizes.batch))
            yield Step(even_passes(ids, self.sizes.micro, self.processes), 0, {"step": number + 1})

    def load(self, ids: Ids, group: int) -> MicroBatch:
        """See `BatchSource.load`; there is one group."""
        rows = rows_of(self.features, ids)
        tokens = sum(row["length"] for row in rows)
        return MicroBatch(self.model_inputs(self.features, ids, rows), self.totals(ids, group), tokens)

    def totals(self, ids: Ids, group: int) -> dict[str, int]:
        """See `BatchSource.totals`; reads rows, so where there are loader processes, they do."""
        return {"loss": self.task.loss_items(rows_of(self.features, ids)).sum().item()}

    def _ids(self, places: Ids) -> Ids:
        """Returns feature rows at places of the endless order, in which every epoch is a permutation of its own."""
        size = len(self.features)
        ids = np.empty_like(places)
        for epoch in np.unique(places // size):
            if epoch not in self._orders:  # kept while steps of that epoch are read
                self._orders.pop(epoch - 2, None)
                draws = draw(self.config.seed, Stream.FINETUNING_ORDER, int(epoch), np.arange(size))
                self._orders[epoch] = np.argsort(draws, kind="stable")
            inside = places // size == epoch
            ids[inside] = self._orders[epoch][places[inside] % size]
        return ids


def rows_of(features: "datasets.Dataset", ids: Ids) -> list[dict[str, Any]]:
    """Returns some rows of a tokenized split, by number."""
    columns = features[ids.tolist()]
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def content_digest(features: "datasets.Dataset") -> str:
    """Returns a short digest of token ids, labels and everything else that training reads, in order."""
    import pyarrow

    digest = hashlib.sha256()
    for batch in features.with_format("arrow").iter(_ROWS_HASHED_AT_ONCE):
        table, stream = batch.replace_schema_metadata(None).combine_chunks(), pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table)
        digest.update(stream.getvalue())
    return digest.hexdigest()[:16]


# --- A frozen encoder's hidden states (paper 5.3, Table 7) ------------------------------------------------------------
# They are computed once and kept on disk. Their folder is named by a digest of everything that decides them: the
# encoder's weights and configuration, the token ids, and the precision. So a changed model, tokenizer, length or
# context never finds stale states, and every row of Table 7 reads the same ones.
#
#     CACHE/DIGEST/states.npy    (L + 1, T, H) float32: the embeddings' output, then every layer's; read through a map
#
# float32, so that training sees what the published model computes. CoNLL-2003 with BERT-base takes about 16 GB. The
# file is renamed into place when it is complete.


class States(NamedTuple):
    """The hidden states of a split.

    Args:
        values: float32 (L + 1, T, H), memory-mapped.
        starts: where each text begins among the T tokens, int64 (N + 1).
    """

    values: npt.NDArray[np.float32]
    starts: npt.NDArray[np.int64]


class FeatureCache:
    """Hidden states of one frozen encoder, on disk.

    Args:
        config: the cache's folder, batch size and precision.
        encoder: the `BertReproModel` of a model with `token_features`; never trained.
        device: where it computes.
    """

    def __init__(self, config: NerConfig, encoder: Any, device: torch.device) -> None:
        self.config, self.encoder, self.device = config, encoder, device
        self.folder = Path(config.feature_cache_dir)
        self._encoder_digest = _digest_encoder(encoder)
        self._layers = BertReproTokenFeatures.LAYERS[encoder.config.token_features]
        self._loaded: dict[int, tuple[datasets.Dataset, States]] = {}

    def batch(self, features: "datasets.Dataset", rows: list[int], inputs: dict[str, Any]) -> dict[str, Any]:
        """Replaces the tokens of some features by their hidden states.

        Args:
            features: the tokenized split that the rows belong to.
            rows: which of its rows.
            inputs: what the task collated them to, packed.

        Returns:
            The inputs of a tagging head, with `encoder_states`, float32 (1, T, K, H): the layers that its row reads.
        """
        states, starts = self.load(features)
        parts = [states[self._layers, starts[row] : starts[row + 1]] for row in rows]
        batch = {name: value for name, value in inputs.items() if name not in _REPLACED}
        batch["encoder_states"] = torch.from_numpy(np.concatenate(parts, axis=1)).transpose(0, 1).unsqueeze(0)
        return batch

    def load(self, features: "datasets.Dataset") -> States:
        """Returns the states of a split, computed unless they are on disk.

        Raises:
            UserError: the disk has too little room for them, or cannot be written.
        """
        if id(features) not in self._loaded:
            starts = np.concatenate([[0], np.cumsum(features["length"][:])]).astype(np.int64)
            key = [self._encoder_digest, self.config.mixed_precision, content_digest(features)]
            path = self.folder / json_digest(key)[:24] / STATES
            if not path.is_file():
                with atomic_path(path) as stage:
                    self._write(features, starts, stage)
                logger.info("the frozen encoder computed %d tokens; later runs read them from disk", starts[-1])
            states = States(np.load(path, mmap_mode="r"), starts)
            self._loaded[id(features)] = features, states  # the split is kept, so that its id stays its own
        return self._loaded[id(features)][1]

    def _write(self, features: "datasets.Dataset", starts: npt.NDArray[np.int64], stage: Path) -> None:
        shape = (self.encoder.config.num_hidden_layers + 1, int(starts[-1]), self.encoder.config.hidden_size)
        states = create_array(stage, np.float32, *shape)
        size, was_training = self.config.per_device_eval_batch_size, self.encoder.training
        self.encoder.eval()
        for first in range(0, len(features), size):
            last = min(first + size, len(features))
            states[:, starts[first] : starts[last]] = self._encode(features, first, last)
        self.encoder.train(was_training)
        states.flush()

    @torch.no_grad()
    def _encode(self, features: "datasets.Dataset", first: int, last: int) -> npt.NDArray[np.float32]:
        rows = rows_of(features, np.arange(first, last))
        batch = send_to_device(collate_features(rows, pad_token_id=0, packing=True), self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.mixed_precision == "bf16"):
            states = self.encoder(**batch, output_hidden_states=True).hidden_states
        return torch.stack([state[0].float() for state in states]).cpu().numpy()


def _digest_encoder(encoder: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for name in _COMPUTING:
        digest.update(f"{name}={getattr(encoder.config, name)} ".encode())
    for name, parameter in sorted(encoder.named_parameters()):
        digest.update(name.encode() + parameter.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
