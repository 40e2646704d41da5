"""Checks the files of a model before anything of it is built: its configuration, its weights, their shapes.

Only safetensors are read. Nothing of a folder is executed, and no size that config.json claims is allocated before the
headers of the weights confirm it.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bert_repro.corpus.tokenizer import load_tokenizer
from bert_repro.errors import UserError
from bert_repro.models.configuration_bert_repro import BertReproConfig
from bert_repro.utils.digests import require_undamaged
from bert_repro.utils.readers import read_json, shown

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
OTHER_WEIGHTS = ("tf_model.h5", "flax_model.msgpack")
"""Weights in formats that are not read and that `convert_checkpoint` does not read either."""
_CONVERT = "convert it: bert-repro convert_checkpoint --checkpoint FOLDER --output_dir NEW_FOLDER"
_RESAVE = "load it with the transformers that wrote it, whose save_pretrained(safe_serialization=True) writes them"
_GET_AGAIN = "get the model again"
_MODEL_TYPES = ("bert", "bert_repro")
_DTYPES = ("F16", "BF16", "F32", "F64")
_TRAINED = ("weight", "bias", "gamma", "beta")
_MOST_LABELS = 1_000_000
_WORDS = "embeddings.word_embeddings.weight"
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")
"""What older versions of transformers wrote beside the weights."""

Shapes = Mapping[str, tuple[int, ...]]


def check_model(name: str, flag: str = "--model_name_or_path") -> BertReproConfig:
    """Checks that a checkpoint can be loaded as a BERT model.

    Args:
        name: folder, or id on the Hub, whose files are then fetched into its cache.
        flag: the setting that named it, for messages.

    Returns:
        Its configuration.

    Raises:
        UserError: a file is missing, damaged or in another format, or configuration and weights contradict each other.
    """
    folder = _local_folder(name, flag)
    try:
        config = read_model_config(folder)
        check_shapes(config, weight_shapes(folder))
        check_values(*_weight_files(folder))
    except UserError as error:
        raise UserError(f"{flag} {name}: {error}") from error
    return config


def check_folder(folder: Path) -> None:
    """Checks that a folder can be published: its model as `check_model` does, and its tokenizer.

    Raises:
        UserError: it could not be loaded.
    """
    try:
        require_undamaged(folder)
        check_shapes(read_model_config(folder), weight_shapes(folder))
        check_values(*_weight_files(folder))
        if any((folder / name).exists() for name in ("tokenizer.json", "vocab.txt")):
            load_tokenizer(folder)
    except UserError as error:
        raise UserError(f"{folder}: nobody could load it: {error}") from error


def check_adapter(path: Path) -> None:
    """Checks that the weights of an adapter can be read and are finite.

    Raises:
        UserError: they are not.
    """
    try:
        _header(path)
        check_values(path)
    except UserError as error:
        raise UserError(f"{path.parent}: nobody could load it: {error}") from error


def load_config(name: str, flag: str = "--model_name_or_path") -> BertReproConfig:
    """Reads the configuration of a checkpoint alone.

    Args:
        name: folder, or id on the Hub.
        flag: the setting that named it, for messages.

    Raises:
        UserError: there is none, or it is not that of a BERT model.
    """
    folder = _local_folder(name, flag, weights=False)
    try:
        return read_model_config(folder)
    except UserError as error:
        raise UserError(f"{flag} {name}: {error}") from error


def read_model_config(folder: Path) -> BertReproConfig:
    """Reads config.json.

    Raises:
        UserError: it is missing or damaged, of another model type, or a value is not possible.
    """
    from transformers.activations import ACT2FN

    path = folder / CONFIG
    if not path.exists() and any(folder.glob("*.ckpt*.index")):
        raise UserError(f"is a checkpoint of TensorFlow's; {_CONVERT}")
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{CONFIG} holds no object of settings; {_GET_AGAIN}")
    model_type = content.get("model_type", "bert")  # the first checkpoints name none
    if model_type not in _MODEL_TYPES:
        raise UserError(f"{CONFIG} says model_type {shown(model_type)}; name a model of type bert")
    if "quantization_config" in content:
        raise UserError(f"{CONFIG} has a quantization_config; name the model before it was quantized")
    if (places := content.get("position_embedding_type", "absolute")) != "absolute":
        raise UserError(f"{CONFIG} says position_embedding_type {shown(places)}; only absolute positions are BERT's")
    labels = content.get("num_labels", 0)
    if not isinstance(labels, int) or labels > _MOST_LABELS:  # the library would name every one of them
        raise UserError(f"{CONFIG} says num_labels {shown(labels)}; no head has so many: {_GET_AGAIN}")
    try:
        config: BertReproConfig = BertReproConfig.from_dict({**content, "model_type": "bert_repro"})
        config.check()
        if config.hidden_act not in ACT2FN:
            raise ValueError(f"hidden_act is {shown(config.hidden_act)}; it must be one of {', '.join(ACT2FN)}")
        if not all(isinstance(name, str) for name in config.id2label.values()):
            raise ValueError(f"id2label is {shown(content.get('id2label'))}; the names of labels are texts")
    except Exception as error:  # the library's own checks raise many kinds
        raise UserError(f"{CONFIG}: {_reason(error)}; {_GET_AGAIN}") from error
    return config


def weight_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Reads the names and shapes of a model's weights from the headers of its safetensors files.

    Raises:
        UserError: there are none, they are in another format, or a file is damaged.
    """
    found: dict[str, tuple[int, ...]] = {}
    for path in _weight_files(folder):
        found |= _header(path)
    return found


