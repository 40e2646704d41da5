"""Features of a frozen encoder for any text file (paper 5.3): texts in, Parquet, JSON lines or a table out.

Each text is a row with `tokens` and `features`, one vector per token. If texts are pooled, a row is one vector.
Texts are read, encoded and written a batch at a time, so memory does not grow with a file of lines. A table is read as
a whole.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow
import torch
from pyarrow import parquet
from tqdm.auto import tqdm

from bert_repro.configs import ExtractionConfig
from bert_repro.errors import NonFiniteError, UserError, flag
from bert_repro.inference.loaded_model import LoadedModel, read_texts
from bert_repro.inference.record_files import write_records
from bert_repro.models.modeling_bert_repro import BertReproModel
from bert_repro.tasks.encoding import join, special_ids, token_ids
from bert_repro.utils.files import atomic_path

logger = logging.getLogger("bert_repro")


class EncodedText(NamedTuple):
    """A text and its features.

    Args:
        tokens: its tokens, special tokens included.
        features: float32 [length, D], or [1, D] if it is pooled.
    """

    tokens: list[str]
    features: npt.NDArray[np.float32]


@dataclass
class _Counts:
    """What was written so far."""

    texts: int = 0
    tokens: int = 0
    truncated: int = 0

    def add(self, texts: Sequence[dict[str, Any]]) -> None:
        """Adds a batch of tokenized texts."""
        self.texts += len(texts)
        self.tokens += sum(len(text["input_ids"]) for text in texts)
        self.truncated += sum(text["truncated"] for text in texts)


def extract_features(config: ExtractionConfig) -> dict[str, Any]:
    """Writes the features of every text of a file.

    Returns:
        What was written: `texts`, `tokens`, `truncated`, `layers`, `dimension`.

    Raises:
        UserError: the input, the model or a layer does not exist.
        NonFiniteError: the model's output is not finite.
    """
    # The encoder of any BERT checkpoint, without its heads and its pooler.
    loaded = LoadedModel.load(
        BertReproModel,
        config.model_name_or_path,
        mixed_precision=config.mixed_precision,
        missing_remedy="Pass a BERT checkpoint.",
        add_pooling_layer=False,
    )
    num_positions = loaded.model.config.max_position_embeddings
    if config.max_seq_length > num_positions:
        raise UserError(
            f"{flag('max_seq_length', config.max_seq_length)} exceeds the {num_positions} positions of the model. Use "
            "a smaller number.",
            setting="max_seq_length",
        )
    layers = resolve_layers(config.layers, loaded.model.config.num_hidden_layers)
    dimension = loaded.model.config.hidden_size * len(layers)

    # Write a batch at a time.
    counts = _Counts()
    path = Path(config.output_file)
    batches = _encoded_batches(config, loaded, layers, counts)
    first = next(batches, None)
    if first is None:
        raise UserError(
            f"{flag('input_file', config.input_file)} contains no texts. Use a file with at least one.",
            setting="input_file",
        )
    with atomic_path(path) as unfinished:
        if path.suffix == ".parquet":
            schema = _schema(config, layers, dimension)
            with parquet.ParquetWriter(unfinished, schema) as writer:
                for encoded in chain([first], batches):
                    writer.write_batch(_record_batch(encoded, schema))
        else:
            is_table = path.suffix != ".jsonl"
            record_batches = (_records(encoded, config, is_table=is_table) for encoded in chain([first], batches))
            write_records(record_batches, unfinished, path.suffix)
    logger.info(
        "Wrote %s: %d texts, %d tokens, %d texts truncated.", path, counts.texts, counts.tokens, counts.truncated
    )
    return {**vars(counts), "layers": list(layers), "dimension": dimension}


def _schema(config: ExtractionConfig, layers: Sequence[int], dimension: int) -> pyarrow.Schema:
    """Returns the columns of the file. Its metadata name the model and the layers."""
    vector = pyarrow.list_(pyarrow.float32(), dimension)
    if config.pooling == "none":
        fields = [("tokens", pyarrow.list_(pyarrow.string())), ("features", pyarrow.list_(vector))]
    else:
        fields = [("features", vector)]
    facts = {"model": config.model_name_or_path, "layers": list(layers)}
    return pyarrow.schema(fields, metadata={"bert_repro": json.dumps(facts)})


def resolve_layers(names: Sequence[str], num_layers: int) -> tuple[int, ...]:
    """Returns layers as indices of `hidden_states`: 0 is the output of the embeddings, L that of the last layer.

    Args:
        names: `embeddings`, `last`, `second_to_last`, `last_four`, `all` (1 to L), or indices; negative ones count from
            the end.
        num_layers: L.

    Raises:
        UserError: the model has no such layer.
    """
    indices: dict[str, tuple[int, ...]] = {
        "embeddings": (0,),
        "last": (num_layers,),
        "second_to_last": (num_layers - 1,),
        "all": tuple(range(1, num_layers + 1)),
    }
    if num_layers >= 4:
        indices["last_four"] = tuple(range(num_layers - 3, num_layers + 1))
    for index in range(-num_layers - 1, num_layers + 1):
        indices[str(index)] = (index % (num_layers + 1),)

    resolved: list[int] = []
    for name in names:
        if name not in indices:
            raise UserError(
                f"{flag('layers', name)}: the model has no such layer. It has the layers 1 to {num_layers}, and 0 for "
                f"the embeddings; -1 to -{num_layers + 1} count from the end. Names are: embeddings, last, "
                "second_to_last, last_four (of at least four layers), all.",
                setting="layers",
            )
        resolved += indices[name]
    return tuple(resolved)


def _encoded_batches(
    config: ExtractionConfig, loaded: LoadedModel, layers: Sequence[int], counts: _Counts
) -> Iterator[list[EncodedText]]:
    """Yields the features of the texts, a batch at a time, and counts the texts."""
    with tqdm(unit="text") as bar:
        for texts in _tokenized_batches(config, loaded):
            counts.add(texts)
            yield _encode(texts, layers, config, loaded)
            bar.update(len(texts))


def _records(texts: Sequence[EncodedText], config: ExtractionConfig, *, is_table: bool) -> list[dict[str, Any]]:
    """Returns a record for each text: a column for each number of its vector, or lists as in the Parquet file."""
    records: list[dict[str, Any]] = []
    for text in texts:
        vectors = text.features.tolist()
        if is_table:
            records.append({f"feature_{index}": value for index, value in enumerate(vectors[0])})
        elif config.pooling == "none":
            records.append({"tokens": text.tokens, "features": vectors})
        else:
            records.append({"features": vectors[0]})
    return records


def _tokenized_batches(config: ExtractionConfig, loaded: LoadedModel) -> Iterator[list[dict[str, Any]]]:
    """Yields tokenized texts of the input, a batch at a time."""
    cls, sep = special_ids(loaded.tokenizer)
    # [CLS] and [SEP] count too.
    most_tokens = config.max_seq_length - 2
    texts = read_texts(Path(config.input_file), config.text_column, config.encoding)
    while batch := list(islice(texts, config.per_device_eval_batch_size)):
        tokenized = []
        for ids in token_ids(loaded.tokenizer, batch):
            input_ids, segments = join(cls, sep, ids[:most_tokens])
            is_truncated = len(ids) > most_tokens
            tokenized.append({"input_ids": input_ids, "token_type_ids": segments, "truncated": is_truncated})
        yield tokenized


@torch.no_grad()
def _encode(
    texts: Sequence[dict[str, Any]], layers: Sequence[int], config: ExtractionConfig, loaded: LoadedModel
) -> list[EncodedText]:
    """Encodes a batch."""
    with loaded.autocast():
        states = loaded.model(**loaded.packed(texts), output_hidden_states=True).hidden_states
    # The batch is packed: [1, T, H] for each layer becomes [T, D].
    vectors = torch.cat([states[layer][0].float() for layer in layers], dim=-1).cpu().numpy()
    if not np.isfinite(vectors).all():
        raise NonFiniteError(
            f"The output of {flag('model_name_or_path', config.model_name_or_path)} is not finite. Use another "
            "checkpoint."
        )

    ends = np.cumsum([len(text["input_ids"]) for text in texts])[:-1]
    encoded = []
    for text, rows in zip(texts, np.split(vectors, ends), strict=True):
        tokens = loaded.tokenizer.convert_ids_to_tokens(text["input_ids"].tolist())
        encoded.append(EncodedText(tokens, _pooled(rows, config.pooling)))
    return encoded


def _pooled(rows: npt.NDArray[np.float32], pooling: str) -> npt.NDArray[np.float32]:
    if pooling == "cls":
        return rows[:1]
    if pooling == "mean":
        mean: npt.NDArray[np.float32] = rows.mean(axis=0, keepdims=True)
        return mean
    return rows


def _record_batch(texts: Sequence[EncodedText], schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    flat = pyarrow.array(np.concatenate([text.features.reshape(-1) for text in texts]))
    vectors = pyarrow.FixedSizeListArray.from_arrays(flat, texts[0].features.shape[1])
    if "tokens" not in schema.names:
        return pyarrow.record_batch([vectors], schema=schema)
    ends = np.cumsum([0, *(len(text.features) for text in texts)], dtype=np.int32)
    tokens = pyarrow.array([text.tokens for text in texts], schema.field("tokens").type)
    return pyarrow.record_batch([tokens, pyarrow.ListArray.from_arrays(ends, vectors)], schema=schema)
