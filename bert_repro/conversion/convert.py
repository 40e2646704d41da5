"""Converts checkpoints of the original implementation to published folders, and back (recipes/convert_checkpoint.py).

--checkpoint        source: files found, archives unpacked
   | tensor_bundle, or torch_weights for a pytorch_model.bin     tensors
   | original_names                                              strict: names, shapes, settings
   v
a model of ours     hub/export, into a folder beside the one asked for
   | parity         tensors, outputs, tokenizer compared as they were written
   v
--output_dir        conversion.json says what was read, decided and compared
"""

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_repro.configs import ConversionConfig
from bert_repro.conversion import parity
from bert_repro.conversion.decisions import (
    ORIGINAL_CONFIG,
    VOCABULARY,
    decide_activation,
    decide_case,
    labels_of,
)
from bert_repro.conversion.original_names import (
    ACTIVATIONS,
    GELU,
    HEAD_NAMES,
    NOT_TRAINED,
    SETTINGS,
    Array,
    TensorPair,
    canonical_torch_names,
    check_sizes,
    head_of,
    model_pairs,
    pair_of,
    read_settings,
    require_bert,
)
from bert_repro.conversion.source import CheckpointFiles, open_source
from bert_repro.conversion.tensor_bundle import TensorBundle
from bert_repro.conversion.torch_weights import read_torch_weights
from bert_repro.errors import UserError
from bert_repro.hub.export import export_checkpoint
from bert_repro.models.configuration_bert_repro import AUTO_CLASSES, BertReproConfig
from bert_repro.models.loading import MAX_INPUT_CHARS_PER_WORD as MAX_CHARS
from bert_repro.models.loading import load_tokenizer, quiet_transformers, read_model_config
from bert_repro.utils.files import CONVERSION, atomic_folder, write_json
from bert_repro.utils.process import is_free_folder
from bert_repro.utils.readers import listed, read_json, shown

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger("bert_repro")

_TORCH_CONFIG = "config.json"
_LABELS = ("classification", "tagging")
_ALSO_KEPT = ("hidden_act", "layer_norm_eps", "classifier_dropout", "pad_token_id", "problem_type")
"""What a config.json says beside `SETTINGS`."""


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
    """Converts a checkpoint; nothing is left where the result differs from what was read.

    Args:
        config: the checkpoint, the folder to write, and what the files do not say themselves.

    Returns:
        The folder.

    Raises:
        UserError: the checkpoint is missing, damaged or of another model, or leaves something undecided.
        DifferenceError: what was written differs.
    """
    quiet_transformers()
    output_dir = Path(config.output_dir)
    if output_dir.exists() and not output_dir.is_dir():
        raise UserError(f"--output_dir {output_dir}: is a file; name a folder")
    if not is_free_folder(output_dir) and not config.overwrite_output_dir:
        raise UserError(f"--output_dir {output_dir} is not empty; choose another or give --overwrite_output_dir")
    with open_source(config.checkpoint, output_dir.parent, 20_000_000_000) as source:
        try:
            original = _read(source, config, output_dir.parent)
            tokenizer = _tokenizer(source, config, original)
        except UserError as error:
            if str(error).startswith("--"):
                raise
            raise UserError(f"--checkpoint {config.checkpoint}: {error}") from error
        with atomic_folder(output_dir) as folder:
            _publish(original, tokenizer, folder, output_dir.name, Path(config.checkpoint).name)
            report = {"source": Path(config.checkpoint).name} | _check(original, tokenizer, folder)
            write_json(folder / CONVERSION, report, ensure_ascii=False)
    _log_decisions(report, output_dir)
    return output_dir


# ------------------------------------------------------------------------------------------------------------- reading


def _read(source: CheckpointFiles, config: ConversionConfig, work_dir: Path) -> Original:
    tensors, left_out = _torch_tensors(source, work_dir) if source.is_torch else _tensorflow_tensors(source)
    known = _torch_config(source) if source.is_torch and (source.folder / _TORCH_CONFIG).is_file() else None
    head = config.head if config.head != "auto" else _head_named_by(known) or head_of(tensors)
    decisions = {"head": f"{head} ({'as its files say' if config.head == 'auto' else '--head'})"}
    settings = _settings(source, known, config, decisions)
    labels: dict[str, Any] = {}
    file = _TORCH_CONFIG if known else ORIGINAL_CONFIG
    check_sizes(tensors, settings, file)
    if head in _LABELS:
        labels = labels_of(tensors, known, config.label_names)
    elif config.label_names:
        raise UserError(f"--label_names are for a classifier or tagger, and this is {head}; leave them out")
    try:
        model_config = BertReproConfig(**settings, **labels)
        model_config.check()
    except Exception as error:  # the library's own checks raise many kinds
        raise UserError(f"{file}: {' '.join(str(error).split())[:300]}") from error
    original = Original(tensors, model_config, head, left_out, decisions)
    _match_tensors(original)
    return original