def check_shapes(config: BertReproConfig, shapes: Shapes) -> None:
    """Checks that weights have the shapes that the configuration of their encoder asks for.

    Raises:
        UserError: they are no BERT's, or a weight of the encoder is missing or has another shape.
    """
    prefix = next((prefix for prefix in ("bert.", "") if prefix + _WORDS in shapes), None)
    if prefix is None:
        raise UserError(f"its weights hold no {_WORDS}; name a BERT checkpoint")
    layers = {name.split(".")[2] for name in (name.removeprefix(prefix) for name in shapes)
              if name.startswith("encoder.layer.")}  # fmt: skip
    if config.num_hidden_layers != len(layers):
        raise UserError(
            f"{CONFIG} says num_hidden_layers {shown(config.num_hidden_layers)}, and the weights hold {len(layers)}; "
            f"{_GET_AGAIN}"
        )
    encoder = dict(_encoder_shapes(config))
    for name in shapes:
        own = _now_called(name.removeprefix(prefix))
        if name.startswith((f"{prefix}encoder.", f"{prefix}embeddings.")) and own not in {*encoder, *_BUFFERS}:
            raise UserError(f"its weights hold {shown(name)}, which no BERT has; name a model of type bert")
    for name, wanted in (*encoder.items(), *_bilstm_shapes(config)):
        full = name if name.startswith("bilstm.") else prefix + name
        saved = shapes.get(full, shapes.get(_first_name(full)))
        if saved is None:
            raise UserError(f"its weights lack {full}; {_GET_AGAIN}")
        if saved != wanted:
            raise UserError(
                f"{full} has the shape {list(saved)}, where its configuration asks for {list(wanted)}; {_GET_AGAIN}"
            )


def check_values(*paths: Path) -> None:
    """Checks that all weights are finite; one that is not spoils the model and all that starts from it.

    Args:
        paths: safetensors files whose headers have been read.

    Raises:
        UserError: one is not; names tensor and file.
    """
    import torch
    from safetensors import safe_open

    for path in paths:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                tensor = file.get_tensor(name)
                if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                    raise UserError(
                        f"{path.name}: {shown(name)} holds values that are not finite (NaN or infinity); name an "
                        "earlier checkpoint, or get the model again"
                    )


