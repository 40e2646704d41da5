"""results.json: the results and settings that a run leaves in its output folder. The classes below are the format.

Every field may be missing. Types are checked when a file is read, because it may come from another machine.
"""

import typing
from pathlib import Path
from typing import Annotated, Any, TypedDict

from bert_repro.errors import UserError
from bert_repro.utils.files import RESULTS, write_json
from bert_repro.utils.readers import quoted, read_json_object
from bert_repro.utils.schema import Limits, conform

_REMEDY = "Name the folder of a finished run, or make the run again."

Count = Annotated[int, Limits(0, 1e24)]
"""A number of rows, tokens, steps ..."""
Metrics = Annotated[dict[str, float], "metric -> value; accuracies and F1 are fractions of 1, losses nats"]


class SplitDetails(TypedDict, total=False):
    """Scores of each label or type, and what else a task reports of a split."""

    labels: Annotated[list[str], "names of the rows and columns of the confusion matrix"]
    confusion_matrix: Annotated[list[list[Count]], "[true label][predicted label]"]
    classes: Annotated[dict[str, dict[str, float]], "label -> precision, recall, f1 and rows"]
    entities: Annotated[dict[str, dict[str, float]], "type -> precision, recall, f1-score and support"]
    never_predicted: Annotated[list[str], "labels that no row was given"]


class SplitResults(TypedDict, total=False):
    """Results of one split that was scored or predicted."""

    metrics: Metrics
    rows_scored: Annotated[int, "rows that the metrics are over"]
    published_rows: Annotated[
        int | None, "rows of the published split; if fewer were scored, the score is not tagged as that of the split"
    ]
    details: Annotated[SplitDetails, "scores of each label or type, confusions and calibration, if the task has them"]
    degenerate: Annotated[bool, "the model gives the same answer for every row"]
    rows: Annotated[int, "rows of the split that were read"]
    truncated: Annotated[int, "rows that were truncated to max_seq_length"]
    files: Annotated[list[str], "files of predictions, next to results.json"]
    missing: Annotated[bool, "the data has no such split"]


class AdapterResults(TypedDict, total=False):
    """An adapter that was trained instead of the model's weights."""

    kind: Annotated[str, "lora or dora"]
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
    """Training, with all parts of a resumed run added up."""

    steps: Annotated[int, "optimizer steps"]
    batch: Annotated[int, "sequences per optimizer step over all devices"]
    sequences_per_example: Annotated[int, "sequences that the encoder reads for one example; 4 for SWAG"]
    examples: Annotated[int, "rows of the training set"]
    published_rows: Annotated[int | None, "rows of the published training set"]
    rows: Annotated[int, "sequences made from the examples; each window of a long passage counts"]
    dropped: Annotated[int, "sequences left out, such as windows without the answer"]
    truncated: Annotated[int, "sequences that were truncated to max_seq_length"]
    phases: list[PhaseResults]
    tokens: Annotated[int, "tokens that were read, without padding"]
    seconds: Annotated[float, "duration of training, with the evaluations during it"]
    flops: Annotated[float, "useful floating-point operations of training, rounded to three digits"]
    mfu: Annotated[
        float,
        "model FLOPs utilization: useful FLOPs per second as a share of those measured for a large matrix product",
    ]
    compiled_graphs: int
    micro_batch_parts: Annotated[int, "parts that a micro-batch was split into because memory did not suffice"]
    best_step: Annotated[int, "step of the weights that were kept, if the best on dev were to be kept"]
    adapter: AdapterResults


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
    """The machine of the run."""

    device: str
    processor: str
    cores: int | None
    cpu_threads: int
    processes: int


class SweepConfiguration(TypedDict, total=False):
    """Runs of a sweep with the same settings."""

    learning_rate: float
    batch: int
    epochs: float | None
    steps: int | None
    runs: int
    degenerate: int
    not_finite: int
    splits: Annotated[
        dict[str, dict[str, dict[str, float | None]]], "split -> metric -> mean, standard_deviation (n - 1) and best"
    ]


class SweepResults(TypedDict, total=False):
    """Grid search or restarts. The best run on dev is published."""

    split: Annotated[str, "the split that chooses"]
    metric: Annotated[str, "the metric that chooses"]
    runs_done: int
    degenerate: int
    not_finite: int
    best: dict[str, Any] | None
    configurations: list[SweepConfiguration]
    runs: Annotated[list[dict[str, Any]], "learning_rate, batch, epochs, steps, seed, folder, splits: metrics"]


class FrequencyBin(TypedDict, total=False):
    """Predictions of tokens with a similar frequency in the corpus."""

    at_least: Annotated[int, "occurrences in the corpus"]
    below: int | None
    predictions: int
    right: int
    accuracy: float


class MlmBreakdown(TypedDict, total=False):
    """Accuracy of pre-training on parts of the held-out predictions."""

    by_frequency: list[FrequencyBin]
    by_action: Annotated[dict[str, dict[str, float | None]], "mask, same or random -> predictions, right, accuracy"]


class DataResults(TypedDict, total=False):
    """The data of a run. Tasks add fields of their own."""

    dataset: Annotated[str | None, "id on the Hub"]
    config: str | None
    title: str
    kind: Annotated[str, "label, labels or number"]
    files: Annotated[dict[str, str], "split -> name of the user's own file"]
    split_names: Annotated[dict[str, str], "split -> its name in the data set"]
    text_columns: list[str]
    example: dict[str, str | list[str]]
    license: str | list[str] | None
    language: str | list[str] | None
    note: str
    sources: list[str]
    vocab_size: Count
    counts: Annotated[dict[str, float], "pre-training: documents, sentences, tokens, words ... of the corpus"]


