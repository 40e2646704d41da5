"""Model cards: README.md of a published folder, made from the results of its run. A card claims only what they say.

The results are the content of results.json (`bert_repro.results.RunResults`; every key may be missing), with the facts
that `recipes/make_card.py` adds:

    data             {dataset, config, license, language, note ...}   `dataset`: id on the Hub; None: it has none
    license          of the weights
    converted_from   the checkpoint of a conversion

The text comes from card_template.md.jinja; this module gives the template its values.
"""

import dataclasses
import logging
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from bert_repro import configs
from bert_repro.errors import UserError, flag
from bert_repro.hub.hub_tasks import HubTask, example_of, hub_task_of
from bert_repro.hub.markdown import cell, code, fenced, line, literal, score
from bert_repro.results import read_results
from bert_repro.utils.files import CARD, write_text
from bert_repro.utils.redaction import redacted, without_machine_paths

logger = logging.getLogger("bert_repro")

TEMPLATE = "card_template.md.jinja"
THRESHOLD = "null_score_diff_threshold"

# Ending of the class name -> the rest of the sentence "A BERT that ...". `number` stands for regression.
_PURPOSES = {
    "ForPreTraining": "was pre-trained with masked language modeling and next sentence prediction",
    "ForMaskedLM": "was pre-trained with masked language modeling",
    "ForCausalLM": "was pre-trained with left-to-right language modeling",
    "ForSequenceClassification": "classifies {texts}, fine-tuned on {data}",
    "number": "gives {texts} a number, fine-tuned on {data}",
    "ForTokenClassification": "tags the words of a text, fine-tuned on {data}",
    "ForQuestionAnswering": "answers a question by a span of a passage, fine-tuned on {data}",
    "ForMultipleChoice": "chooses the continuation of a text, fine-tuned on {data}",
}

# Settings that a card mentions elsewhere, or that mean nothing to its reader.
_SHOWN_ELSEWHERE = frozenset({
    "model_name_or_path", "hub_model_id", "output_dir", "resume_from_checkpoint", "seed", "data_dir", "corpus",
    "phases", "logging_steps", "eval_steps", "save_steps", "save_total_limit", "allow_changed_settings",
    "overwrite_output_dir", "do_train", "do_eval", "do_predict", "task_name",
})  # fmt: skip

# Settings that everybody asks for, so a card shows them even at their default.
_ALWAYS_SHOWN = ("learning_rate", "num_train_epochs")

# Field of the results -> its name on the card, unless that is the field with spaces.
_NAMES = {
    "examples": "training rows", "rows": "training inputs", "steps": "optimizer steps", "batch": "examples per step",
    "tokens": "tokens read", "best_step": "step of the published weights", "seconds": "seconds of training",
    "mfu": "MFU (share of the peak FLOPs)",
    "f1": "F1", "macro_f1": "macro F1", "micro_f1": "micro F1", "weighted_f1": "weighted F1", "entity_f1": "entity F1",
    "matthews_correlation": "Matthews correlation", "pearson": "Pearson correlation",
    "spearmanr": "Spearman correlation", "has_answer_f1": "F1 where there is an answer",
    "has_answer_exact_match": "exact match where there is an answer",
    "no_answer_accuracy": "accuracy where there is none",
    "mlm_loss": "MLM loss (nats)", "nsp_loss": "NSP loss (nats)", "mlm_accuracy": "MLM accuracy",
    "mlm_perplexity": "MLM perplexity", "nsp_accuracy": "NSP accuracy",
}  # fmt: skip


@dataclass(frozen=True)
class Score:
    """One row of the table of scores.

    Args:
        split: name of the split.
        metric: name of the metric.
        value: the score; None: the split was not scored.
        rows: how many rows were scored.
        whole: whether all rows of the published split, or of the user's own file, were scored.
    """

    split: str
    metric: str
    value: float | None
    rows: int | None
    whole: bool = False


# --- The card ---------------------------------------------------------------------------------------------------------


