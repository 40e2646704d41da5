"""Converts checkpoints of the original implementation to published folders (recipes/convert_checkpoint.py).

The order of events:

1. The weights are found in the folder: files of TensorFlow, or a pytorch_model.bin.
2. The tensors are read under their original names, with their original axes.
3. The head, the settings and the labels are decided, from the files or from what the user said.
4. Every tensor is compared by name and shape with the model that these settings describe.
5. The tokenizer is made, and whether it is cased is decided.
6. The folder is written; conversion.json says what was read, decided and left out.
"""

import logging
import pickle
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_repro.configs import ConversionConfig
from bert_repro.conversion.original_names import (
    GELU,
    HEAD_NAMES,
    NOT_TRAINED,
    SETTINGS,
    Array,
    canonical_torch_names,
    head_of,
    model_tensors,
    pair_of,
    read_settings,
    require_bert,
)
from bert_repro.conversion.tensor_bundle import TensorBundle
from bert_repro.errors import UserError, flag
from bert_repro.hub.export import export_checkpoint
from bert_repro.models.configuration_bert_repro import AUTO_CLASSES, BertReproConfig
from bert_repro.models.loading import load_tokenizer, quiet_transformers, read_model_config
from bert_repro.utils.files import CONVERSION, atomic_folder, write_json
from bert_repro.utils.readers import comma_separated, first_line, quoted, read_json, read_json_object

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger("bert_repro")

_TORCH_WEIGHTS = "pytorch_model.bin"
_TORCH_CONFIG = "config.json"
_ORIGINAL_CONFIG = "bert_config.json"
_VOCABULARY = "vocab.txt"
_HEADS_WITH_LABELS = ("classification", "tagging")
_ALSO_IN_TORCH_CONFIG = ("hidden_act", "layer_norm_eps", "classifier_dropout", "pad_token_id", "problem_type")
"""What is taken from a config.json in addition to `SETTINGS`."""
_OPTIONAL_TENSORS = re.compile(
    r"bert/pooler/dense/(kernel|bias)|cls/(predictions|seq_relationship|squad)/.+|output_(weights|bias)"
)
"""Tensors of a BERT that not every head has; they may be left out."""


@dataclass
class Original:
    """A checkpoint that was read, and what was decided about it.

    Args:
        tensors: those that are converted, by original name, with the original axes.
        config: configuration of the model to make.
        head: a key of `HEAD_NAMES`.
        left_out: original name -> why the tensor was not converted.
        decisions: subject -> what was decided and why, in words.
    """

    tensors: dict[str, Array]
    config: BertReproConfig
    head: str
    left_out: dict[str, str] = field(default_factory=dict)
    decisions: dict[str, str] = field(default_factory=dict)


def convert_checkpoint(config: ConversionConfig) -> Path:
    """Converts a checkpoint. The folder appears when all of it is written.

    Args:
        config: the checkpoint, the folder to write, and what the files do not say themselves.

    Returns:
        The folder.

    Raises:
        UserError: the checkpoint is missing, damaged or of another model, or leaves something undecided.
    """
    quiet_transformers()
    output_dir = Path(config.output_dir)
    try:
        weights = _find_weights(Path(config.checkpoint))
        original = _read(weights, config)
        tokenizer = _make_tokenizer(weights.parent, config, original)
    except UserError as error:
        # The steps below say what is wrong with "the checkpoint"; this says which one.
        raise UserError(f"{flag('checkpoint', config.checkpoint)}: {error}", setting=error.setting) from error

    with atomic_folder(output_dir) as folder:
        converted = _publish(original, tokenizer, folder, output_dir.name, Path(config.checkpoint).name)
        report = {
            "source": Path(config.checkpoint).name,
            "class": AUTO_CLASSES[HEAD_NAMES[original.head]].upstream,
            "decisions": original.decisions,
            "tensors": converted,
            "left_out": original.left_out,
        }
        write_json(folder / CONVERSION, report, ensure_ascii=False)
    _log_summary(original, len(converted), output_dir)
    return output_dir


