"""Exports a model, its tokenizer, its results and its card as a published folder that anyone can load.

An interrupted export never leaves a folder that looks complete but is not. Order of events:

1. All files are written to a temporary folder inside the output folder.
2. The weights' entry file (`model.safetensors`, or the index of several shards) is removed from the output folder.
   Every loader looks for that file, so from now on the folder cannot be loaded. Removing config.json would not be
   enough: a loader of one class would continue with the defaults of that class.
3. Files that belong to the old weights are removed.
4. The new files are moved into place, the weights' entry file last.
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
from bert_repro.utils.redaction import redacted

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

POOLINGS = ("mean", "cls")

POOLING_FILES = (POOLING_MODULES, POOLING_TEXT, POOLING)
"""Files and folders that `write_pooling` writes."""

PREDICTIONS = ("predictions.*", "nbest_predictions.*", "null_odds.*")
"""File name patterns of a run's predictions."""

MADE_FROM_WEIGHTS = ("onnx", *POOLING_FILES)
"""Names of what is made from a folder's weights. It would be wrong beside other weights."""

# Models without a task, whose hidden states are used as embeddings. A classifier answers with labels. If its folder
# declared a pooling too, a server would have to choose between the two.
_EMBEDDING_MODELS = ("BertReproModel", "BertReproForPreTraining", "BertReproForMaskedLM")

# sentence-transformers has a flag in its pooling configuration for each of these modes.
_POOLING_MODES = {"cls": "cls_token", "mean": "mean_tokens"}
_UNUSED_POOLING_MODES = ("max_tokens", "mean_sqrt_len_tokens")  # text-embeddings-inference requires these keys.

_CONFIG = "config.json"
_WEIGHTS = "model*.safetensors*"
# The index exists if the weights are in several shards.
_WEIGHTS_ENTRIES = ("model.safetensors", "model.safetensors.index.json")
_SHAPE_SETTINGS = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
    "hidden_act",
)


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

    It loads in upstream transformers, with `trust_remote_code=True`, and with the classes of this package. The files of
    an earlier export are replaced, and its surplus weight shards and `MADE_FROM_WEIGHTS` are removed. Other files in
    `output_dir` are not touched.

        import bert_repro
        from transformers import AutoTokenizer

        model = bert_repro.BertReproForSequenceClassification.from_pretrained("runs/moods")
        bert_repro.export_checkpoint(model, AutoTokenizer.from_pretrained("runs/moods"), "runs/to-publish")

    Args:
        model: one of our models; its `save_pretrained` writes the published configuration and the model code.
        tokenizer: its tokenizer.
        output_dir: folder to write to; it is created if it does not exist.
        results: the run's results, ready for JSON; see `bert_repro.hub.card`. Without them the card says "not run" and
            no results.json is written.
        model_id: name of the model on the card; default: the run's `hub_model_id`, else the folder's name.
        card_facts: facts for the card of a model without results, under the same keys as in results.
        pooling: `mean` or `cls`: how sentence-transformers and embedding servers turn token states into one vector per
            text, for a model without a task; see `write_pooling`.

    Returns:
        The folder.

    Raises:
        ValueError: `pooling` is neither `mean` nor `cls`.
        UserError: the disk is full or not writable.
    """
    output_dir = Path(output_dir)
    record = dict(results or card_facts or {})
    with _export(output_dir, MADE_FROM_WEIGHTS) as stage:
        model.save_pretrained(stage)
        write_pooling(model, stage, tokenizer, pooling)
        save_tokenizer(tokenizer, stage)
        facts = _published_model_facts(model, tokenizer, stage)
        record["model"] = {**facts, **record.get("model", {})}
        _write_card_and_results(stage, output_dir, record, model_id, with_results=results is not None)
    return output_dir


def republish(source: Path, output_dir: str | Path, *, results: Mapping[str, Any], files: Sequence[Path] = ()) -> Path:
    """Copies a published folder's model to another published folder with other results; see `export_checkpoint`.

    Predictions and an adapter that an earlier model left in `output_dir` are removed. Those of this model are among
    the copied files.

    Args:
        source: a complete published folder; its card, results.json and status.json are not copied.
        output_dir: folder to write to; it is created if it does not exist.
        results: the results of the run, with `model`.
        files: more files and folders to copy.

    Returns:
        The folder.
    """
    output_dir = Path(output_dir)
    published = [path for path in source.iterdir() if path.is_file() and not path.name.startswith(".")]
    if (source / POOLING).is_dir():
        published.append(source / POOLING)

    with _export(output_dir, (*MADE_FROM_WEIGHTS, *PREDICTIONS, ADAPTER)) as stage:
        for path in (*published, *files):
            if path.is_dir():
                shutil.copytree(path, stage / path.name)
            else:
                shutil.copy2(path, stage / path.name)
        (stage / STATUS).unlink(missing_ok=True)
        _write_card_and_results(stage, output_dir, results, None, with_results=True)
    return output_dir


@contextmanager
def _export(folder: Path, stale: Sequence[str]) -> Iterator[Path]:
    """Yields a temporary folder for the files of an export and moves them into `folder` afterwards.

    Args:
        folder: the published folder.
        stale: patterns of the files to remove before the new ones are moved.
    """

    def remove_old_model() -> None:
        assert any((stage / name).is_file() for name in _WEIGHTS_ENTRIES), "a model always saves its weights"
        for name in _WEIGHTS_ENTRIES:
            (folder / name).unlink(missing_ok=True)
        # The removal must reach the disk before anything else changes, or a power failure could undo it.
        flush(folder)
        remove(folder, (_WEIGHTS, *stale))

    with atomic_files(folder, before_moving=remove_old_model, last=_WEIGHTS_ENTRIES) as stage:
        yield stage


def _published_model_facts(
    model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", stage: Path
) -> dict[str, Any]:
    """Returns `model_facts` with the published model type, the label names and the longest input in tokens."""
    published = json.loads((stage / _CONFIG).read_text(encoding="utf-8"))
    facts = {"model_type": published["model_type"], **model_facts(model)}
    labels = published.get("id2label")
    if labels:
        facts["labels"] = [labels[index] for index in sorted(labels, key=int)]
    facts["longest_input"] = longest_input(tokenizer, model.config.max_position_embeddings)
    return facts


def _write_card_and_results(
    stage: Path, folder: Path, results: Mapping[str, Any], model_id: str | None, *, with_results: bool
) -> None:
    """Writes the card and, if the run has results, results.json.

    Args:
        stage: the temporary folder to write to.
        folder: the published folder, whose pictures the card may show.
        results: facts for the card.
        model_id: the model's name on the card.
        with_results: whether `results` are those of a run.
    """
    record = redacted(results)
    name = model_id or record.get("settings", {}).get("hub_model_id") or name_of_folder(folder)
    pictures: set[str] = set()
    if with_results:
        for place in (folder, stage):
            pictures.update(path.name for path in place.glob("*.png"))
    write_text(stage / CARD, make_card(record, name, pictures=pictures))
    if with_results:
        write_json(stage / RESULTS, record, ensure_ascii=False)


def model_facts(model: "PreTrainedModel") -> dict[str, Any]:
    """Returns a model's class, number of parameters and shape, for results.json and the card."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    shape = {name: getattr(model.config, name) for name in _SHAPE_SETTINGS}
    return {"class": type(model).__name__, "parameters": parameters, **shape}


