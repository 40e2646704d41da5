"""Exports a model, its tokenizer, its results and its card as a published folder, which anyone loads.

An interruption never leaves a folder that looks complete and is not: everything is written next to its place first, and
the file by which every loader finds the weights is removed before the first file moves in and comes back last. (Without
config.json alone, a loader of one class would continue with that class's defaults.)
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_repro.hub.card import make_card, name_of_folder
from bert_repro.models.loading import longest_input, save_tokenizer
from bert_repro.utils.files import (
    ADAPTER,
    CARD,
    POOLING,
    POOLING_MODULES,
    POOLING_TEXT,
    RESULTS,
    STATUS,
    atomic_files,
    flush,
    write_json,
    write_text,
)
from bert_repro.utils.readers import redacted

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

POOLINGS = ("mean", "cls")
POOLING_FILES = (POOLING_MODULES, POOLING_TEXT, POOLING)
"""What `write_pooling` writes in a folder."""
_HEADS = ("BertReproModel", "BertReproForPreTraining", "BertReproForMaskedLM")
"""Models without a task, which embeddings are taken from. A classifier answers with labels: a server that found a
pooling of its own would have to choose."""
_MODULES = (("0", "", "Transformer"), ("1", POOLING, "Pooling"))
_MODES = {"cls": "cls_token", "mean": "mean_tokens"}
_OTHER_MODES = ("max_tokens", "mean_sqrt_len_tokens")  # text-embeddings-inference wants them named
PREDICTIONS = ("predictions.*", "nbest_predictions.*", "null_odds.*")
"""Files of a run's predictions, as patterns of names in its folder."""
MADE_FROM_WEIGHTS = ("onnx", *POOLING_FILES)
"""What is made from the weights of a folder or claimed about them, and would be wrong with others."""
_CONFIG = "config.json"
_WEIGHTS = "model*.safetensors*"
_WEIGHTS_ENTRIES = ("model.safetensors", "model.safetensors.index.json")  # the second where there are several shards
_SHAPE = (
    "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size",
    "max_position_embeddings", "hidden_act",
)  # fmt: skip


def export_checkpoint(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    output_dir: str | Path,
    *,
    results: Mapping[str, Any] | None = None,
    model_id: str | None = None,
    card_facts: Mapping[str, Any] | None = None,
    pooling: str = "mean",
) -> Path:
    """Writes a published folder: weights, configuration, model code, tokenizer, results.json and the card.

    It loads in upstream transformers, with `trust_remote_code=True`, and with the classes of this package. Other files
    of `output_dir` stay; files of an earlier export are replaced, its surplus weight shards and `MADE_FROM_WEIGHTS`
    removed.

        import bert_repro
        from transformers import AutoTokenizer

        model = bert_repro.BertReproForSequenceClassification.from_pretrained("runs/moods")
        bert_repro.export_checkpoint(model, AutoTokenizer.from_pretrained("runs/moods"), "runs/to-publish")

    Args:
        model: one of our models; its `save_pretrained` writes the published configuration and the code next to it.
        tokenizer: its tokenizer.
        output_dir: folder, made if need be.
        results: of the run, ready for JSON; see `bert_repro.hub.card`. None: the card says "not run" and no
            results.json is written.
        model_id: how the card names the model; default: the run's `hub_model_id`, else the folder.
        card_facts: what the card says of a model without results, under the keys of results.
        pooling: how sentence-transformers and embedding servers make one vector of a text, `mean` or `cls`, where the
            model has no task; see `write_pooling`.

    Returns:
        The folder.

    Raises:
        ValueError: `pooling` is neither.
        UserError: the disk is full or not writable.
    """
    record = results or card_facts or {}
    with _export(Path(output_dir), MADE_FROM_WEIGHTS) as stage:
        model.save_pretrained(stage)
        write_pooling(model, stage, tokenizer, pooling)
        save_tokenizer(tokenizer, stage)
        published = json.loads((stage / _CONFIG).read_text(encoding="utf-8"))
        facts = {"model_type": published["model_type"], **model_facts(model)}
        if labels := published.get("id2label"):
            facts["labels"] = [labels[index] for index in sorted(labels, key=int)]
        facts["longest_input"] = longest_input(tokenizer, model.config.max_position_embeddings)
        record = {**record, "model": {**facts, **record.get("model", {})}}
        _describe(stage, Path(output_dir), record, model_id, with_results=results is not None)
    return Path(output_dir)