def _tensorflow_tensors(source: CheckpointFiles) -> tuple[dict[str, Array], dict[str, str]]:
    bundle = TensorBundle(source.weights)
    left_out = {name: "left by training" for name in bundle.entries if NOT_TRAINED.fullmatch(name)}
    names = [name for name in bundle.entries if name not in left_out]
    require_bert(names)
    return {name: _as_float(name, bundle.read(name)) for name in names}, left_out


def _torch_tensors(source: CheckpointFiles, work_dir: Path) -> tuple[dict[str, Array], dict[str, str]]:
    tensors = canonical_torch_names(read_torch_weights(source.weights, work_dir))
    found = {}
    for name, array in tensors.items():
        try:
            pair = pair_of(name)
        except (KeyError, IndexError):
            raise UserError(f"{source.weights.name} holds {shown(name)}, which is no weight of a BERT") from None
        found[pair.original] = _as_float(name, pair.as_original(array))
    require_bert(found)
    return found, {}


def _as_float(name: str, array: Array) -> Array:
    if array.dtype.kind != "f":
        raise UserError(f"{shown(name)} holds {array.dtype} numbers, where weights are floating-point")
    values = np.asarray(array, np.float32)
    if not np.isfinite(values).all():
        raise UserError(f"{shown(name)} holds values that are not finite; get the checkpoint again")
    return values


def _match_tensors(original: Original) -> None:
    """Checks the tensors by name and shape against those of the model; leaves out the others, each with a reason.

    Raises:
        UserError: one is missing, has another shape, or is not known.
    """
    wanted = model_pairs(HEAD_NAMES[original.head], original.config)
    missing = sorted(set(wanted) - set(original.tensors))
    if missing:
        raise UserError(f"lacks {listed(missing)}, which --head {original.head} needs; name a checkpoint that has it")
    surplus = sorted(set(original.tensors) - set(wanted))
    known = re.compile(
        r"bert/pooler/dense/(kernel|bias)|cls/(predictions|seq_relationship|squad)/.+|output_(weights|bias)"
    )
    unknown = [name for name in surplus if not known.fullmatch(name)]
    if unknown:
        raise UserError(f"holds {listed(unknown)}, which is no tensor of a BERT of {original.config.num_hidden_layers} "
                        "layers; nothing is left out without a reason")  # fmt: skip
    for name in surplus:
        original.left_out[name] = f"not part of --head {original.head}"
        del original.tensors[name]
    for name, (pair, shape) in wanted.items():
        found = pair.as_original(original.tensors[name]).shape
        if found != shape:
            needed = list(reversed(shape)) if pair.transposed else list(shape)
            raise UserError(
                f"{name} has the shape {list(original.tensors[name].shape)}, where the settings ask for {needed}"
            )


# ------------------------------------------------------------------------------------------------------------ settings


def _torch_config(source: CheckpointFiles) -> BertReproConfig:
    return read_model_config(source.folder)


def _head_named_by(config: BertReproConfig | None) -> str | None:
    """Returns the head that a config.json of transformers names."""
    names = (config.architectures or []) if config else []
    for head, auto_class in HEAD_NAMES.items():
        if names and names[0] in (AUTO_CLASSES[auto_class].ours, AUTO_CLASSES[auto_class].upstream):
            return head
    return None


def _settings(
    source: CheckpointFiles, known: BertReproConfig | None, config: ConversionConfig, decisions: dict[str, str]
) -> dict[str, Any]:
    """Returns the fields of the model's configuration; says what was decided about gelu."""
    if known is not None:
        if config.gelu is not None:
            raise UserError("--gelu is for bert_config.json, which does not say which; config.json does; leave it out")
        if known.hidden_act not in (*ACTIVATIONS.values(), *GELU.values()):
            raise UserError(f"{_TORCH_CONFIG}: hidden_act {shown(known.hidden_act)} is not one of BERT's")
        if known.is_decoder:
            raise UserError(f"{_TORCH_CONFIG}: is_decoder is true; a BERT sees both sides")
        decisions["hidden_act"] = f"{known.hidden_act} ({_TORCH_CONFIG})"
        return {name: getattr(known, name) for name in (*SETTINGS, *_ALSO_KEPT)}
    content = read_json(source.folder / ORIGINAL_CONFIG)
    settings, ignored = read_settings(content, ORIGINAL_CONFIG)
    if ignored:
        decisions["settings"] = f"without meaning here: {listed(ignored)}"
    settings["hidden_act"], decisions["hidden_act"] = decide_activation(
        content["hidden_act"], config.gelu, source.is_torch
    )
    return settings


# ----------------------------------------------------------------------------------------------------------- tokenizer


