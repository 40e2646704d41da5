"""Makes a model card from the record of a run. What the record does not say, the card does not say either.

The record is what results.json holds; every key may be missing:

    task, split, metrics {name: number}, rows_scored       the score
    splits {split: {metrics, rows_scored} or {missing}}    the scores of a task with several splits
    primary_metric                                         the one of `metrics` that sums the task up
    deviations {name: sentence}                            departures from the paper
    runs [{seed, splits}]                                  the same run with other seeds
    train {steps, rows, batch, tokens, flops ...}          what training went through
    data {dataset, config, license, language, text_columns ...}
                                                           `dataset`: id on the Hub; two `text_columns` are a pair
    model {class, model_type, parameters, labels ...}      filled in by `export_checkpoint`
    base_model, license                                    id on the Hub of the weights it starts from; of the weights
    revision                                               a checkpoint's, on the Hub
    settings, seed, versions, git_commit, hardware, wall_time_seconds, command
"""

import math
import re
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from bert_repro.hub.redaction import redacted, without_machine_paths

TEMPLATE = "card_template.md.jinja"
CODE_LICENSE = "apache-2.0"
THRESHOLD = "null_score_diff_threshold"
_LONGEST_LIST = 8  # A longer list of a record (shards, files) is given by its size.


@dataclass(frozen=True)
class Head:
    """What a kind of model is to the Hub.

    Args:
        auto_class: the class of transformers that loads it.
        pipeline_tag: the Hub's name for what it does; None: the Hub has none.
        widget: example inputs, in the Hub's form.
        our_pipeline: the pipeline for it that this package registers; see `bert_repro.inference.pipelines`.
    """

    auto_class: str
    pipeline_tag: str | None = None
    widget: tuple[Mapping[str, str], ...] = ()
    our_pipeline: str | None = None


_FILL_MASK = ({"text": "Paris is the [MASK] of France."},)
HEADS: Mapping[str, Head] = {
    "ForPreTraining": Head("AutoModelForPreTraining", "fill-mask", _FILL_MASK),
    "ForMaskedLM": Head("AutoModelForMaskedLM", "fill-mask", _FILL_MASK),
    "ForCausalLM": Head("AutoModelForCausalLM", "text-generation"),
    "ForNextSentencePrediction": Head("AutoModelForNextSentencePrediction", our_pipeline="next-sentence-prediction"),
    "ForSequenceClassification": Head(
        "AutoModelForSequenceClassification", "text-classification", ({"text": "A film that never lets you go."},)
    ),
    "ForTokenClassification": Head(
        "AutoModelForTokenClassification", "token-classification", ({"text": "Marie Curie worked in Paris."},)
    ),
    "ForQuestionAnswering": Head(
        "AutoModelForQuestionAnswering",
        "question-answering",
        ({"text": "Where did Marie Curie work?", "context": "Marie Curie worked in Paris."},),
        our_pipeline="extractive-question-answering",
    ),
    "ForMultipleChoice": Head("AutoModelForMultipleChoice", "multiple-choice"),
    "Model": Head("AutoModel", "feature-extraction"),
}
"""By the ending of the class name, ours and transformers' alike."""


@dataclass(frozen=True)
class Score:
    """One row of the result table."""

    split: str
    metric: str
    value: float | None
    rows: int | None


@dataclass(frozen=True)
class Spread:
    """One score over several seeds; `deviation` is that of a sample."""

    split: str
    metric: str
    runs: int
    mean: float
    deviation: float


