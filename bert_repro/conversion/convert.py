"""Converts checkpoints of the original implementation to published folders (recipes/convert_checkpoint.py).

--checkpoint        a folder or prefix of TensorFlow's files, or a pytorch_model.bin
   | tensor_bundle, or torch.load        tensors
   | original_names                      strict: names, shapes, settings
   v
--output_dir        the published folder; conversion.json says what was read and decided
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_repro.configs import ConversionConfig, require
from bert_repro.conversion.original_names import (
    GELU,
    HEAD_NAMES,
    NOT_TRAINED,
    SETTINGS,
    Array,
    canonical_torch_names,
    head_of,
    model_pairs,
    pair_of,
    read_settings,
    require_bert,
)
from bert_repro.conversion.tensor_bundle import TensorBundle
from bert_repro.errors import UserError
from bert_repro.hub.export import export_checkpoint
from bert_repro.models.configuration_bert_repro import AUTO_CLASSES, BertReproConfig
from bert_repro.models.loading import load_tokenizer, quiet_transformers, read_model_config
from bert_repro.utils.files import CONVERSION, atomic_folder, write_json
from bert_repro.utils.readers import listed, read_json, shown

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger("bert_repro")

_TORCH_WEIGHTS = "pytorch_model.bin"
_TORCH_CONFIG = "config.json"
_ORIGINAL_CONFIG = "bert_config.json"
_VOCABULARY = "vocab.txt"
_LABELS = ("classification", "tagging")
_ALSO_KEPT = ("hidden_act", "layer_norm_eps", "classifier_dropout", "pad_token_id", "problem_type")
"""What a config.json says in addition to `SETTINGS`."""
_CAN_BE_LEFT_OUT = re.compile(
    r"bert/pooler/dense/(kernel|bias)|cls/(predictions|seq_relationship|squad)/.+|output_(weights|bias)"
)


@dataclass
class Original:
    """What was read of a checkpoint, and what was decided about it.

    Args:
        tensors: by original name, with the original axes; those that are converted.
        config: of the model to make.
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
    """Converts a checkpoint; the folder appears when all of it is written.

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
        tokenizer = _tokenizer(weights.parent, config, original)
    except UserError as error:
        raise UserError(f"--checkpoint {config.checkpoint}: {error}") from error
    with atomic_folder(output_dir) as folder:
        names = _publish(original, tokenizer, folder, output_dir.name, Path(config.checkpoint).name)
        report = {
            "source": Path(config.checkpoint).name,
            "class": AUTO_CLASSES[HEAD_NAMES[original.head]].upstream,
            "decisions": original.decisions,
            "tensors": names,
            "left_out": original.left_out,
        }
        write_json(folder / CONVERSION, report, ensure_ascii=False)
    for subject, decision in original.decisions.items():
        logger.info("%s: %s", subject, decision)
    reasons = list(original.left_out.values())
    left_out = "".join(f"; {reasons.count(reason)} left out ({reason})" for reason in sorted(set(reasons)))
    logger.info("tensors: %d converted%s", len(names), left_out)
    logger.info("model: %s (%s says all of it)", output_dir, CONVERSION)
    return output_dir


def _find_weights(path: Path) -> Path:
    """Returns the prefix of a TensorFlow checkpoint or a pytorch_model.bin, for its path or its folder's.

    Raises:
        UserError: there is none or more than one.
    """
    if path.is_dir():
        found = sorted(file.with_suffix("") for file in path.glob("*.index"))
        found += [file for file in (path / _TORCH_WEIGHTS,) if file.is_file()]
        require(len(found) <= 1, f"holds several checkpoints: {listed(file.name for file in found)}; name one of them")
        require(found, f"holds no checkpoint: neither a .index of TensorFlow's nor {_TORCH_WEIGHTS}")
        return found[0]
    if path.is_file() and path.suffix == ".bin":
        return path
    prefix = path.with_name(re.sub(r"\.(index|meta|data-\d{5}-of-\d{5})$", "", path.name))
    if prefix.with_name(f"{prefix.name}.index").is_file():
        return prefix
    raise UserError(f"is no checkpoint; name its folder, the prefix of bert_model.ckpt.index, or a {_TORCH_WEIGHTS}")


# ------------------------------------------------------------------------------------------------------------- reading


def _read(weights: Path, config: ConversionConfig) -> Original:
    is_torch, folder = weights.suffix == ".bin", weights.parent
    tensors, left_out = _torch_tensors(weights) if is_torch else _tensorflow_tensors(weights)
    known = read_model_config(folder) if is_torch and (folder / _TORCH_CONFIG).is_file() else None
    named = (known.architectures or []) if known else []  # the head that a config.json of transformers names
    classes = {head: (AUTO_CLASSES[name].ours, AUTO_CLASSES[name].upstream) for head, name in HEAD_NAMES.items()}
    found = next((head for head, both in classes.items() if named and named[0] in both), None)
    head = config.head if config.head != "auto" else found or head_of(tensors)
    decisions = {"head": f"{head} ({'as its files say' if config.head == 'auto' else '--head'})"}
    if known is not None:
        if config.gelu is not None:
            raise UserError("--gelu is for bert_config.json, which does not say which; config.json does; leave it out")
        require(not known.is_decoder, f"{_TORCH_CONFIG}: is_decoder is true; a BERT sees both sides")
        settings = {name: getattr(known, name) for name in (*SETTINGS, *_ALSO_KEPT)}
    else:
        settings, activation = read_settings(read_json(folder / _ORIGINAL_CONFIG), _ORIGINAL_CONFIG)
        settings["hidden_act"] = _decide_activation(activation, config.gelu, is_torch)
    file = _TORCH_CONFIG if known else _ORIGINAL_CONFIG
    decisions["hidden_act"] = f"{settings['hidden_act']} ({f'--gelu {config.gelu}' if config.gelu else file})"
    if head in _LABELS:
        settings |= _labels_of(tensors, known, config.label_names)
    elif config.label_names:
        raise UserError(f"--label_names are for a classifier or tagger, and this is {head}; leave them out")
    try:
        model_config = BertReproConfig(**settings)
        model_config.check()
    except ValueError as error:
        raise UserError(f"its settings make no BERT: {error}") from error
    original = Original(tensors, model_config, head, left_out, decisions)
    _match_tensors(original)
    return original


def _tensorflow_tensors(prefix: Path) -> tuple[dict[str, Array], dict[str, str]]:
    bundle = TensorBundle(prefix)
    left_out = {name: "left by training" for name in bundle.entries if NOT_TRAINED.fullmatch(name)}
    names = [name for name in bundle.entries if name not in left_out]
    require_bert(names)
    return {name: _as_float(name, bundle.read(name)) for name in names}, left_out


def _torch_tensors(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)  # builds tensors, runs nothing
        tensors = {name: value.float().numpy() for name, value in content.items() if value.is_floating_point()}
    except Exception as error:  # torch raises many kinds for a file that it cannot read
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise UserError(f"{path.name}: cannot be read as weights ({reason}); get it again") from error
    found = {}
    for name, array in canonical_torch_names(tensors).items():
        try:
            pair = pair_of(name)
        except (KeyError, IndexError):
            raise UserError(f"{path.name} holds {shown(name)}, which is no weight of a BERT") from None
        found[pair.original] = _as_float(name, pair.as_original(array))
    require_bert(found)
    return found, {}


def _as_float(name: str, array: Array) -> Array:
    require(array.dtype.kind == "f", f"{shown(name)} holds {array.dtype} numbers, where weights are floating-point")
    values = np.asarray(array, np.float32)
    require(np.isfinite(values).all(), f"{shown(name)} holds values that are not finite; get the checkpoint again")
    return values


def _match_tensors(original: Original) -> None:
    """Checks the tensors by name and shape against those of the model; leaves out the others, each with a reason.

    Raises:
        UserError: one is missing, has another shape, or is not known.
    """
    wanted = model_pairs(HEAD_NAMES[original.head], original.config)
    missing = sorted(set(wanted) - set(original.tensors))
    require(not missing, f"lacks {listed(missing)}, which --head {original.head} needs; name a checkpoint that has it")
    surplus = sorted(set(original.tensors) - set(wanted))
    unknown = [name for name in surplus if not _CAN_BE_LEFT_OUT.fullmatch(name)]
    if unknown:
        raise UserError(
            f"holds {listed(unknown)}, which is no tensor of a BERT of {original.config.num_hidden_layers} layers"
        )
    for name in surplus:
        original.left_out[name] = f"not part of --head {original.head}"
        del original.tensors[name]
    for name, (pair, shape) in wanted.items():
        found, needed = original.tensors[name].shape, shape[::-1] if pair.transposed else shape
        require(found == needed, f"{name} has the shape {list(found)}, where the settings ask for {list(needed)}")


# ------------------------------------------------------------------------------------------ what the files do not say


def _decide_activation(named: str | None, gelu: str | None, is_torch: bool) -> str:
    """Returns the activation under transformers' name."""
    if named != "gelu":
        require(gelu is None, f"--gelu {gelu}: {_ORIGINAL_CONFIG} says hidden_act {shown(named)}; leave it out")
        return named or "linear"
    if gelu is None and not is_torch:  # PyTorch's BERT always computed erf
        raise UserError(
            f"{_ORIGINAL_CONFIG} says hidden_act gelu, which was the erf form in 2018 and is the tanh form in the "
            "code since February 2019; say which with --gelu erf (the first releases) or --gelu tanh"
        )
    return GELU[gelu or "erf"]