def _tokenizer(source: CheckpointFiles, config: ConversionConfig, original: Original) -> "PreTrainedTokenizerBase":
    vocab_file = source.folder / VOCABULARY
    if not vocab_file.is_file():
        raise UserError(f"there is no {VOCABULARY} beside the weights; put the model's vocabulary there")
    vocabulary = load_tokenizer(vocab_file).get_vocab()
    lowercase, why = decide_case(source.folder, source.called, config.do_lower_case, vocabulary)
    tokenizer = load_tokenizer(vocab_file, lowercase=lowercase)
    if len(tokenizer) > original.config.vocab_size:
        raise UserError(f"{VOCABULARY} has {len(tokenizer):,} entries, and the model {original.config.vocab_size:,}")
    original.decisions["case"] = f"{'uncased' if lowercase else 'cased'} ({why})"
    if len(tokenizer) < original.config.vocab_size:
        missing = original.config.vocab_size - len(tokenizer)
        original.decisions["vocabulary"] = f"{missing:,} of the model's embeddings have no entry in {VOCABULARY}"
    original.decisions["longest word"] = f"{MAX_CHARS} characters, as in 2018 (200 in the code since 2018-11-23)"
    return tokenizer


# ---------------------------------------------------------------------------------------------------------- publishing


def _publish(
    original: Original, tokenizer: "PreTrainedTokenizerBase", folder: Path, name: str, converted_from: str
) -> None:
    import torch

    from bert_repro.models import modeling_bert_repro

    auto_class = HEAD_NAMES[original.head]
    pairs = (pair for pair, _ in model_pairs(auto_class, original.config).values())
    prefix = "bert." if auto_class == "AutoModel" else ""
    state = {
        pair.name.removeprefix(prefix): torch.from_numpy(
            np.ascontiguousarray(pair.as_original(original.tensors[pair.original]))
        )
        for pair in pairs
    }
    model_class = getattr(modeling_bert_repro, AUTO_CLASSES[auto_class].ours)
    model: PreTrainedModel = model_class.from_pretrained(None, config=original.config, state_dict=state)
    facts = {"converted_from": converted_from, "license": "unknown"}  # nothing is claimed for others' weights
    export_checkpoint(model, tokenizer, folder, model_id=name, card_facts=facts)


def _check(original: Original, tokenizer: "PreTrainedTokenizerBase", folder: Path) -> dict[str, Any]:
    """Compares the folder with the checkpoint; returns the report.

    Raises:
        DifferenceError: they differ.
    """
    from safetensors.numpy import load_file

    auto_class = HEAD_NAMES[original.head]
    pairs = [pair for pair, _ in model_pairs(auto_class, original.config).values()]
    prefix = "bert." if auto_class == "AutoModel" else ""
    written: dict[str, Array] = {}
    for path in folder.glob("model*.safetensors"):
        written |= {prefix + name: array for name, array in load_file(path).items()}
    parity.check_tensors(written, original.tensors, pairs)
    lowercase = original.decisions["case"].startswith("uncased")
    models = parity.load_both_ways(folder, original.head)
    inputs = parity.sample_inputs(tokenizer, original.config)
    return {
        "class": AUTO_CLASSES[auto_class].upstream,
        "decisions": original.decisions,
        "tensors": [_described(pair, original) for pair in pairs],
        "left_out": original.left_out,
        "outputs": parity.compare_outputs(models, original.tensors, original.head, inputs),
        "tolerance": parity.TOLERANCE,
        "tokenizer": parity.compare_tokenizers(folder, tokenizer.get_vocab(), lowercase=lowercase, max_chars=MAX_CHARS),
    }


def _described(pair: TensorPair, original: Original) -> dict[str, Any]:
    return {**asdict(pair), "shape": list(original.tensors[pair.original].shape)}


def _log_decisions(report: Mapping[str, Any], folder: Path) -> None:
    for subject, decision in report["decisions"].items():
        logger.info("%s: %s", subject, decision)
    parts = [f"{len(report['tensors'])} tensors converted, bit by bit"]
    if report["left_out"]:
        reasons = sorted(set(report["left_out"].values()))
        counts = [(list(report["left_out"].values()).count(reason), reason) for reason in reasons]
        parts += [f"{count} left out ({reason})" for count, reason in counts]
    logger.info("tensors: %s", "; ".join(parts))
    for way, differences in report["outputs"].items():
        worst = max(differences.values())
        logger.info("outputs of %s: largest difference %.1e over %d sentences", way, worst, len(parity.SENTENCES))
    found = report["tokenizer"]
    logger.info(
        "tokenizer: %d sentences, and %s of %s entries of the vocabulary, have the tokens of the original algorithm",
        found["sentences_with_equal_tokens"], f"{found['entries_with_equal_tokens']:,}", f"{found['entries']:,}",
    )  # fmt: skip
    logger.info("model: %s (%s says all of it)", folder, json.dumps(CONVERSION).strip('"'))