def remove(folder: Path, patterns: Sequence[str]) -> None:
    """Removes the files and folders in `folder` whose names match one of the patterns."""
    for pattern in patterns:
        for path in list(folder.glob(pattern)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def write_pooling(
    model: "PreTrainedModel", folder: Path, tokenizer: "PreTrainedTokenizerBase", pooling: str = "mean"
) -> None:
    """Writes how a text becomes one vector, for sentence-transformers and embedding servers.

    The files are `modules.json`, `1_Pooling/config.json` and `sentence_bert_config.json`. Without them
    sentence-transformers averages the tokens while text-embeddings-inference and vLLM use the first one, so the same
    folder gives different vectors. The keys are those of sentence-transformers' first versions, which every version
    and server reads. Only its newest version reads the newest keys.

    Args:
        model: one of our models; nothing is written for a model with a task.
        folder: the folder where it was saved.
        tokenizer: its tokenizer, which defines the longest input.
        pooling: `mean`, the mean of the last hidden states of all tokens including special ones, or `cls`, the last
            hidden state of the first token.

    Raises:
        ValueError: pooling is neither `mean` nor `cls`.
    """
    if pooling not in POOLINGS:
        raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, got {pooling!r}")
    if type(model).__name__ not in _EMBEDDING_MODELS:
        return

    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": POOLING, "type": "sentence_transformers.models.Pooling"},
    ]
    pooling_config: dict[str, int | bool] = {"word_embedding_dimension": model.config.hidden_size}
    for mode in (*_POOLING_MODES.values(), *_UNUSED_POOLING_MODES):
        pooling_config[f"pooling_mode_{mode}"] = mode == _POOLING_MODES[pooling]
    # The tokenizer lower-cases by itself if its vocabulary is uncased.
    text_config = {
        "max_seq_length": longest_input(tokenizer, model.config.max_position_embeddings),
        "do_lower_case": False,
    }

    (folder / POOLING).mkdir(exist_ok=True)
    _write_indented_json(folder / POOLING_MODULES, modules)
    _write_indented_json(folder / POOLING / "config.json", pooling_config)
    _write_indented_json(folder / POOLING_TEXT, text_config)


def _write_indented_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
