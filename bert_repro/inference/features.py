"""Features of a frozen encoder for any text file (paper 5.3): texts in, a batch at a time; Parquet out.

A row of the file is a text: `tokens` and `features`, a vector per token; or one vector alone where texts are pooled.
Memory holds a few batches, however long a file of lines is; a table is read whole.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow
import torch
from pyarrow import parquet
from tqdm.auto import tqdm

from bert_repro.configs import ExtractionConfig, require
from bert_repro.errors import NonFiniteError, UserError
from bert_repro.models.loading import load_pretrained, load_tokenizer, require_vocabulary
from bert_repro.models.modeling_bert_repro import BertReproModel
from bert_repro.tasks.base import join, special_ids, token_ids
from bert_repro.tasks.data import TABLES, read_file, require_columns
from bert_repro.tasks.data import texts as column_of_texts
from bert_repro.training.batches import collate_features, on_device
from bert_repro.utils.files import atomic_path
from bert_repro.utils.readers import format_of, numbered_lines

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger("bert_repro")


class EncodedText(NamedTuple):
    """A text and its features.

    Args:
        tokens: its tokens, special tokens included.
        features: (length, D), or (1, D) where it is pooled.
    """

    tokens: list[str]
    features: npt.NDArray[np.float32]


def extract_features(config: ExtractionConfig) -> dict[str, Any]:
    """Writes the features of every text of a file.

    Returns:
        What was written: `texts`, `tokens`, `truncated`, `layers`, `dimension`.

    Raises:
        UserError: the input, the model or a layer is not there, or the output is.
        NonFiniteError: the model's output is not finite.
    """
    path, name = Path(config.output_file), config.model_name_or_path
    # The encoder of any BERT checkpoint, without its heads and its pooler.
    model, info = load_pretrained(BertReproModel, name, add_pooling_layer=False)
    if info["missing_keys"]:
        raise UserError(f"--model_name_or_path {name}: lacks {min(info['missing_keys'])}; name a BERT checkpoint")
    tokenizer = load_tokenizer(name)
    positions = model.config.max_position_embeddings
    fits = config.max_seq_length <= positions
    require(fits, f"--max_seq_length is {config.max_seq_length}; the model has {positions} positions")
    require_vocabulary(name, model, tokenizer)
    layers = resolve_layers(config.layers, model.config.num_hidden_layers)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device).eval()
    dimension = model.config.hidden_size * len(layers)
    facts = {"model": name, "layers": list(layers)}
    vector = pyarrow.list_(pyarrow.float32(), dimension)
    fields = [("tokens", pyarrow.list_(pyarrow.string())), ("features", pyarrow.list_(vector))]
    fields = fields if config.pooling == "none" else [("features", vector)]
    schema = pyarrow.schema(fields, metadata={"bert_repro": json.dumps(facts)})
    counts = {"texts": 0, "tokens": 0, "truncated": 0}
    with atomic_path(path) as part, parquet.ParquetWriter(part, schema) as writer, tqdm(unit="text") as progress:
        for texts in _batches(config, tokenizer):
            writer.write_batch(_record_batch(_encode(model, texts, layers, config, tokenizer, device), schema))
            counts["texts"] += len(texts)
            counts["tokens"] += sum(len(text["input_ids"]) for text in texts)
            counts["truncated"] += sum(text["truncated"] for text in texts)
            progress.update(len(texts))
        require(counts["texts"], f"--input_file {config.input_file}: no texts; name a file with at least one")
    logger.info("%s: %s", config.output_file, ", ".join(f"{count} {name}" for name, count in counts.items()))
    return counts | {"layers": list(layers), "dimension": dimension}


def resolve_layers(names: Sequence[str], num_layers: int) -> tuple[int, ...]:
    """Returns layers as indices of `hidden_states`: 0 is the output of the embeddings, L that of the last layer.

    Args:
        names: `embeddings`, `last`, `second_to_last`, `last_four`, `all` (1 to L), or indices, negative ones from
            the end.
        num_layers: L.

    Raises:
        UserError: the model has no such layer.
    """
    named = {
        "embeddings": (0,),
        "last": (num_layers,),
        "second_to_last": (num_layers - 1,),
        "last_four": tuple(range(num_layers - 3, num_layers + 1)) if num_layers > 3 else (),
        "all": tuple(range(1, num_layers + 1)),
        **{str(index): (index % (num_layers + 1),) for index in range(-num_layers - 1, num_layers + 1)},
    }
    if unknown := [name for name in names if not named.get(name)]:
        raise UserError(
            f"--layers {unknown[0]}: the model has the layers 1 to {num_layers}, 0 for its embeddings, -1 to "
            f"-{num_layers + 1} from the end, or embeddings, last, second_to_last, last_four, all"
        )
    return tuple(layer for name in names for layer in named[name])


def _batches(config: ExtractionConfig, tokenizer: "PreTrainedTokenizerBase") -> Iterator[list[dict[str, Any]]]:
    """Yields tokenized texts of the input, a batch at a time."""
    cls, sep = special_ids(tokenizer)
    room = config.max_seq_length - 2
    texts = read_texts(Path(config.input_file), config.text_column)
    while batch := list(islice(texts, config.per_device_eval_batch_size)):
        encoded = []
        for ids in token_ids(tokenizer, batch):
            input_ids, segments = join(cls, sep, ids[:room])
            encoded.append({"input_ids": input_ids, "token_type_ids": segments, "truncated": len(ids) > room})
        yield encoded


def read_texts(path: Path, column: str) -> Iterator[str]:
    """Yields the texts of a file: of a table or JSON lines a column, else each line, even an empty one.

    Raises:
        UserError: a line is not UTF-8, or the file has no such column of texts.
    """
    if format_of(path) not in TABLES:
        yield from (text for _, text in numbered_lines(path))
        return
    rows = read_file(path)
    require_columns(rows, [column], str(path), "name the column of text with --text_column")
    yield from column_of_texts(rows, column, str(path), missing="")


@torch.no_grad()
def _encode(
    model: BertReproModel,
    texts: Sequence[dict[str, Any]],
    layers: Sequence[int],
    config: ExtractionConfig,
    tokenizer: "PreTrainedTokenizerBase",
    device: torch.device,
) -> list[EncodedText]:
    """Encodes a batch, packed: nothing is computed on padding."""
    batch = collate_features(texts, pad_token_id=int(tokenizer.pad_token_id), packing=True)
    with torch.autocast(device.type, torch.bfloat16, enabled=config.mixed_precision == "bf16"):
        states = model(**on_device(batch, device), output_hidden_states=True).hidden_states
    chosen = [states[layer][0].float() for layer in layers]
    array = torch.cat(chosen, dim=-1).cpu().numpy()
    if not np.isfinite(array).all():
        raise NonFiniteError(f"--model_name_or_path {config.model_name_or_path}: the model's output is not finite")
    ends = np.cumsum([len(text["input_ids"]) for text in texts])[:-1]
    encoded = []
    for text, rows in zip(texts, np.split(array, ends), strict=True):
        if config.pooling != "none":
            rows = rows[:1] if config.pooling == "cls" else rows.mean(axis=0, keepdims=True)
        encoded.append(EncodedText(tokenizer.convert_ids_to_tokens(text["input_ids"].tolist()), rows))
    return encoded


def _record_batch(texts: Sequence[EncodedText], schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    flat = pyarrow.array(np.concatenate([text.features.reshape(-1) for text in texts]))
    columns = [pyarrow.FixedSizeListArray.from_arrays(flat, texts[0].features.shape[1])]
    if "tokens" in schema.names:
        ends = np.cumsum([0, *(len(text.features) for text in texts)], dtype=np.int32)
        tokens = pyarrow.array([text.tokens for text in texts], schema.field("tokens").type)
        columns = [tokens, pyarrow.ListArray.from_arrays(ends, columns[0])]
    return pyarrow.record_batch(columns, schema=schema)
