"""The metadata block of a model card: made from the results of a run, and checked without asking the Hub.

The check is stricter than the Hub, which shows nothing where it does not understand: it names unknown fields, pipeline
tags and widget examples that do not fit the model, ids that can only be folders of one machine, and scores that are not
numbers. Fields and values: huggingface.co/docs/hub/model-cards and /docs/hub/eval-results.
"""

import difflib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bert_repro.utils.readers import parse_yaml, shown

CODE_LICENSE = "apache-2.0"
THRESHOLD = "null_score_diff_threshold"


@dataclass(frozen=True)
class HubTask:
    """What a model class is to the Hub.

    Args:
        auto_class: the class of transformers that loads it.
        pipeline_tag: the Hub's name for its task; None: the Hub has none.
        our_pipeline: the pipeline for it that this package registers; see `bert_repro.inference.pipelines`.
    """

    auto_class: str
    pipeline_tag: str | None = None
    our_pipeline: str | None = None


_FILL_MASK = {"text": "Paris is the [MASK] of France."}
NEUTRAL_EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "ForPreTraining": _FILL_MASK,
    "ForMaskedLM": _FILL_MASK,
    "ForNextSentencePrediction": {"text": "She opened the window.", "text_pair": "Fresh air came in."},
    "ForSequenceClassification": {"text": "A film that never lets you go."},
    "ForTokenClassification": {"text": "Marie Curie worked in Paris."},
    "ForQuestionAnswering": {"text": "Where did Marie Curie work?", "context": "Marie Curie worked in Paris."},
    "ForMultipleChoice": {
        "prompt": "She opened the window",
        "choices": ["and fresh air came in.", "and swallowed the key."],
    },
}
"""Inputs that quote nobody, by the ending of the class name; for where the run's data has no example to show."""
HUB_TASKS: Mapping[str, HubTask] = {
    "ForPreTraining": HubTask("AutoModelForPreTraining", "fill-mask"),
    "ForMaskedLM": HubTask("AutoModelForMaskedLM", "fill-mask"),
    "ForCausalLM": HubTask("AutoModelForCausalLM", "text-generation"),
    "ForNextSentencePrediction": HubTask("AutoModelForNextSentencePrediction", our_pipeline="next-sentence-prediction"),
    "ForSequenceClassification": HubTask("AutoModelForSequenceClassification", "text-classification"),
    "ForTokenClassification": HubTask("AutoModelForTokenClassification", "token-classification"),
    "ForQuestionAnswering": HubTask(
        "AutoModelForQuestionAnswering", "question-answering", our_pipeline="extractive-question-answering"
    ),
    "ForMultipleChoice": HubTask("AutoModelForMultipleChoice", "multiple-choice"),
    "Model": HubTask("AutoModel", "feature-extraction"),
}
"""By the ending of the class name, ours and transformers' alike."""


@dataclass(frozen=True)
class Score:
    """One row of the result table."""

    split: str
    metric: str
    value: float | None
    rows: int | None


def hub_task_of(class_name: str) -> HubTask:
    """Returns the entry of `HUB_TASKS` for a model class.

    Raises:
        ValueError: the class is none of the BERT family.
    """
    for ending, task in HUB_TASKS.items():
        if class_name.endswith(ending) and class_name.isidentifier():
            return task
    raise ValueError(f"{class_name} is no BERT model; its name must end in one of: {', '.join(HUB_TASKS)}")