def republish(source: Path, output_dir: str | Path, *, results: Mapping[str, Any], files: Sequence[Path] = ()) -> Path:
    """Publishes what another published folder holds with other results; see `export_checkpoint`.

    Predictions and an adapter of an earlier model are removed too: those of this one are among what is published.

    Args:
        source: a complete published folder; its card, results.json and status.json stay behind.
        output_dir: folder, made if need be.
        results: of the run, `model` included.
        files: files and folders to put next to it.

    Returns:
        The folder.
    """
    published = [path for path in source.iterdir() if path.is_file() and not path.name.startswith(".")]
    published += [path for path in (source / POOLING,) if path.is_dir()]
    with _export(Path(output_dir), (*MADE_FROM_WEIGHTS, *PREDICTIONS, ADAPTER)) as stage:
        for path in (*published, *files):
            shutil.copytree(path, stage / path.name) if path.is_dir() else shutil.copy2(path, stage / path.name)
        (stage / STATUS).unlink(missing_ok=True)
        _describe(stage, Path(output_dir), results, None, with_results=True)
    return Path(output_dir)


@contextmanager
def _export(folder: Path, stale: Sequence[str]) -> Iterator[Path]:
    """Yields a folder for the files of an export; then they move in, in the place of what the patterns `stale` find."""

    def make_room() -> None:
        assert any((stage / name).is_file() for name in _WEIGHTS_ENTRIES), "a model always saves its weights"
        for name in _WEIGHTS_ENTRIES:
            (folder / name).unlink(missing_ok=True)
        flush(folder)
        remove(folder, (_WEIGHTS, *stale))

    with atomic_files(folder, before_moving=make_room, last=_WEIGHTS_ENTRIES) as stage:
        yield stage


def _describe(
    stage: Path, folder: Path, results: Mapping[str, Any], model_id: str | None, *, with_results: bool
) -> None:
    """Adds the card and, where the run has results, results.json."""
    record = redacted(results)
    name = model_id or record.get("settings", {}).get("hub_model_id") or name_of_folder(folder)
    pictures = {path.name for place in (folder, stage) for path in place.glob("*.png")} if with_results else set()
    write_text(stage / CARD, make_card(record, name, pictures=pictures))
    if with_results:
        write_json(stage / RESULTS, record, ensure_ascii=False)


def model_facts(model: "PreTrainedModel") -> dict[str, Any]:
    """Returns a model's class, parameters and shape, for results.json and the card."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    shape = {name: getattr(model.config, name) for name in _SHAPE}
    return {"class": type(model).__name__, "parameters": parameters, **shape}


def remove(folder: Path, patterns: Sequence[str]) -> None:
    """Removes the files and folders in a folder whose names match one of the patterns."""
    for path in [path for pattern in patterns for path in folder.glob(pattern)]:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def write_pooling(
    model: "PreTrainedModel", folder: Path, tokenizer: "PreTrainedTokenizerBase", pooling: str = "mean"
) -> None:
    """Writes how one vector is made of a text, for the libraries and servers of sentence embeddings.

    These are `modules.json`, `1_Pooling/config.json` and `sentence_bert_config.json`, for a model without a task.
    Without them sentence-transformers takes the mean of the tokens, text-embeddings-inference and vLLM the first one,
    and the same folder gives two vectors. The names and fields are those of sentence-transformers since its first
    versions, which all of them read; its newest spelling, only its newest version does.

    Args:
        model: one of our models; nothing is written for those with a task.
        folder: where it was saved.
        tokenizer: its tokenizer, which says how many tokens are read at once.
        pooling: `mean` of the last hidden states of all tokens, special ones included, or `cls`, that of the first.

    Raises:
        ValueError: pooling is neither.
    """
    if pooling not in POOLINGS:
        raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, got {pooling!r}")
    if type(model).__name__ not in _HEADS:
        return
    modules = [
        {"idx": int(name), "name": name, "path": path, "type": f"sentence_transformers.models.{kind}"}
        for name, path, kind in _MODULES
    ]
    modes = {f"pooling_mode_{mode}": _MODES[pooling] == mode for mode in (*_MODES.values(), *_OTHER_MODES)}
    longest = longest_input(tokenizer, model.config.max_position_embeddings)
    (folder / POOLING).mkdir(exist_ok=True)
    for path, content in (
        (POOLING_MODULES, modules),
        (f"{POOLING}/config.json", {"word_embedding_dimension": model.config.hidden_size, **modes}),
        (POOLING_TEXT, {"max_seq_length": longest, "do_lower_case": False}),
    ):
        (folder / path).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