def make_card(results: Mapping[str, Any], model_id: str, *, pictures: Collection[str] = ()) -> str:
    """Returns the text of README.md for a published folder, metadata block included.

    Args:
        results: the results of the run; see the module's docstring.
        model_id: the model's name in the snippets: its id on the Hub, or the folder.
        pictures: names of the plots in the same folder, which the card then shows.

    Returns:
        Markdown. No text of the results (names of labels, models, files) can change the structure of the card or of its
        snippets.
    """
    import jinja2

    public: Mapping[str, Any] = without_machine_paths(redacted(results))
    class_name = public.get("model", {}).get("class")
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.ChainableUndefined
    )
    environment.filters |= {
        "cell": cell,
        "line": line,
        "code": code,
        "fenced": fenced,
        "score": score,
        "literal": literal,
        "called": _shown_name,
    }
    template = environment.from_string(resources.files("bert_repro.hub").joinpath(TEMPLATE).read_text("utf-8"))
    text = template.render(
        metadata=card_metadata(public, model_id),
        title=line(model_id),
        where=literal(model_id),
        class_name=class_name,
        task=hub_task_of(class_name) if class_name else None,
        loads_upstream=public.get("model", {}).get("model_type", "bert") == "bert",
        purpose=_purpose(public),
        example=example_of(public),
        results=public,
        scores=list(scores(public)),
        notes=list(_notes(public)),
        facts=_facts(public),
        settings=_changed_settings(public),
        pictures=pictures,
    )
    # Parts that are left out leave blank lines behind.
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def write_card(config: configs.CardConfig) -> Path:
    """Writes the card of a finished run again, from its results.json and the facts given (recipes/make_card.py).

    Returns:
        The file.

    Raises:
        UserError: the folder has no results of a training run.
    """
    folder = Path(config.folder)
    results: dict[str, Any] = dict(read_results(folder))
    if "train" not in results:
        raise UserError(
            f"{flag('folder', folder)}: this run scored a model and made none. Pass the folder of a training run.",
            setting="folder",
        )
    data = dict(results.get("data", {}))
    if config.language:
        data["language"] = list(config.language)
    if config.note:
        data["note"] = config.note
    results["data"] = data
    if config.base_model:
        results["base_model"] = config.base_model
    if config.license:
        results["license"] = config.license

    name = config.hub_model_id or results.get("settings", {}).get("hub_model_id") or name_of_folder(folder)
    path = folder / CARD
    write_text(path, make_card(results, name, pictures={picture.name for picture in folder.glob("*.png")}))
    logger.info("wrote %s", path)
    return path


def name_of_folder(folder: Path) -> str:
    """Returns the name of a folder on a card: its relative path, which loads as typed, otherwise its last part."""
    if folder.is_absolute() or ".." in folder.parts:
        return folder.resolve().name
    return folder.as_posix()


def renamed(card: str, model_id: str) -> str:
    """Returns a card of `make_card` with another name of the model in its title, metadata and snippets."""
    title = re.search(r"^# (.+)$", card, re.MULTILINE)
    if title is None:
        return card
    # The title is escaped; the snippets have the plain name.
    old = re.sub(r"\\(.)", r"\1", title[1])
    card = card.replace(title[0], f"# {line(model_id)}", 1)
    card = card.replace(literal(old), literal(model_id))
    return card.replace(f"\n- name: {old.rsplit('/', 1)[-1]}\n", f"\n- name: {model_id.rsplit('/', 1)[-1]}\n")


# --- Its contents -----------------------------------------------------------------------------------------------------


def scores(results: Mapping[str, Any]) -> Iterator[Score]:
    """Yields the scores of a run, one per split and metric; a split that was not scored has the value None."""
    splits = results.get("splits") or {results.get("split", "validation"): results}
    own_files = results.get("data", {}).get("files")
    limit = results.get("settings", {}).get("max_eval_samples")
    for name, split in splits.items():
        if split.get("missing"):
            yield Score(name, "any", None, None)
        rows = split.get("rows_scored")
        if rows is None:
            whole = False
        elif own_files:
            whole = rows != limit
        else:
            whole = rows == split.get("published_rows")
        for metric, value in split.get("metrics", {}).items():
            yield Score(name, metric, float(value), rows, whole=whole)


def card_metadata(results: Mapping[str, Any], model_id: str) -> str:
    """Returns the metadata of a card as YAML, without the lines of dashes around it.

    Scores are tagged as in huggingface.co/docs/hub/model-cards, and only if all rows of the split were scored. Scores
    on the user's own files are tagged as `custom` data, with the file's name and rows.

    Args:
        results: the results of the run; see the module's docstring.
        model_id: the model's name on the card.
    """
    from huggingface_hub import ModelCardData

    data = results.get("data", {})
    class_name = results.get("model", {}).get("class")
    task = hub_task_of(class_name) if class_name else HubTask("AutoModel")
    task_name = results.get("task")
    tags = ["bert", "bert-repro"]
    if task_name and task_name != "custom" and not data.get("files"):
        tags.append(task_name)

    # The Hub's classification widget has a single field of text, so a pair has none.
    example = example_of(results)
    widget = {} if "text_pair" in example else {name: example[name] for name in task.widget}
    fields: dict[str, Any] = {
        "library_name": "transformers",
        "license": results.get("license"),
        "language": data.get("language"),
        "datasets": [data["dataset"]] if data.get("dataset") else None,
        "base_model": results.get("base_model"),
        "pipeline_tag": task.pipeline_tag,
        "tags": tags,
        "widget": [widget] if widget else None,
    }
    tagged = _tagged_scores(results, task)
    if tagged:
        fields |= {"model_name": model_id.rsplit("/", 1)[-1], "eval_results": tagged}
    return str(ModelCardData(**fields).to_yaml())