def example_of(results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the input of a card's snippets: an example of the run's own data, or a neutral one for the task.

    Args:
        results: see `bert_repro.hub.card`; `data.example` is what the run offers.
    """
    class_name, data = results.get("model", {}).get("class", ""), results.get("data", {})
    neutral = dict(next((text for ending, text in NEUTRAL_EXAMPLES.items() if class_name.endswith(ending)), {}))
    if class_name.endswith("ForSequenceClassification") and len(data.get("text_columns", ())) == 2:
        neutral |= {"text": "A man is playing a guitar.", "text_pair": "Someone makes music."}
    own = data.get("example")
    return dict(own) if isinstance(own, Mapping) and own.keys() == neutral.keys() else neutral


def scores(results: Mapping[str, Any]) -> Iterator[Score]:
    """Yields the scores of a run, one per split and metric; a split that was not scored has the value None."""
    splits = results.get("splits") or {results.get("split", "validation"): results}
    for name, split in splits.items():
        if split.get("missing"):
            yield Score(name, "any", None, None)
        for metric, value in split.get("metrics", {}).items():
            yield Score(name, metric, float(value), split.get("rows_scored"))


# --- Made -----------------------------------------------------------------------------------------------------------


def card_metadata(results: Mapping[str, Any], model_id: str) -> str:
    """Returns the metadata of a card as YAML, without the lines of dashes around it.

    Args:
        results: what is known of the run; see `bert_repro.hub.card`.
        model_id: how the card names the model.
    """
    from huggingface_hub import ModelCardData

    data, class_name = results.get("data", {}), results.get("model", {}).get("class")
    task = hub_task_of(class_name) if class_name else None
    shown = example_of(results)
    # The Hub's classification widget has one field of text, and a text generator needs no example.
    inputs = WIDGET_INPUTS.get(task.pipeline_tag or "", ()) if task and "text_pair" not in shown else ()
    widget = {name: shown[name] for name in inputs if name in shown}
    fields: dict[str, Any] = {
        "library_name": "transformers",
        "license": results.get("license", CODE_LICENSE),
        "language": data.get("language"),
        "datasets": [data["dataset"]] if data.get("dataset") else None,
        "base_model": results.get("base_model"),
        "pipeline_tag": task.pipeline_tag if task else None,
        "tags": ["bert", "bert-repro", *([results["task"]] if results.get("task") and not data.get("files") else [])],
        "widget": [widget] if widget else None,
    }
    index = _model_index(results, fields["pipeline_tag"] or "other")
    if index:
        fields |= {"model_name": model_id.rsplit("/", 1)[-1], "eval_results": index}
    return str(ModelCardData(**fields).to_yaml())


def eval_result_entries(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the content of a `.eval_results/*.yaml`: the task's own metric on the first scored split.

    A benchmark of the Hub takes one number a task. Nothing is claimed for data that is not on the Hub, for a split that
    was scored in part, for a degenerate run, or beside a metric that is not a finite number.

    Args:
        results: see `bert_repro.hub.card`.

    Returns:
        Entries, ready for YAML; empty where there is nothing to claim.
    """
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    data, metric = results.get("data", {}), results.get("primary_metric")
    value = results.get("metrics", {}).get(metric)
    if not data.get("dataset") or _scored_in_part(results) or results.get("degenerate"):
        return []
    if value is None or not math.isfinite(value):
        return []
    notes = f"{metric} on {results['split']}, {results['rows_scored']} rows, seed {results.get('seed')}"
    notes += "; a fraction of 1" + "; the threshold was chosen on this split" * threshold_was_tuned(results)
    task = data.get("config") or results["task"]
    return list(eval_result_entries_to_yaml([EvalResultEntry(data["dataset"], task, float(value), notes=notes)]))


def threshold_was_tuned(results: Mapping[str, Any]) -> bool:
    """Returns whether the threshold for no answer was chosen on the split whose score comes first."""
    given = results.get("settings", {}).get("null_score_diff_threshold") is not None
    return not given and "train" in results and THRESHOLD in results.get("metrics", {})


def _model_index(results: Mapping[str, Any], task_type: str) -> list[Any]:
    from huggingface_hub import EvalResult

    data, task = results.get("data", {}), results.get("task", "unnamed")
    other_data = "dataset" in data and data["dataset"] is None
    if other_data or _scored_in_part(results):  # a score of the card's table, but none on the split it would name
        return []
    return [
        EvalResult(
            task_type=task_type,
            dataset_type=data.get("dataset") or task,
            dataset_name=task,
            dataset_config=data.get("config"),
            dataset_split=score.split,
            metric_type=score.metric,
            metric_value=score.value,
        )
        for score in scores(results)
        if score.value is not None and math.isfinite(score.value) and not score.metric.endswith("threshold")
    ]


def _scored_in_part(results: Mapping[str, Any]) -> bool:
    return results.get("settings", {}).get("max_eval_samples") is not None


# --- Checked --------------------------------------------------------------------------------------------------------

_HUB_ID = re.compile(r"(?:[\w-][\w.-]*/)?[\w-][\w.-]*")
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[A-Za-z0-9]{2,8})*|multilingual|code")
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]*")
_METADATA_BLOCK = re.compile(r"\A---\r?\n(.*?)\r?\n---\r?\n", re.DOTALL)
_BASE_RELATIONS = {"finetune", "adapter", "merge", "quantized"}
WIDGET_INPUTS: Mapping[str, tuple[str, ...]] = {
    "fill-mask": ("text",),
    "text-classification": ("text",),
    "token-classification": ("text",),
    "feature-extraction": ("text",),
    "text-generation": ("text",),
    "question-answering": ("text", "context"),
    "zero-shot-classification": ("text", "candidate_labels"),
    "sentence-similarity": ("source_sentence", "sentences"),
    "multiple-choice": (),
    "text-ranking": (),
}
"""The pipeline tags of BERT models, with what an example for the Hub's widget holds; (): it has no widget."""
_WIDGET_OPTIONS = {"example_title", "group", "output"}


def find_card_errors(card: str) -> list[str]:
    """Returns what is wrong with the metadata block of a card.

    Args:
        card: text of a README.md.

    Returns:
        One line for each error, `field: what and how to fix it`; empty when there is none.
    """
    block = _METADATA_BLOCK.match(card)
    if block is None:
        return ["metadata: the card must begin with a block between lines of three dashes"]
    try:
        fields = parse_yaml(block[1])
    except ValueError as error:
        return [f"metadata: is not YAML ({' '.join(str(error).split())})"]
    if not isinstance(fields, dict):
        return ["metadata: must be a mapping of fields"]
    return list(_field_errors(fields))


def license_error(license_id: str) -> str | None:
    """Returns what is wrong with a license's name as a card's metadata has it, or None."""
    return _CHECKS["license"](license_id)