def make_card(record: Mapping[str, Any], model_id: str) -> str:
    """The text of README.md for a published folder, metadata block included.

    Args:
        record: what is known of the run; see the module's docstring.
        model_id: how the snippets name the model: its id on the Hub, or the folder.

    Returns:
        Markdown. Credentials are taken out of the record, and of paths outside the run all but the last part.
    """
    import jinja2
    from huggingface_hub import ModelCard

    clean = redacted(record)
    known = without_machine_paths(clean)
    class_name = known.get("model", {}).get("class")
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.ChainableUndefined
    )
    environment.filters["cell"] = _cell
    environment.filters["figure"] = _figure
    template = environment.from_string(resources.files("bert_repro.hub").joinpath(TEMPLATE).read_text("utf-8"))
    text = template.render(
        metadata=_metadata(clean, model_id).to_yaml(),
        model_id=model_id,
        where=f'"{model_id}"' + (f', revision="{known["revision"]}"' if known.get("revision") else ""),
        class_name=class_name,
        head=head_of(class_name) if class_name else None,
        stock=known.get("model", {}).get("model_type", "bert") == "bert",
        pair=len(known.get("data", {}).get("text_columns", ())) == 2,
        base=known.get("base_model") or known.get("settings", {}).get("model_name_or_path"),
        resumed=bool(known.get("settings", {}).get("resume_from_checkpoint")),
        record=known,
        facts={name: dict(_flat(_tabled(name, known))) for name in ("model", "data", "train", "hardware", "settings")},
        scores=list(scores(known)),
        unanswerable=THRESHOLD in known.get("metrics", {}),
        tuned=threshold_was_tuned(known),
        seeds=[known.get("seed"), *(run["seed"] for run in known.get("runs", []))],
        spreads=list(spreads(known)),
    )
    return str(ModelCard(re.sub(r"\n{3,}", "\n\n", text))).rstrip() + "\n"


def renamed(card: str, model_id: str) -> str:
    """A card of `make_card` under which another name loads the model: in its title, metadata and snippets.

    Args:
        card: Markdown; one without a title stays as it is.
        model_id: the new name.
    """
    title = re.search(r"^# (.+)$", card, re.MULTILINE)
    if title is None or title[1] == model_id:
        return card
    old, short = title[1], model_id.rsplit("/", 1)[-1]
    metadata, body = card[: title.start()], card[title.end() :]
    metadata = metadata.replace(f"\n- name: {old.rsplit('/', 1)[-1]}\n", f"\n- name: {short}\n")
    body = re.sub(
        r"^```python\n.*?^```", lambda code: code[0].replace(f'"{old}"', f'"{model_id}"'), body, flags=re.M | re.S
    )
    return f"{metadata}# {model_id}{body}"


def head_of(class_name: str) -> Head:
    """The entry of `HEADS` for a model class.

    Raises:
        ValueError: the class is none of the BERT family.
    """
    for ending, head in HEADS.items():
        if class_name.endswith(ending):
            return head
    raise ValueError(f"{class_name} is no BERT model; its name must end in one of: {', '.join(HEADS)}")


def scores(record: Mapping[str, Any]) -> Iterator[Score]:
    """The scores of a record, one per split and metric; a split that was not scored has the value None."""
    splits = record.get("splits") or {record.get("split", "validation"): record}
    for name, split in splits.items():
        if split.get("missing"):
            yield Score(name, "any", None, None)
        for metric, value in split.get("metrics", {}).items():
            yield Score(name, metric, float(value), split.get("rows_scored"))


def spreads(record: Mapping[str, Any]) -> Iterator[Spread]:
    """Mean and deviation of the scores over the seeds of a record that has several."""
    if not record.get("runs"):
        return
    values: dict[tuple[str, str], list[float]] = {}
    for run in (record, *record["runs"]):
        for score in scores(run):
            if score.value is not None:
                values.setdefault((score.split, score.metric), []).append(score.value)
    for (split, metric), found in values.items():
        if len(found) > 1:
            yield Spread(split, metric, len(found), statistics.mean(found), statistics.stdev(found))