def _log_summary(original: Original, num_converted: int, output_dir: Path) -> None:
    for subject, decision in original.decisions.items():
        logger.info("%s: %s", subject, decision)
    reasons = list(original.left_out.values())
    left_out = [f"; {reasons.count(reason)} left out ({reason})" for reason in sorted(set(reasons))]
    logger.info("tensors: %d converted%s", num_converted, "".join(left_out))
    logger.info("model: %s (%s contains the full report)", output_dir, CONVERSION)


# --- 1. Finding the weights -------------------------------------------------------------------------------------------


def _find_weights(path: Path) -> Path:
    """Returns the prefix of a TensorFlow checkpoint, or a pytorch_model.bin.

    Args:
        path: that prefix, one of the files, or their folder.

    Raises:
        UserError: there is no checkpoint, or more than one.
    """
    if path.is_dir():
        return _weights_in(path)
    if path.is_file() and path.suffix == ".bin":
        return path
    # The user may have named any of TensorFlow's files.
    prefix = path.with_name(re.sub(r"\.(index|meta|data-\d{5}-of-\d{5})$", "", path.name))
    if prefix.with_name(f"{prefix.name}.index").is_file():
        return prefix
    raise UserError(
        f"this is not a checkpoint. Pass its folder, the prefix of bert_model.ckpt.index, or a {_TORCH_WEIGHTS}."
    )


def _weights_in(folder: Path) -> Path:
    candidates = sorted(file.with_suffix("") for file in folder.glob("*.index"))
    if (folder / _TORCH_WEIGHTS).is_file():
        candidates.append(folder / _TORCH_WEIGHTS)
    if not candidates:
        raise UserError(f"holds no checkpoint: neither TensorFlow's .index nor {_TORCH_WEIGHTS} is there.")
    if len(candidates) > 1:
        raise UserError(
            f"holds several checkpoints: {comma_separated(file.name for file in candidates)}. Name one of them."
        )
    return candidates[0]


# --- 2. Reading tensors -----------------------------------------------------------------------------------------------


