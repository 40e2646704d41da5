"""What the metadata of a model card must look like: a schema of our own, so that it is checked without the Hub.

It is stricter than the Hub, which shows nothing where it does not understand: it refuses unknown fields and pipeline
tags, widget entries that do not fit the task, ids that can only be folders of one machine, and scores that are not
numbers. Fields and values: huggingface.co/docs/hub/model-cards and /docs/hub/eval-results.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_HUB_ID = re.compile(r"(?:[\w-][\w.-]*/)?[\w-][\w.-]*")
_LANGUAGE = re.compile(r"[a-z]{2,3}|multilingual|code")
_METADATA_BLOCK = re.compile(r"\A---\r?\n(.*?)\r?\n---\r?\n", re.DOTALL)
_LICENSES = {
    "apache-2.0", "mit", "bsd-3-clause", "cc0-1.0", "cc-by-3.0", "cc-by-4.0", "cc-by-sa-3.0", "cc-by-sa-4.0",
    "cc-by-nc-4.0", "cc-by-nc-sa-4.0", "gpl-3.0", "odc-by", "openrail", "other", "unknown",
}  # fmt: skip
_BASE_RELATIONS = {"finetune", "adapter", "merge", "quantized"}
WIDGET_INPUTS: Mapping[str, tuple[str, ...]] = {
    "fill-mask": ("text",),
    "text-classification": ("text",),
    "token-classification": ("text",),
    "feature-extraction": ("text",),
    "text-generation": ("text",),
    "question-answering": ("text", "context"),
    "zero-shot-classification": ("text", "candidate_labels"),
    "multiple-choice": (),
}
"""The pipeline tags of this model family, with what an example for the Hub's widget holds; (): it has no widget."""
_WIDGET_OPTIONS = {"example_title", "group", "output"}


def find_card_errors(card: str) -> list[str]:
    """What is wrong with the metadata block of a card.

    Args:
        card: text of a README.md.

    Returns:
        One line for each fault, `field: what and how to mend it`; empty when all is well.
    """
    import yaml

    block = _METADATA_BLOCK.match(card)
    if block is None:
        return ["metadata: the card must begin with a block between lines of three dashes"]
    try:
        fields = yaml.safe_load(block[1])
    except yaml.YAMLError as error:
        return [f"metadata: is not YAML ({' '.join(str(error).split())})"]
    if not isinstance(fields, dict):
        return ["metadata: must be a mapping of fields"]
    return list(_field_errors(fields))


def find_eval_result_errors(entries: Any) -> list[str]:
    """What is wrong with the content of a `.eval_results/*.yaml` file, parsed; see `find_card_errors`."""
    if not isinstance(entries, list) or not entries:
        return ["eval results: must be a list with at least one entry"]
    return [fault for number, entry in enumerate(entries) for fault in _eval_entry_errors(f"[{number}]", entry)]


def _field_errors(fields: Mapping[str, Any]) -> Iterator[str]:
    for name in ("library_name", "license", "tags"):
        if not fields.get(name):
            yield f"{name}: is missing"
    for name, value in fields.items():
        check = _CHECKS.get(name)
        if check is None:
            yield f"{name}: is no field that a card of this family has"
        elif fault := check(value):
            yield f"{name}: {fault}"
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
            yield f"widget[{number}]: {example!r} must be a mapping such as 'text: ...'"
            continue
        if missing := [name for name in inputs if not _is_text(example.get(name))]:
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
            yield f"{where}: {metric!r} needs a type and a finite number as value"


def _eval_entry_errors(where: str, entry: Any) -> Iterator[str]:
    if not isinstance(entry, dict) or not isinstance(entry.get("dataset"), dict):
        yield f"{where}: needs a dataset with id and task_id"
        return
    dataset = entry["dataset"]
    if not _is_hub_id(dataset.get("id")) or not _is_text(dataset.get("task_id")):
        yield f"{where}: dataset needs the id of a dataset of the Hub and a task_id"
    if not _is_number(entry.get("value")):
        yield f"{where}: value must be a finite number"
    if unknown := set(entry) - {"dataset", "value", "date", "source", "notes", "verifyToken"}:
        yield f"{where}: {min(unknown)} is no field of an entry"


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_hub_id(value: Any) -> bool:
    return isinstance(value, str) and _HUB_ID.fullmatch(value) is not None and ".." not in value


def _every(is_right: Callable[[Any], bool], what: str) -> Callable[[Any], str | None]:
    """A check of a value or a list of values."""

    def check(value: Any) -> str | None:
        values = value if isinstance(value, list) else [value]
        if not values:
            return "is an empty list; leave it out"
        wrong = [element for element in values if not is_right(element)]
        return f"{wrong[0]!r} is not {what}" if wrong else None

    return check


def _one_of(known: set[str], what: str) -> Callable[[Any], str | None]:
    return lambda value: None if value in known else f"{value!r} is not {what}: {', '.join(sorted(known))}"


_CHECKS: Mapping[str, Callable[[Any], str | None]] = {
    "library_name": _one_of({"transformers", "peft"}, "a library that loads these models"),
    "license": _one_of(_LICENSES, "one of the licences known here"),
    "license_name": _every(_is_text, "text"),
    "license_link": _every(_is_text, "text"),
    "language": _every(lambda value: isinstance(value, str) and bool(_LANGUAGE.fullmatch(value)), "an ISO 639 code"),
    "tags": _every(_is_text, "text"),
    "datasets": _every(_is_hub_id, "the id of a dataset of the Hub"),
    "metrics": _every(_is_text, "the name of a metric"),
    "base_model": _every(_is_hub_id, "the id of a model of the Hub"),
    "base_model_relation": _one_of(_BASE_RELATIONS, "a relation"),
    "pipeline_tag": _one_of(set(WIDGET_INPUTS), "a task of this family"),
    "inference": lambda value: None if isinstance(value, bool) else "must be true or false",
    "widget": lambda value: None,
    "model-index": lambda value: None,
}