def _encoder_shapes(config: BertReproConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    yield _WORDS, (config.vocab_size, hidden)
    yield "embeddings.position_embeddings.weight", (config.max_position_embeddings, hidden)
    yield "embeddings.token_type_embeddings.weight", (config.type_vocab_size, hidden)
    norms = ["embeddings.LayerNorm"]
    for layer in range(config.num_hidden_layers):
        block = f"encoder.layer.{layer}"
        norms += [f"{block}.attention.output.LayerNorm", f"{block}.output.LayerNorm"]
        sizes = {f"attention.self.{name}": (hidden, hidden) for name in ("query", "key", "value")}
        sizes |= {"attention.output.dense": (hidden, hidden), "intermediate.dense": (inner, hidden)}
        for name, size in (sizes | {"output.dense": (hidden, inner)}).items():
            yield f"{block}.{name}.weight", size
            yield f"{block}.{name}.bias", size[:1]
    for norm in norms:
        yield f"{norm}.weight", (hidden,)
        yield f"{norm}.bias", (hidden,)


def _bilstm_shapes(config: BertReproConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields what decides how much is built: of each layer the recurrent weights, four gates of the size squared."""
    for layer in range(config.bilstm_layers if config.bilstm_size is not None else 0):
        size = int(config.bilstm_size or 0)
        yield f"bilstm.lstm.weight_hh_l{layer}", (4 * size, size)


def _first_name(name: str) -> str:
    """Returns what the first checkpoints call the weights of a LayerNorm."""
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


def _now_called(name: str) -> str:
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _weight_files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / WEIGHTS_INDEX).is_file():
        for name in (*PICKLES, *OTHER_WEIGHTS):
            if (folder / name).exists():
                fix = _CONVERT if name in PICKLES else _RESAVE
                raise UserError(f"its weights are {name}, and only safetensors are read; {fix}")
        raise UserError(f"there is no {WEIGHTS}, and only safetensors are read; name a finished model")
    names = _shards(folder)
    present = {path.name for path in folder.iterdir() if path.is_file()}  # a name may be no possible one
    for name in names:
        if name not in present:
            raise UserError(f"{WEIGHTS_INDEX} names {shown(name)}, which is missing; {_GET_AGAIN}")
    return [folder / name for name in names]


def _shards(folder: Path) -> list[str]:
    """Returns the files that an index of weights names, which lie beside it and are safetensors."""
    index = read_json(folder / WEIGHTS_INDEX)
    parts = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(parts, dict) or not parts or not all(isinstance(name, str) for name in parts.values()):
        raise UserError(f"{WEIGHTS_INDEX} has no weight_map of file names; {_GET_AGAIN}")
    names = sorted(set(parts.values()))
    for name in names:
        if not name.endswith(".safetensors") or Path(name).name != name:
            raise UserError(f"{WEIGHTS_INDEX} names {shown(name)}, and only safetensors beside it are read; {_CONVERT}")
    return names


def _header(path: Path) -> dict[str, tuple[int, ...]]:
    from safetensors import safe_open

    try:
        with safe_open(path, "numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            for name, part in slices.items():
                if name.endswith(_TRAINED) and part.get_dtype() not in _DTYPES:
                    raise UserError(
                        f"{path.name}: {shown(name)} is of type {shown(part.get_dtype())}, and weights are floating-"
                        f"point numbers; {_GET_AGAIN}"
                    )
            return {name: tuple(part.get_shape()) for name, part in slices.items()}
    except UserError:
        raise
    except Exception as error:  # the library's own, which is no OSError
        raise UserError(f"{path.name} is damaged ({_reason(error)}); {_GET_AGAIN}") from error


def _local_folder(name: str, flag: str, *, weights: bool = True) -> Path:
    """Returns the folder of a model's files; those of an id on the Hub are fetched first."""
    if Path(name).is_dir():
        try:
            require_undamaged(Path(name))
        except UserError as error:
            raise UserError(f"{flag} {name}: {error}") from error
        return Path(name)
    from transformers.utils import cached_file

    optional: dict[str, Any] = {"_raise_exceptions_for_missing_entries": False}
    try:
        config = cached_file(name, CONFIG)
        if weights and cached_file(name, WEIGHTS, **optional) is None:
            path = cached_file(name, WEIGHTS_INDEX, **optional)
            for part in _shards(Path(path).parent) if path else ():
                cached_file(name, part)
    except UserError:
        raise
    except Exception as error:  # of the Hub's library: no such id, no network ...
        raise UserError(f"{flag} {name}: {_reason(error)}") from error
    return Path(str(config)).parent


def _reason(error: BaseException) -> str:
    """Returns what an exception of a library says, on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(line[:200] for line in lines[:2]) if lines else type(error).__name__
