"""results.json: what a run leaves about itself, typed, written once and validated wherever it is read.

The classes below are the format; docs/results.schema.json is made from them (`make docs`). Fields that are not named
there are kept as they are, so that a newer version's results still read.
"""

import sys
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypedDict

from bert_repro.errors import UserError
from bert_repro.utils.files import RESULTS, write_json
from bert_repro.utils.readers import listed, read_json, shown

SCHEMA_FILE = "results.schema.json"
_HINT = "copy the file again from where the run was made, or make the run again"

Metrics = Annotated[dict[str, float], "metric -> value; accuracies and F1 are fractions of 1, losses nats"]


class SplitResults(TypedDict, total=False):
    """One split that was scored or predicted."""

    metrics: Metrics
    rows_scored: Annotated[int, "rows that the metrics are over"]
    published_rows: Annotated[int | None, "rows of the published split; fewer scored are not tagged as its score"]
    details: Annotated[dict[str, Any], "scores of each label or type, confusions, calibration, as the task has them"]
    degenerate: Annotated[bool, "the model gives the same answer for every row"]
    rows: Annotated[int, "rows of the split that were read"]
    truncated: Annotated[int, "rows cut to max_seq_length"]
    files: Annotated[list[str], "files of predictions, beside results.json"]
    missing: Annotated[bool, "the data has no such split"]


class AdapterResults(TypedDict, total=False):
    """An adapter that was trained in place of the model's own weights."""

    kind: Annotated[str, "lora, dora or ia3"]
    target_modules: list[str]
    trained_parameters: int
    trained_share: Annotated[float, "of all weights"]
    peft: Annotated[str, "version of the library"]


class PhaseResults(TypedDict, total=False):
    """A phase of pre-training: steps of one batch size and length."""

    steps: int
    max_seq_length: Annotated[int, "tokens"]
    batch: Annotated[int, "sequences per optimizer step over all devices"]
    max_predictions_per_seq: int | None


class TrainResults(TypedDict, total=False):
    """What training went through, all parts of a resumed run together."""

    steps: Annotated[int, "optimizer steps"]
    batch: Annotated[int, "sequences per optimizer step over all devices"]
    sequences_per_example: Annotated[int, "sequences that the encoder reads for one of them; 4 for SWAG"]
    examples: Annotated[int, "rows of the training set"]
    rows: Annotated[int, "sequences made from them (windows of long passages count each)"]
    dropped: Annotated[int, "sequences left out, such as windows without the answer"]
    truncated: Annotated[int, "sequences cut to max_seq_length"]
    phases: list[PhaseResults]
    tokens: Annotated[int, "real tokens seen, padding not counted"]
    seconds: Annotated[float, "of training, without evaluations"]
    flops: Annotated[float, "useful floating-point operations of training, three digits"]
    mfu: Annotated[float, "model FLOPs utilization: useful FLOPs per second, of those measured for a large product"]
    compiled_graphs: int
    best_step: Annotated[int, "step of the weights that were kept, where the best on dev were asked for"]
    adapter: AdapterResults
    encoder_seconds: Annotated[float, "of computing the features of a frozen encoder"]
    features_from_cache: bool


_ClassName = TypedDict("_ClassName", {"class": Annotated[str, "of this package"]}, total=False)


class ModelResults(_ClassName, total=False):
    """The model that was trained or scored."""

    model_type: str
    parameters: int
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    longest_input: int
    hidden_act: str
    labels: list[str]


class HardwareResults(TypedDict, total=False):
    """Where the run was made."""

    device: str
    processor: str
    cores: int | None
    cpu_threads: int
    processes: int


class SweepRun(TypedDict, total=False):
    """One run of a sweep."""

    learning_rate: float
    batch: int
    epochs: float | None
    steps: int | None
    seed: int
    folder: Annotated[str, "below the sweep's folder"]
    splits: Annotated[dict[str, Metrics], "metrics by split"]
    degenerate: bool
    not_finite: Annotated[bool, "stopped because its loss was not finite"]