def _metadata(record: Mapping[str, Any], model_id: str) -> Any:
    from huggingface_hub import ModelCardData

    data, class_name = record.get("data", {}), record.get("model", {}).get("class")
    head = head_of(class_name) if class_name else None
    fields: dict[str, Any] = {
        "library_name": "transformers",
        "license": record.get("license", CODE_LICENSE),
        "language": data.get("language"),
        "datasets": [data["dataset"]] if data.get("dataset") else None,
        "base_model": record.get("base_model"),
        "pipeline_tag": head.pipeline_tag if head else None,
        "tags": ["bert", "bert-repro", *([record["task"]] if record.get("task") else [])],
        "widget": _widget(head, pair=len(data.get("text_columns", ())) == 2) if head else None,
    }
    results = _eval_results(record, fields["pipeline_tag"] or "other")
    if results:
        fields |= {"model_name": model_id.rsplit("/", 1)[-1], "eval_results": results}
    return ModelCardData(**fields)


def _widget(head: Head, *, pair: bool) -> list[dict[str, str]] | None:
    """Examples for the Hub's widget; none for pairs of sentences, which its classification widget cannot take."""
    return None if pair or not head.widget else [dict(example) for example in head.widget]


def eval_result_entries(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The content of a `.eval_results/*.yaml`: the task's own metric on the first scored split.

    A benchmark of the Hub takes one number a task. Nothing is claimed for data that is not on the Hub, for a split that
    was scored in part, for a degenerate run, or beside a metric that is not a finite number.

    Args:
        record: see the module's docstring.

    Returns:
        Entries, ready for YAML; empty where there is nothing to claim.
    """
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    data, metric = record.get("data", {}), record.get("primary_metric")
    value = record.get("metrics", {}).get(metric)
    if not data.get("dataset") or _scored_in_part(record) or record.get("degenerate"):
        return []
    if value is None or not math.isfinite(value):
        return []
    notes = f"{metric} on {record['split']}, {record['rows_scored']} rows, seed {record.get('seed')}; a fraction of 1"
    notes += "; the threshold was chosen on this split" * threshold_was_tuned(record)
    task = data.get("config") or record["task"]
    return list(eval_result_entries_to_yaml([EvalResultEntry(data["dataset"], task, float(value), notes=notes)]))


def _eval_results(record: Mapping[str, Any], task_type: str) -> list[Any]:
    from huggingface_hub import EvalResult

    data, task = record.get("data", {}), record.get("task", "unnamed")
    other_data = "dataset" in data and data["dataset"] is None
    if other_data or _scored_in_part(record):  # a score of the card's table, but none on the split that it would name
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
        for score in scores(record)
        if score.value is not None and math.isfinite(score.value) and not score.metric.endswith("threshold")
    ]


def threshold_was_tuned(record: Mapping[str, Any]) -> bool:
    """Whether the threshold for no answer was chosen on the split whose score stands first."""
    told = record.get("settings", {}).get("null_score_diff_threshold") is not None
    return not told and "train" in record and THRESHOLD in record.get("metrics", {})


def _scored_in_part(record: Mapping[str, Any]) -> bool:
    return record.get("settings", {}).get("max_eval_samples") is not None


def _tabled(part: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """A part of the record without what the card says in words."""
    told = {"data": ("dataset", "config", "license", "note", "text_columns"), "model": ("class", "labels")}
    return {name: value for name, value in record.get(part, {}).items() if name not in told.get(part, ())}


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Scalars of a nested mapping under dotted names. What is empty is left out, a long list given by its size."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and len(value) > _LONGEST_LIST:
            yield f"{prefix}{key}", f"{len(value)} entries"
        elif value not in (None, "", []):
            yield f"{prefix}{key}", value


def _figure(value: Any) -> str:
    """A score in a table; "-" where there is none."""
    return f"{value:.4f}" if isinstance(value, int | float) else "-"


def _cell(value: Any) -> str:
    """A value in a Markdown table."""
    if isinstance(value, list):
        return ", ".join(_cell(element) for element in value)
    if isinstance(value, float) and value >= 1e6:
        text = f"{value:.3g}"
    else:
        text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return " ".join(text.split()).replace("|", "\\|")
