"""Writes a published folder as the original implementation's files: a TensorFlow checkpoint, settings, vocabulary."""

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_repro.conversion import parity
from bert_repro.conversion.original_names import HEAD_NAMES, TIED, Array, TensorPair, original_settings, pair_of
from bert_repro.conversion.tensor_bundle import TensorBundle, write_bundle
from bert_repro.errors import UserError
from bert_repro.models.configuration_bert_repro import AUTO_CLASSES
from bert_repro.models.loading import load_config, load_pretrained, load_tokenizer
from bert_repro.utils.files import CONVERSION, atomic_folder, write_json, write_text

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger("bert_repro")

PREFIX = "bert_model.ckpt"
_FLAG = "--checkpoint"
_NOT_WRITTEN = ("multiple_choice",)


def convert_to_tensorflow(name: str, output_dir: Path) -> Path:
    """Writes a published model as bert_model.ckpt, bert_config.json and vocab.txt.

    Args:
        name: a published folder, or a Hub id.
        output_dir: folder to write.

    Returns:
        The folder.

    Raises:
        UserError: there is no such model, or the original implementation has no counterpart of it.
        DifferenceError: what was written differs.
    """
    head = _head(name)
    model, _ = load_pretrained(_model_class(head), name, flag=_FLAG)
    tokenizer = load_tokenizer(name)
    try:
        settings = original_settings(model.config)
        entries = _entries(tokenizer, model.config.vocab_size)
    except UserError as error:
        raise UserError(f"{_FLAG} {name}: {error}") from error
    pairs, tensors = _original_tensors(model, head)
    with atomic_folder(output_dir) as folder:
        write_bundle(folder / PREFIX, tensors)
        write_json(folder / "bert_config.json", settings)
        write_text(folder / "vocab.txt", entries)
        write_text(
            folder / "checkpoint", f'model_checkpoint_path: "{PREFIX}"\nall_model_checkpoint_paths: "{PREFIX}"\n'
        )
        report = _check(folder, model, tokenizer, head, pairs)
        write_json(folder / CONVERSION, report | {"source": Path(name).name}, ensure_ascii=False)
    _log_decisions(report, output_dir)
    return output_dir


def _head(name: str) -> str:
    names = load_config(name, _FLAG).architectures or ["none"]
    for head, auto_class in HEAD_NAMES.items():
        if names[0] in (AUTO_CLASSES[auto_class].ours, AUTO_CLASSES[auto_class].upstream) and head not in _NOT_WRITTEN:
            return head
    raise UserError(f"{_FLAG} {name}: config.json names the class {names[0]}, which the original implementation lacks")


def _model_class(head: str) -> Any:
    from bert_repro.models import modeling_bert_repro

    return getattr(modeling_bert_repro, AUTO_CLASSES[HEAD_NAMES[head]].ours)


def _entries(tokenizer: "PreTrainedTokenizerBase", size: int) -> str:
    """Returns the content of vocab.txt, whose line is the id."""
    words = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    if [index for _, index in words] != list(range(len(words))) or len(words) > size:
        raise UserError("its tokenizer's ids are not the lines of a vocab.txt")
    return "".join(f"{word}\n" for word, _ in words)


def _original_tensors(model: "PreTrainedModel", head: str) -> tuple[list[TensorPair], dict[str, Array]]:
    prefix = "bert." if head == "encoder" else ""
    pairs, tensors = [], {}
    for name, weight in model.named_parameters():
        if name not in TIED:
            pair = pair_of(prefix + name)
            pairs.append(pair)
            tensors[pair.original] = np.ascontiguousarray(pair.as_original(weight.detach().numpy()))
    return pairs, tensors


def _check(
    folder: Path, model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", head: str, pairs: list[TensorPair]
) -> dict[str, Any]:
    """Reads the checkpoint that was written and compares it with the model; returns the report."""
    bundle = TensorBundle(folder / PREFIX)
    read = {name: bundle.read(name) for name in bundle.entries}
    prefix = "bert." if head == "encoder" else ""
    ours = {prefix + name: weight.detach().numpy() for name, weight in model.named_parameters() if name not in TIED}
    parity.check_tensors(ours, read, pairs)
    inputs = parity.sample_inputs(tokenizer, model.config)
    form = {"gelu": "erf", "gelu_new": "tanh"}.get(model.config.hidden_act)
    code = {"erf": "code before February 2019 (f39e881)", "tanh": "code since February 2019"}
    normalizer = json.loads(tokenizer.backend_tokenizer.to_str()).get("normalizer") or {}
    lowercase = bool(normalizer.get("lowercase"))
    return {
        "class": AUTO_CLASSES[HEAD_NAMES[head]].upstream,
        "decisions": {
            "hidden_act": f"gelu in its {form} form, as {code[form]} computes it" if form else model.config.hidden_act,
            "case": f"--do_lower_case={lowercase} for the original tools",
        },
        "tensors": [{"name": pair.name, "original": pair.original} for pair in pairs],
        "outputs": parity.compare_outputs({"our class": model}, read, head, inputs),
        "tolerance": parity.TOLERANCE,
    }


def _log_decisions(report: dict[str, Any], folder: Path) -> None:
    for subject, decision in report["decisions"].items():
        logger.info("%s: %s", subject, decision)
    worst = max(report["outputs"]["our class"].values())
    logger.info("tensors: %d written and read back, bit by bit", len(report["tensors"]))
    logger.info("outputs: largest difference %.1e over %d sentences", worst, len(parity.SENTENCES))
    logger.info("checkpoint: %s", folder / PREFIX)