class SweepConfigurationResults(TypedDict, total=False):
    """The runs of one configuration, which differ by their seeds alone. Deviations are those of a sample (n - 1)."""

    learning_rate: float
    batch: int
    epochs: float | None
    steps: int | None
    runs: int
    degenerate: Annotated[int, "runs with one answer for every row; mean and deviation count them"]
    not_finite: int
    best_seed: int | None
    splits: Annotated[dict[str, dict[str, dict[str, float | None]]], "split -> metric -> mean, deviation, best"]
    without_degenerate: Annotated[dict[str, Any], "runs and splits without the degenerate runs"]


class SweepResults(TypedDict, total=False):
    """Grid search or restarts, of which the best run on dev is the one published."""

    split: Annotated[str, "the split that chooses"]
    metric: Annotated[str, "the metric that chooses"]
    runs_done: int
    degenerate: int
    not_finite: int
    best: SweepRun | None
    configurations: list[SweepConfigurationResults]
    runs: list[SweepRun]


class RunResults(TypedDict, total=False):
    """What results.json holds.

        import bert_repro

        def summary(results: bert_repro.RunResults) -> str:
            return f"{results['task']}: {results['metrics']} on {results['split']}"

    Any field may be missing: a run that only scores has no `train`.
    """

    task: Annotated[str, "a GLUE name, squad, squad_v2, swag, conll2003, a custom task's name, or pre-training"]
    split: Annotated[str, "the split that `metrics` is about"]
    metrics: Metrics
    rows_scored: int
    primary_metric: Annotated[str, "the one of `metrics` that sums the task up"]
    degenerate: Annotated[bool, "the model gives the same answer for every row of `split`"]
    splits: dict[str, SplitResults]
    mlm_breakdown: Annotated[dict[str, Any], "pre-training: accuracy by frequency and masking action, NSP confusion"]
    train: TrainResults
    sweep: SweepResults
    deviations: Annotated[dict[str, str], "departures of the data or model from the paper: name -> sentence"]
    data: Annotated[
        dict[str, Any],
        "dataset (id on the Hub), title, files, license, language, example, counts ...",
    ]
    model: ModelResults
    base_model: Annotated[str | None, "id on the Hub of the weights that training began from"]
    license: Annotated[str, "of the weights"]
    seed: int
    settings: Annotated[dict[str, Any], "every setting of the run, see docs/CONFIGURATION.md"]
    versions: Annotated[dict[str, str | None], "Python, this package and its libraries; null: not installed"]
    git_commit: str | None
    hardware: HardwareResults
    command: str
    wall_time_seconds: float
    study: Annotated[dict[str, Any], "the experiment that made the run, and the cells of the paper's tables it fills"]


_RENAMED = {
    "collapsed": "degenerate", "without_collapsed": "without_degenerate", "search": "sweep", "cells": "configurations",
    "probes": "mlm_breakdown",
}  # fmt: skip
"""Old name -> today's, wherever the class above has a field of that name; read for one more release."""


_KINDS = {
    str: ("string", "a text"),
    int: ("integer", "an integer"),
    float: ("number", "a finite number"),
    bool: ("boolean", "true or false"),
}
"""Types of the fields: their names in a schema and in messages."""


def write_results(folder: Path, results: RunResults) -> None:
    """Writes results.json.

    Raises:
        UserError: the disk is full or not writable.
        ValueError: a field is not as `RunResults` says, or a number is not finite.
    """
    if (fault := find_fault(results)) is not None:
        raise ValueError(f"{folder / RESULTS}: {fault}")
    write_json(folder / RESULTS, results, ensure_ascii=False)


def read_results(place: str | Path, *, needs: tuple[str, ...] = ()) -> RunResults:
    """Reads and validates results.json, names of older versions included.

        import bert_repro

        results = bert_repro.read_results("runs/moods")
        print(results["metrics"], results["hardware"]["processor"])

    Args:
        place: a run's folder, or the file.
        needs: fields that must be there.

    Raises:
        UserError: it is missing or not as `RunResults` says; names file and field.
    """
    path = Path(place) if Path(place).is_file() else Path(place) / RESULTS
    content = read_json(path, missing="name the folder of a finished run", damaged=_HINT)
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds {_json_name(content)}, not an object; {_HINT}")
    results = with_current_names(content)
    if (fault := find_fault(results)) is not None:
        raise UserError(f"{path}: {fault}; {_HINT}")
    for name in needs:
        if name not in results:
            raise UserError(f"{path}: field {name} is missing; {_HINT}")
    return results