class StudyEntry(TypedDict, total=False):
    """A cell of one of the paper's tables."""

    table: str
    row: str
    column: str


class StudyModel(TypedDict, total=False):
    """A finished model that a study scores."""

    name: str
    content: str
    place: int


class StudyResults(TypedDict, total=False):
    """The experiment that made a run."""

    run: str
    size_preset: str
    pretraining: Annotated[str | None, "the pre-training run that its model comes from"]
    pretraining_seed: int | None
    start: Annotated[str | None, "the run that it started from"]
    checkpoint_step: Annotated[int | None, "the checkpoint of that run; null: the finished model"]
    model: Annotated[StudyModel, "the finished model, if the study scores one"]
    table_entries: list[StudyEntry]


class RunResults(TypedDict, total=False):
    """The content of results.json.

        import bert_repro

        def summary(results: bert_repro.RunResults) -> str:
            return f"{results['task']}: {results['metrics']} on {results['split']}"

    Any field may be missing: a run that only scores has no `train`.
    """

    task: Annotated[str, "a GLUE name, squad, squad_v2, swag, conll2003, a custom task's name, or pre-training"]
    split: Annotated[str, "the split that `metrics` is about"]
    metrics: Metrics
    rows_scored: int
    primary_metric: Annotated[str, "the one of `metrics` that summarizes the task"]
    degenerate: Annotated[bool, "the model gives the same answer for every row of `split`"]
    baselines: Annotated[
        dict[str, dict[str, float]], "scores of baselines without a neural network on the rows of `split`"
    ]
    splits: dict[str, SplitResults]
    objective: Annotated[str, "pre-training: what the model was trained to do, as its card says it"]
    mlm_breakdown: Annotated[MlmBreakdown, "pre-training: accuracy by frequency and masking action"]
    train: TrainResults
    sweep: SweepResults
    deviations: Annotated[dict[str, str], "departures of the data or model from the paper: name -> sentence"]
    data: Annotated[DataResults, "dataset (id on the Hub), title, files, license, language, example, counts ..."]
    model: ModelResults
    base_model: Annotated[str | None, "id on the Hub of the weights that training began from"]
    license: Annotated[str | list[str] | None, "of the weights"]
    seed: int
    settings: Annotated[dict[str, Any], "every setting of the run, see docs/CONFIGURATION.md"]
    versions: Annotated[dict[str, str | None], "Python, this package and its libraries; null: not installed"]
    git_commit: str | None
    hardware: HardwareResults
    command: str
    wall_time_seconds: Annotated[float, "of the process that finished the run; `train.seconds` has all of training"]
    study: Annotated[StudyResults, "the experiment that made the run, and the cells of the paper's tables it fills"]


def write_results(folder: Path, results: RunResults) -> None:
    """Writes results.json.

    Raises:
        UserError: the disk is full or not writable.
        ValueError: a number is not finite.
    """
    write_json(folder / RESULTS, results, ensure_ascii=False)


def read_results(place: str | Path, *, needs: tuple[str, ...] = ()) -> RunResults:
    """Reads results.json and checks the types of its fields.

        import bert_repro

        results = bert_repro.read_results("runs/moods")
        print(results["metrics"], results["hardware"]["processor"])

    Args:
        place: a run's folder, or the file.
        needs: fields that must be there.

    Raises:
        UserError: the file is missing, is not JSON, lacks a field, or has a field of another type.
    """
    path = Path(place) if Path(place).is_file() else Path(place) / RESULTS
    content = read_json_object(path, damaged=_REMEDY)
    for name in needs:
        if name not in content:
            raise UserError(f"{path}: the field {name} is missing. {_REMEDY}")
    results = typing.cast(RunResults, conform(content, RunResults, str(path), _REMEDY))
    _require_agreement(results, path)
    return results


def _require_agreement(results: RunResults, path: Path) -> None:
    """Refuses fields that refer to others which are not there.

    Raises:
        UserError: the primary metric, a matrix or a sweep does not fit the rest of the results.
    """
    metrics = results.get("metrics", {})
    primary = results.get("primary_metric")
    if metrics and primary is not None and primary not in metrics:
        raise UserError(f"{path}: primary_metric is {quoted(primary)}, which is not one of the metrics. {_REMEDY}")
    for name, scores in results.get("baselines", {}).items():
        if primary not in metrics or primary not in scores:
            raise UserError(
                f"{path}: the baseline {quoted(name)} cannot be compared, because primary_metric is {quoted(primary)}. "
                f"{_REMEDY}"
            )
    for name, split in results.get("splits", {}).items():
        _require_square_matrix(split.get("details", {}), f"{path}: splits.{quoted(name)}.details")


def _require_square_matrix(details: SplitDetails, place: str) -> None:
    matrix = details.get("confusion_matrix")
    if matrix is None:
        return
    # Runs of earlier versions have no names of labels.
    size = len(details.get("labels", matrix))
    if not matrix or len(matrix) != size or any(len(row) != size for row in matrix):
        raise UserError(f"{place}: confusion_matrix is not square with a row for each label. {_REMEDY}")