def _field_errors(fields: Mapping[str, Any]) -> Iterator[str]:
    for name in ("library_name", "license", "tags"):
        if not fields.get(name):
            yield f"{name}: is missing"
    for name, value in fields.items():
        if name in _CHECKS:
            if error := _CHECKS[name](value):
                yield f"{name}: {error}"
        elif close := difflib.get_close_matches(str(name), list(_CHECKS), n=1, cutoff=0.85):
            yield f"{name}: is unknown to the Hub; did you mean {close[0]}?"
    if "widget" in fields:
        yield from _widget_errors(fields["widget"], fields.get("pipeline_tag"))
    yield from _index_errors(fields.get("model-index", []))
    if "base_model_relation" in fields and "base_model" not in fields:
        yield "base_model_relation: says nothing without base_model"


def _widget_errors(examples: Any, tag: str | None) -> Iterator[str]:
    inputs = WIDGET_INPUTS.get(tag or "", ())
    if not inputs:
        yield f"widget: the pipeline tag {tag} has no widget; leave it out"
    if not isinstance(examples, list) or not examples:
        yield "widget: must be a list with at least one example"
        return
    for number, example in enumerate(examples):
        if not isinstance(example, dict):
            yield f"widget[{number}]: {shown(example)} must be a mapping such as 'text: ...'"
            continue
        if missing := [name for name in inputs if not example.get(name)]:
            yield f"widget[{number}]: {tag} needs the text of {' and '.join(missing)}"
        if unknown := set(example) - set(inputs) - _WIDGET_OPTIONS:
            yield f"widget[{number}]: {min(unknown)} is no input of {tag}"
        if tag == "fill-mask" and str(example.get("text")).count("[MASK]") != 1:
            yield f"widget[{number}]: the text must hold [MASK] once"


def _index_errors(index: Any) -> Iterator[str]:
    if not isinstance(index, list):
        yield "model-index: must be a list"
        return
    for model in index:
        if not isinstance(model, dict) or not _is_text(model.get("name")) or not model.get("results"):
            yield "model-index: every entry needs a name and results"
            continue
        for number, result in enumerate(model["results"]):
            yield from _result_errors(f"model-index: result {number}", result)


def _result_errors(where: str, result: Any) -> Iterator[str]:
    for part, needed in (("task", ("type",)), ("dataset", ("type", "name"))):
        content = result.get(part) if isinstance(result, dict) else None
        if not isinstance(content, dict) or not all(_is_text(content.get(name)) for name in needed):
            yield f"{where}: {part} needs {' and '.join(needed)}"
            return
    metrics = result.get("metrics")
    if not isinstance(metrics, list) or not metrics:
        yield f"{where}: metrics must be a list with at least one entry"
        return
    for metric in metrics:
        if not isinstance(metric, dict) or not _is_text(metric.get("type")) or not _is_number(metric.get("value")):
            yield f"{where}: {shown(metric)} needs a type and a finite number as value"


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_hub_id(value: Any) -> bool:
    return isinstance(value, str) and _HUB_ID.fullmatch(value) is not None and ".." not in value


def _matches(pattern: re.Pattern[str]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


def _every(is_right: Callable[[Any], bool], what: str) -> Callable[[Any], str | None]:
    """Returns a check of a value or a list of values."""

    def check(value: Any) -> str | None:
        values = value if isinstance(value, list) else [value]
        if not values:
            return "is an empty list; leave it out"
        wrong = [element for element in values if not is_right(element)]
        return f"{shown(wrong[0])} is not {what}" if wrong else None

    return check


def _one_of(known: set[str], what: str) -> Callable[[Any], str | None]:
    return lambda value: None if value in known else f"{shown(value)} is not {what}: {', '.join(sorted(known))}"


_CHECKS: Mapping[str, Callable[[Any], str | None]] = {
    "library_name": _every(_is_text, "the name of a library"),
    "license": _every(_matches(_LICENSE), "a license as the Hub spells it, for example apache-2.0 or cc-by-sa-4.0"),
    "license_name": _every(_is_text, "text"),
    "license_link": _every(_is_text, "text"),
    "language": _every(_matches(_LANGUAGE), "an ISO 639 code"),
    "tags": _every(_is_text, "text"),
    "datasets": _every(_is_hub_id, "the id of a dataset of the Hub"),
    "metrics": _every(_is_text, "the name of a metric"),
    "base_model": _every(_is_hub_id, "the id of a model of the Hub"),
    "base_model_relation": _one_of(_BASE_RELATIONS, "a relation"),
    "new_version": _every(_is_hub_id, "the id of a model of the Hub"),
    "pipeline_tag": _one_of(set(WIDGET_INPUTS), "a task of BERT models"),
    "inference": lambda value: None if isinstance(value, bool) else "must be true or false",
    "thumbnail": _every(_is_text, "text"),
    "co2_eq_emissions": lambda value: None if isinstance(value, dict) or _is_number(value) else "must be a number",
    "widget": lambda value: None,
    "model-index": lambda value: None,
}