def with_current_names(content: Mapping[str, Any]) -> RunResults:
    """Returns results under the names of today, whatever version wrote them; a current name wins over an old one."""
    return typing.cast(RunResults, _renamed(content, RunResults))


def find_fault(results: Mapping[str, Any]) -> str | None:
    """Returns what is wrong with results, as "field NAME is VALUE; it must be ...", or None."""
    return next(_faults(results, RunResults, ""), None)


def json_schema() -> dict[str, Any]:
    """Returns the JSON Schema (draft 2020-12) of results.json."""
    definitions: dict[str, Any] = {}
    top = _schema(RunResults, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "results.json of bert_repro",
        **definitions.pop(top["$ref"].rsplit("/", 1)[-1]),
        "$defs": definitions,
    }


def _renamed(value: Any, hint: Any) -> Any:
    hint, _ = _without_note(hint)
    arguments = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return _renamed(value, arguments[0])
    if typing.get_origin(hint) is list and isinstance(value, list):
        return [_renamed(item, arguments[0]) for item in value]
    if not isinstance(value, Mapping):
        return value
    if not typing.is_typeddict(hint):
        return {name: _renamed(item, arguments[-1] if arguments else Any) for name, item in value.items()}
    fields = typing.get_type_hints(hint, include_extras=True)
    names = {name: _RENAMED[name] if _RENAMED.get(name) in fields else name for name in value}
    current = {names[name]: item for name, item in value.items() if names[name] == name or names[name] not in value}
    return {name: _renamed(item, fields.get(name, Any)) for name, item in current.items()}


def _faults(value: Any, hint: Any, name: str) -> Iterator[str]:
    hint, _ = _without_note(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return
    if isinstance(hint, types.UnionType):
        if value is not None:
            yield from _faults(value, arguments[0], name)
    elif typing.is_typeddict(hint) or origin is dict:
        if not isinstance(value, Mapping):
            yield _fault(name, value, "an object")
            return
        fields = typing.get_type_hints(hint, include_extras=True) if typing.is_typeddict(hint) else {}
        for key, item in value.items():
            yield from _faults(item, fields.get(key, Any if fields else arguments[1]), f"{name}.{key}" if name else key)
    elif origin is list:
        if not isinstance(value, list | tuple):
            yield _fault(name, value, "a list")
            return
        for number, item in enumerate(value):
            yield from _faults(item, arguments[0], f"{name}[{number}]")
    elif not _is_a(value, hint):
        yield _fault(name, value, _KINDS[hint][1])


def _is_a(value: Any, kind: type) -> bool:
    if isinstance(value, bool):
        return kind is bool
    if kind is float:
        return isinstance(value, int | float) and abs(value) <= sys.float_info.max
    return isinstance(value, kind) and (not isinstance(value, int) or abs(value) < 1 << 63)


def _fault(name: str, value: Any, wanted: str) -> str:
    return f"field {listed([name])} is {shown(value)}; it must be {wanted}"


def _schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    hint, note = _without_note(hint)
    described = {"description": note} if note else {}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return {**described}
    if isinstance(hint, types.UnionType):
        return {"anyOf": [_schema(arguments[0], definitions), {"type": "null"}], **described}
    if origin is dict:
        inner = _schema(arguments[1], definitions)
        return {"type": "object", **({"additionalProperties": inner} if inner else {}), **described}
    if origin is list:
        return {"type": "array", "items": _schema(arguments[0], definitions), **described}
    if not typing.is_typeddict(hint):
        return {"type": _KINDS[hint][0], **described}
    if hint.__name__ not in definitions:
        definitions[hint.__name__] = {}  # its place, before those that it refers to
        fields = typing.get_type_hints(hint, include_extras=True)
        definitions[hint.__name__] = {
            "description": (hint.__doc__ or "").splitlines()[0],
            "type": "object",
            "properties": {name: _schema(field, definitions) for name, field in fields.items()},
        }
    return {"$ref": f"#/$defs/{hint.__name__}", **described}


def _without_note(hint: Any) -> tuple[Any, str]:
    if typing.get_origin(hint) is Annotated:
        hint, *notes = typing.get_args(hint)
        return hint, notes[0]
    return hint, ""


def _json_name(value: Any) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
