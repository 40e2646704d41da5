"""Checks the metadata of a model's folder before anything is computed from it: config.json and the tokenizer's files.

These files come from other people. A single number in them decides how much memory is allocated (`num_labels`, the id
of a token) or how long loading takes (`num_hidden_layers`), so every size has a limit far above all published models.
"""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from bert_repro.errors import UserError
from bert_repro.utils.readers import quoted, read_json_object
from bert_repro.utils.schema import LARGEST_VOCABULARY, Limits, conform

if TYPE_CHECKING:
    from bert_repro.models.configuration_bert_repro import BertReproConfig

LARGEST_NUMBER_OF_LABELS = 100_000
_GET_AGAIN = "Download or write the model again."

_Width = Annotated[int, Limits(1, 2**20)]
_Depth = Annotated[int, Limits(1, 1000)]
_Code = dict[str, str | list[str | None]]


class ConfigFile(TypedDict, total=False):
    """The fields of config.json that decide how much is allocated, and those that are read before transformers' checks.

    `BertReproConfig` checks the types of all others.
    """

    model_type: str
    architectures: list[str] | None
    auto_map: _Code
    vocab_size: Annotated[int, Limits(1, LARGEST_VOCABULARY)]
    hidden_size: _Width
    num_hidden_layers: _Depth
    num_attention_heads: _Width
    intermediate_size: _Width
    max_position_embeddings: _Width
    type_vocab_size: _Width
    bilstm_size: Annotated[int | None, Limits(1, 2**16)]
    bilstm_layers: _Depth
    num_labels: Annotated[int, Limits(0, LARGEST_NUMBER_OF_LABELS)]
    id2label: dict[str, str | int] | None
    label2id: dict[str, int] | None
    chunk_size_feed_forward: Annotated[int, Limits(0, 2**20)]


class TokenFile(TypedDict, total=False):
    """A special token with the rules for the white space around it."""

    id: Annotated[int, Limits(0, LARGEST_VOCABULARY)]
    content: str
    lstrip: bool
    rstrip: bool
    normalized: bool
    single_word: bool
    special: bool


_Token = str | TokenFile | None
_Side = Literal["left", "right"]


class TokenizerConfigFile(TypedDict, total=False):
    """tokenizer_config.json and special_tokens_map.json."""

    tokenizer_class: str | None
    auto_map: _Code
    model_max_length: Annotated[float, Limits(1, 1e30)]
    do_lower_case: bool
    strip_accents: bool | None
    tokenize_chinese_chars: bool
    padding_side: _Side
    truncation_side: _Side
    pad_token: _Token
    unk_token: _Token
    cls_token: _Token
    sep_token: _Token
    mask_token: _Token
    bos_token: _Token
    eos_token: _Token
    added_tokens_decoder: dict[str, TokenFile]
    additional_special_tokens: list[_Token]
    extra_special_tokens: list[_Token] | dict[str, _Token]


class WordPieceFile(TypedDict, total=False):
    """The model in tokenizer.json, as far as memory depends on it."""

    type: str
    vocab: dict[str, Annotated[int, Limits(0, LARGEST_VOCABULARY)]]
    max_input_chars_per_word: Annotated[int, Limits(0, 2**20)]


class TokenizerFile(TypedDict, total=False):
    """tokenizer.json; the tokenizers library checks the types of all other fields."""

    model: WordPieceFile
    added_tokens: list[TokenFile]


TOKENIZER_FILES: dict[str, Any] = {
    "tokenizer_config.json": TokenizerConfigFile,
    "special_tokens_map.json": TokenizerConfigFile,
    "added_tokens.json": dict[str, Annotated[int, Limits(0, LARGEST_VOCABULARY)]],
    "tokenizer.json": TokenizerFile,
}
"""File of a tokenizer -> the declaration of its content."""


def checked_config(content: dict[str, Any], file: str) -> dict[str, Any]:
    """Returns the fields of a config.json with their types and sizes checked, and with labels as text.

    Args:
        content: the fields.
        file: the file, for messages.

    Raises:
        UserError: a field has another type or an impossible size, or the labels are not numbered from 0.
    """
    fields: dict[str, Any] = conform(content, ConfigFile, file, _GET_AGAIN)
    names = fields.get("id2label")
    if names:
        labels = _labels(names, file)
        fields["id2label"] = dict(enumerate(labels))
        # Many published models leave transformers' default names here. Only `id2label` is shown to anybody.
        fields["label2id"] = {label: index for index, label in enumerate(labels)}
    return fields


def _labels(names: dict[str, str | int], file: str) -> list[str]:
    """Returns the names of the labels in the order of their numbers."""
    if set(names) != {str(index) for index in range(len(names))}:
        raise UserError(
            f"{file}: the labels in id2label have the numbers {quoted(list(names))}, not 0 to {len(names) - 1}. "
            f"{_GET_AGAIN}"
        )
    labels = [str(names[str(index)]) for index in range(len(names))]
    for label, count in Counter(labels).items():
        if count > 1:
            raise UserError(f"{file}: the label {quoted(label)} occurs {count} times in id2label. {_GET_AGAIN}")
    return labels


def check_tokenizer_files(folder: Path) -> None:
    """Checks the types and sizes in the files of a tokenizer. Files that do not exist are fine.

    Raises:
        UserError: a field has another type or an impossible size.
    """
    for name, declaration in TOKENIZER_FILES.items():
        path = folder / name
        if not path.is_file():
            continue
        content = conform(read_json_object(path), declaration, str(path), _GET_AGAIN)
        if name == "added_tokens.json":
            continue
        # The ids are the names of the fields here.
        for number in content.get("added_tokens_decoder", {}):
            if not number.isdecimal() or int(number) > LARGEST_VOCABULARY:
                raise UserError(f"{path}: added_tokens_decoder has the id {quoted(number)}. {_GET_AGAIN}")


def require_enough_weights(config: "BertReproConfig", folder: Path, file: str) -> None:
    """Refuses sizes that the weights of a folder cannot have, before a model of these sizes is allocated.

    Raises:
        UserError: the encoder of such a model has more weights than the files have bytes.
    """
    num_bytes = sum(path.stat().st_size for path in folder.glob("model*.safetensors"))
    num_weights = encoder_weights(config)
    # Published weights have 1 byte or more. A folder with an adapter alone has no weights of its own.
    if num_bytes and num_weights > num_bytes:
        raise UserError(
            f"{file} describes an encoder of {num_weights:,} weights, but the weights of the folder have only "
            f"{num_bytes:,} bytes. {_GET_AGAIN}"
        )


def encoder_weights(config: "BertReproConfig") -> int:
    """Returns how many weights the embeddings, the layers and the BiLSTM of a model have; biases are left out."""
    hidden_size = config.hidden_size
    embeddings = config.vocab_size + config.max_position_embeddings + config.type_vocab_size
    layer = 4 * hidden_size * hidden_size + 2 * hidden_size * config.intermediate_size
    weights = embeddings * hidden_size + config.num_hidden_layers * layer
    if config.bilstm_size is not None:
        # Two directions of four gates. Each layer after the first one reads both directions.
        gates = 8 * config.bilstm_size
        weights += gates * (hidden_size + config.bilstm_size)
        weights += (config.bilstm_layers - 1) * gates * 3 * config.bilstm_size
    return int(weights)