def _labels_of(tensors: Mapping[str, Array], known: BertReproConfig | None, names: tuple[str, ...]) -> dict[str, Any]:
    """Returns the labels of a classifier or tagger: those given, else those of config.json, else numbered ones.

    Raises:
        UserError: there is no output layer, or another number of names.
    """
    require("output_weights" in tensors, "lacks output_weights and output_bias, which a classifier or tagger has")
    count = len(tensors["output_weights"])
    if names and len(set(names)) != count:
        raise UserError(
            f"--label_names gives {len(set(names))} different names, and the checkpoint has {count} outputs"
        )
    if not names and known is not None and len(known.id2label) == count:
        names = tuple(known.id2label[index] for index in range(count))
    labels = dict(enumerate(names or (f"LABEL_{index}" for index in range(count))))
    return {"id2label": labels, "label2id": {label: index for index, label in labels.items()}}


def _tokenizer(folder: Path, config: ConversionConfig, original: Original) -> "PreTrainedTokenizerBase":
    vocab_file = folder / _VOCABULARY
    require(vocab_file.is_file(), f"there is no {_VOCABULARY} next to the weights; put the model's vocabulary there")
    tokenizer = load_tokenizer(vocab_file, lowercase=config.do_lower_case)
    entries, size = len(tokenizer), original.config.vocab_size
    require(entries <= size, f"{_VOCABULARY} has {entries:,} entries, and the model {size:,}")
    if entries < size:
        original.decisions["vocabulary"] = f"{size - entries:,} of the embeddings have no entry in {_VOCABULARY}"
    signs = {_VOCABULARY: tokenizer.do_lower_case}
    if config.do_lower_case is not None:
        signs = {"--do_lower_case": config.do_lower_case}
    else:
        signs |= _other_signs_of_case(folder, Path(config.checkpoint).name)
    if len(set(signs.values())) > 1:
        described = "; ".join(f"{sign}: {'uncased' if lower else 'cased'}" for sign, lower in signs.items())
        raise UserError(f"cased or uncased? {described}; say it with --do_lower_case true or false")
    original.decisions["case"] = f"{'uncased' if tokenizer.do_lower_case else 'cased'} ({', '.join(signs)})"
    return tokenizer