def _tagged_scores(results: Mapping[str, Any], task: HubTask) -> list[Any]:
    """Returns huggingface_hub's `EvalResult` for each score that may be tagged as that of its split."""
    from huggingface_hub import EvalResult

    data = results.get("data", {})
    files = data.get("files")
    if not (files or data.get("dataset")):
        return []
    tagged = []
    for item in scores(results):
        if not item.whole or item.metric == THRESHOLD or not math.isfinite(item.value or 0):
            continue
        if files:
            origin = {
                "dataset_type": "custom",
                "dataset_name": files.get(item.split, f"held out of {files.get('train')}"),
                "dataset_args": {"rows": item.rows},
            }
        else:
            name = data.get("title") if results.get("task") == "custom" else results.get("task")
            origin = {"dataset_type": data["dataset"], "dataset_name": name}
        tagged.append(
            EvalResult(
                task_type=task.pipeline_tag or "other",
                dataset_config=data.get("config"),
                dataset_split=data.get("split_names", {}).get(item.split, item.split),
                metric_type=item.metric,
                metric_value=item.value,
                **origin,
            )
        )
    return tagged


def _shown_name(field: str) -> str:
    return line(_NAMES.get(field, field.replace("_", " ")))


def _purpose(results: Mapping[str, Any]) -> str:
    """Returns the purpose of the model as the rest of the sentence "A BERT that ..."; empty if it is not known."""
    data = results.get("data", {})
    if not results.get("task"):
        return ""
    name = results.get("model", {}).get("class", "")
    if len(results.get("model", {}).get("labels", ())) == 1:
        name = "number"
    # The class does not say whether next sentence prediction was an objective, so the run does.
    if "objective" in results:
        return f"was pre-trained with {line(str(results['objective']))}"
    purpose = next((words for ending, words in _PURPOSES.items() if name.endswith(ending)), "was made for {data}")
    title = line(data.get("title") or results["task"])
    if data.get("dataset") and results["task"] == "custom":
        title = line(data["dataset"])
    elif results["task"] == "custom" or data.get("files"):
        title = f"custom data ({title})"
    texts = "pairs of texts" if len(data.get("text_columns", ())) == 2 else "texts"
    return purpose.format(texts=texts, data=title)


def _notes(results: Mapping[str, Any]) -> Iterator[str]:
    """Yields what a reader of the scores must know."""
    train = results.get("train", {})
    metrics = results.get("metrics", {})
    if train.get("examples", 0) < (train.get("published_rows") or 0):
        yield f"Trained on {train['examples']:,} of the {train['published_rows']:,} published rows."
    was_chosen_here = results.get("settings", {}).get(THRESHOLD) is None and "train" in results
    if was_chosen_here and THRESHOLD in metrics:
        yield "The threshold for no answer was chosen on the split that is scored here, which flatters it a little."

    # Tags are scored word by word, and the words of a text are not independent.
    is_tagger = str(results.get("model", {}).get("class")).endswith("ForTokenClassification")
    rows = results.get("rows_scored")
    accuracy = metrics.get("accuracy")
    if rows and accuracy is not None and not is_tagger:
        half = 1.96 * math.sqrt(accuracy * (1 - accuracy) / rows)
        yield f"The 95% interval of an accuracy over {rows:,} rows is ± {half:.3f} (binomial); other seeds add to it."

    metric = results.get("primary_metric")
    baselines = results.get("baselines", {})
    not_beaten = [name for name in baselines if baselines[name][metric] >= metrics[metric]]
    if not_beaten:
        yield f"The model is not ahead of {' and '.join(map(line, not_beaten))}."
    if results.get("degenerate"):
        yield "**This run is degenerate**: the model gives the same answer for every row, or none that is right."


def _facts(results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the rows of the table about training: name -> value."""
    train = results.get("train", {})
    facts = {name: train[name] for name in _NAMES if name in train}
    counts = results.get("data", {}).get("counts")
    if counts:
        facts["corpus"] = f"{counts.get('documents', 0):,} documents, {counts.get('words', 0):,} words"
    if train.get("phases"):
        facts["phases"] = [
            f"{phase.get('steps', 0):,} steps of {phase.get('batch')} sequences of {phase.get('max_seq_length')} tokens"
            for phase in train["phases"]
        ]
    hardware = results.get("hardware", {})
    if hardware:
        device = hardware.get("processor") or hardware.get("device") or "not recorded"
        facts["hardware"] = f"{hardware.get('processes', 1)} x {device}"
    if results.get("versions"):
        facts["versions"] = ", ".join(f"{name} {version}" for name, version in results["versions"].items() if version)
    if results.get("git_commit"):
        facts["commit"] = results["git_commit"]
    return facts


def default_settings(results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of runs that make such a model, with their defaults."""
    name = results.get("model", {}).get("class", "")
    config_class: type[configs.Config] = configs.PretrainingConfig
    for ending, family in configs.FAMILIES.items():
        if name.endswith(ending):
            config_class = family
            break
    return {field.name: field.default for field in dataclasses.fields(config_class)}


def _changed_settings(results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of the run that differ from their defaults, and those that everybody asks for."""
    defaults = default_settings(results)
    settings = results.get("settings", {})
    hidden = set(_SHOWN_ELSEWHERE)
    if settings.get("max_steps"):
        # The number of epochs had no effect.
        hidden.add("num_train_epochs")
    changed = {}
    for name, value in settings.items():
        if name not in defaults or name in hidden:
            continue
        comparable = tuple(value) if isinstance(value, list) else value
        if name in _ALWAYS_SHOWN or comparable != defaults[name]:
            changed[name] = value
    return changed