def _tensorflow_tensors(prefix: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """Returns the weights of a TensorFlow checkpoint, and the reasons for what was left out."""
    bundle = TensorBundle(prefix)
    left_out = {name: "left by training" for name in bundle.entries if NOT_TRAINED.fullmatch(name)}
    names = [name for name in bundle.entries if name not in left_out]
    require_bert(names)
    return {name: _as_float(name, bundle.read(name)) for name in names}, left_out


def _torch_tensors(path: Path) -> dict[str, Array]:
    """Returns the weights of a pytorch_model.bin under their original names and with the original axes."""
    tensors = {}
    for name, array in canonical_torch_names(_load_pickle(path)).items():
        try:
            pair = pair_of(name)
        except (KeyError, IndexError):
            raise UserError(f"{path.name} contains {quoted(name)}, which is not a weight of a BERT.") from None
        tensors[pair.original] = _as_float(name, pair.as_original(array))
    require_bert(tensors)
    return tensors


def _load_pickle(path: Path) -> dict[str, Array]:
    """Loads the tensors in a pickle without running anything in it.

    Raises:
        UserError: the file contains other objects, is damaged or is not a mapping of tensors.
    """
    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        # torch's own message explains how to switch the protection off, which is bad advice for a file of others.
        raise UserError(
            f"{path.name} contains more than tensors, or is damaged. Loading it could run code that somebody put into "
            "the file, so it is refused. Ask its author for the weights as safetensors, or download it again."
        ) from None
    except Exception as error:
        # torch raises many kinds of errors for a file that it cannot read.
        raise UserError(f"{path.name}: cannot be read as weights ({first_line(error)}). Download it again.") from error

    is_state = isinstance(content, dict) and all(torch.is_tensor(value) for value in content.values())
    if not is_state:
        raise UserError(f"{path.name} is not a mapping of names to tensors. Pass the weights of a model alone.")
    # Numbers of positions and token types are integers and are not weights.
    return {str(name): value.float().numpy() for name, value in content.items() if value.is_floating_point()}


def _as_float(name: str, array: Array) -> Array:
    """Returns a weight in float32."""
    if array.dtype.kind != "f":
        raise UserError(f"{quoted(name)} holds {array.dtype} numbers, but weights are floating-point numbers.")
    values = np.asarray(array, np.float32)
    if not np.isfinite(values).all():
        raise UserError(f"{quoted(name)} contains values that are not finite. Download the checkpoint again.")
    return values


# --- 3. Deciding head, settings and labels ----------------------------------------------------------------------------


def _read(weights: Path, config: ConversionConfig) -> Original:
    """Reads a checkpoint and decides what it is."""
    # Step 2: the tensors.
    is_torch = weights.suffix == ".bin"
    left_out: dict[str, str] = {}
    if is_torch:
        tensors = _torch_tensors(weights)
    else:
        tensors, left_out = _tensorflow_tensors(weights)

    # Step 3: what the files say about the model.
    # A pytorch_model.bin of transformers has a config.json, which says more than a bert_config.json.
    torch_config = None
    if is_torch and (weights.parent / _TORCH_CONFIG).is_file():
        torch_config = read_model_config(weights.parent)
    head: str = config.head
    if head == "auto":
        head = _head_in(torch_config) or head_of(tensors)
    settings, decisions = _settings(weights, torch_config, config, is_torch)
    decisions = {"head": f"{head} ({'as its files say' if config.head == 'auto' else flag('head')})", **decisions}

    if head in _HEADS_WITH_LABELS:
        settings |= _labels(tensors, torch_config, config.label_names)
    elif config.label_names:
        raise UserError(
            f"{flag('label_names')} is for a classifier or tagger, and this is {head}. Leave it out.",
            setting="label_names",
        )
    # The configuration itself knows which sizes fit together.
    try:
        model_config = BertReproConfig(**settings)
        model_config.check()
    except ValueError as error:
        raise UserError(f"its settings make no BERT: {error}") from error
    original = Original(tensors, model_config, head, left_out, decisions)
    _match_tensors(original)
    return original


def _head_in(torch_config: BertReproConfig | None) -> str | None:
    """Returns the head that a config.json of transformers names."""
    if torch_config is None or not torch_config.architectures:
        return None
    for head, auto_class in HEAD_NAMES.items():
        if torch_config.architectures[0] in (AUTO_CLASSES[auto_class].ours, AUTO_CLASSES[auto_class].upstream):
            return head
    return None


def _settings(
    weights: Path, torch_config: BertReproConfig | None, config: ConversionConfig, is_torch: bool
) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the settings of the model, and what was decided about its activation."""
    if torch_config is not None:
        if config.gelu is not None:
            raise UserError(
                f"{flag('gelu')} is for bert_config.json, which does not name the form of gelu; config.json does; "
                "leave it out.",
                setting="gelu",
            )
        if torch_config.is_decoder:
            raise UserError(f"{_TORCH_CONFIG}: is_decoder is true, but a BERT attends to both sides.")
        settings = {name: getattr(torch_config, name) for name in (*SETTINGS, *_ALSO_IN_TORCH_CONFIG)}
        return settings, {"hidden_act": f"{settings['hidden_act']} ({_TORCH_CONFIG})"}

    settings, activation = read_settings(read_json(weights.parent / _ORIGINAL_CONFIG), _ORIGINAL_CONFIG)
    settings["hidden_act"] = _activation(activation, config.gelu, is_torch)
    source = flag("gelu", config.gelu) if config.gelu else _ORIGINAL_CONFIG
    return settings, {"hidden_act": f"{settings['hidden_act']} ({source})"}


def _activation(name: str | None, gelu: str | None, is_torch: bool) -> str:
    """Returns the activation under transformers' name.

    Args:
        name: as bert_config.json says; None is no activation.
        gelu: the form of gelu, if the user said it.
        is_torch: whether the weights are PyTorch's, which always computed the erf form.
    """
    # Other activations have one form.
    if name != "gelu":
        if gelu is not None:
            raise UserError(
                f"{flag('gelu', gelu)}: {_ORIGINAL_CONFIG} says hidden_act {quoted(name)}; leave it out.",
                setting="gelu",
            )
        return name or "linear"
    if gelu is None and not is_torch:
        raise UserError(
            f"{_ORIGINAL_CONFIG} says hidden_act gelu, which was the erf form in 2018 and is the tanh form in the "
            f"code since February 2019; say which with {flag('gelu', 'erf')} (the first releases) or "
            f"{flag('gelu', 'tanh')}.",
            setting="gelu",
        )
    return GELU[gelu or "erf"]


def _labels(
    tensors: Mapping[str, Array], torch_config: BertReproConfig | None, names: tuple[str, ...]
) -> dict[str, dict[Any, Any]]:
    """Returns the labels of a classifier or tagger: those given, else those in config.json, else numbered ones.

    Raises:
        UserError: there is no output layer, or another number of names.
    """
    if "output_weights" not in tensors:
        raise UserError("lacks output_weights and output_bias, which a classifier or tagger has.")
    num_labels = len(tensors["output_weights"])
    if names and len(set(names)) != num_labels:
        raise UserError(
            f"{flag('label_names')} gives {len(set(names))} different names, and the checkpoint has {num_labels} "
            "outputs.",
            setting="label_names",
        )
    # The number of labels is that of the output layer's rows, whatever the files say.
    if not names and torch_config is not None and len(torch_config.id2label) == num_labels:
        names = tuple(torch_config.id2label[index] for index in range(num_labels))
    if not names:
        names = tuple(f"LABEL_{index}" for index in range(num_labels))
    return {"id2label": dict(enumerate(names)), "label2id": {name: index for index, name in enumerate(names)}}


# --- 4. Comparing tensors ---------------------------------------------------------------------------------------------


def _match_tensors(original: Original) -> None:
    """Compares the tensors by name and shape with those of the model; leaves out others, each with a reason.

    Raises:
        UserError: a tensor is missing, has another shape, or is not known.
    """
    # Every tensor that the model needs must be there.
    needed = model_tensors(HEAD_NAMES[original.head], original.config)
    missing = sorted(set(needed) - set(original.tensors))
    if missing:
        raise UserError(
            f"lacks {comma_separated(missing)}, which {flag('head', original.head)} needs. Name a checkpoint that has "
            "it.",
            setting="head",
        )
    # Tensors of another head may be left out, with a reason. Anything else would be lost without a word.
    surplus = sorted(set(original.tensors) - set(needed))
    unknown = [name for name in surplus if not _OPTIONAL_TENSORS.fullmatch(name)]
    if unknown:
        num_layers = original.config.num_hidden_layers
        raise UserError(f"holds {comma_separated(unknown)}, which is no tensor of a BERT with {num_layers} layers.")
    for name in surplus:
        original.left_out[name] = f"not part of {flag('head', original.head)}"
        del original.tensors[name]

    # The shapes must be those that the settings describe.
    for name, tensor in needed.items():
        shape = original.tensors[name].shape
        if shape != tensor.original_shape:
            raise UserError(
                f"{name} has the shape {list(shape)}, where the settings ask for {list(tensor.original_shape)}."
            )


# --- 5. Tokenizer -----------------------------------------------------------------------------------------------------


def _make_tokenizer(folder: Path, config: ConversionConfig, original: Original) -> "PreTrainedTokenizerBase":
    """Returns the tokenizer of the vocabulary next to the weights.

    Raises:
        UserError: there is no vocabulary, it has more entries than the model, or the signs of its case disagree.
    """
    # The number of entries must fit the embeddings; the releases have some embeddings without an entry.
    vocab_file = folder / _VOCABULARY
    if not vocab_file.is_file():
        raise UserError(f"there is no {_VOCABULARY} next to the weights. Put the model's vocabulary there.")
    tokenizer = load_tokenizer(vocab_file, lowercase=config.do_lower_case)
    num_entries, vocab_size = len(tokenizer), original.config.vocab_size
    if num_entries > vocab_size:
        raise UserError(f"{_VOCABULARY} has {num_entries:,} entries, and the model only {vocab_size:,}.")
    if num_entries < vocab_size:
        original.decisions["vocabulary"] = (
            f"{vocab_size - num_entries:,} of the embeddings have no entry in {_VOCABULARY}"
        )

    # No file says for certain whether a model is uncased, so all signs must agree.
    signs = {_VOCABULARY: bool(tokenizer.do_lower_case)}
    if config.do_lower_case is not None:
        signs = {flag("do_lower_case"): config.do_lower_case}
    else:
        signs |= _other_signs_of_case(folder, Path(config.checkpoint).name)
    if len(set(signs.values())) > 1:
        described = [f"{sign}: {_case(is_uncased)}" for sign, is_uncased in signs.items()]
        raise UserError(
            f"it is not clear whether the model is cased or uncased ({'; '.join(described)}). Say it with "
            f"{flag('do_lower_case', True)} or {flag('do_lower_case', False)}.",
            setting="do_lower_case",
        )
    original.decisions["case"] = f"{_case(bool(tokenizer.do_lower_case))} ({', '.join(signs)})"
    return tokenizer


def _case(is_uncased: bool) -> str:
    return "uncased" if is_uncased else "cased"


def _other_signs_of_case(folder: Path, name: str) -> dict[str, bool]:
    """Returns what besides the vocabulary says whether a model is uncased: sign -> whether it says so."""
    signs: dict[str, bool] = {}
    path = folder / "tokenizer_config.json"
    if path.is_file():
        do_lower_case = read_json_object(path).get("do_lower_case")
        if isinstance(do_lower_case, bool):
            signs[path.name] = do_lower_case
    match = re.search(r"(?<![a-z])(un)?cased(?![a-z])", f"{name} {folder.resolve().name}".lower())
    if match:
        signs[f"the name {match[0]}"] = match[1] is not None
    return signs


# --- 6. Publishing ----------------------------------------------------------------------------------------------------


def _publish(
    original: Original, tokenizer: "PreTrainedTokenizerBase", folder: Path, name: str, converted_from: str
) -> list[dict[str, Any]]:
    """Writes the published folder.

    Args:
        original: the checkpoint.
        tokenizer: its tokenizer.
        folder: an empty folder.
        name: id of the model on its card.
        converted_from: name of the checkpoint on its card.

    Returns:
        Names and shape of each tensor that was converted, ready for JSON.
    """
    import torch

    from bert_repro.models import modeling_bert_repro

    # Back to our names and axes.
    auto_class = HEAD_NAMES[original.head]
    pairs = [tensor.pair for tensor in model_tensors(auto_class, original.config).values()]
    # Without a head the weights have no prefix in our model.
    prefix = "bert." if auto_class == "AutoModel" else ""
    state = {}
    for pair in pairs:
        array = np.array(pair.as_original(original.tensors[pair.original]), order="C")
        state[pair.name.removeprefix(prefix)] = torch.from_numpy(array)
    model_class = getattr(modeling_bert_repro, AUTO_CLASSES[auto_class].ours)
    model = model_class.from_pretrained(None, config=original.config, state_dict=state, trust_remote_code=False)

    # Nothing is claimed about the license of other people's weights.
    facts = {"converted_from": converted_from, "license": "unknown"}
    export_checkpoint(model, tokenizer, folder, model_id=name, card_facts=facts)
    return [asdict(pair) | {"shape": list(original.tensors[pair.original].shape)} for pair in pairs]