def _other_signs_of_case(folder: Path, name: str) -> dict[str, bool]:
    """Returns what besides the vocabulary says whether a model is uncased."""
    signs: dict[str, bool] = {}
    path = folder / "tokenizer_config.json"
    content = read_json(path) if path.is_file() else {}
    if isinstance(content.get("do_lower_case"), bool):
        signs[path.name] = content["do_lower_case"]
    if found := re.search(r"(?<![a-z])(un)?cased(?![a-z])", f"{name} {folder.resolve().name}".lower()):
        signs[f"the name {found[0]}"] = found[1] is not None
    return signs


# ---------------------------------------------------------------------------------------------------------- publishing


def _publish(
    original: Original, tokenizer: "PreTrainedTokenizerBase", folder: Path, name: str, converted_from: str
) -> list[dict[str, Any]]:
    """Writes the published folder; returns the names of what was converted, ready for JSON."""
    import torch

    from bert_repro.models import modeling_bert_repro

    auto_class = HEAD_NAMES[original.head]
    pairs = [pair for pair, _ in model_pairs(auto_class, original.config).values()]
    prefix = "bert." if auto_class == "AutoModel" else ""
    state = {
        pair.name.removeprefix(prefix): torch.from_numpy(
            np.array(pair.as_original(original.tensors[pair.original]), order="C")
        )
        for pair in pairs
    }
    model_class = getattr(modeling_bert_repro, AUTO_CLASSES[auto_class].ours)
    model = model_class.from_pretrained(None, config=original.config, state_dict=state)
    facts = {"converted_from": converted_from, "license": "unknown"}  # nothing is claimed for others' weights
    export_checkpoint(model, tokenizer, folder, model_id=name, card_facts=facts)
    return [asdict(pair) | {"shape": list(original.tensors[pair.original].shape)} for pair in pairs]
