"""What a study will do and cost, before it starts (`run_study --dry_run`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_repro.configs import StudyConfig
from bert_repro.corpus.prepared_corpus import read_manifest
from bert_repro.paper_results import SPLIT_ROWS
from bert_repro.presets import ORIGINAL_VOCAB_SIZES, tokens_including_padding
from bert_repro.pretraining.cost_estimate import model_flops
from bert_repro.pretraining.run import new_model_config, resolve_phases
from bert_repro.reproduction.run_store import RunStore
from bert_repro.reproduction.size_presets import RECIPE_CONFIGS
from bert_repro.reproduction.suite import PlannedRun
from bert_repro.tasks import get_task
from bert_repro.training.performance import assumed_speed, flops_per_token

# Mean tokens of one sequence with the original uncased vocabulary.
_MEAN_TOKENS = {
    "mnli": 39, "qnli": 50, "mrpc": 53, "sst2": 13, "qqp": 30, "cola": 11, "stsb": 32, "rte": 70, "squad": 175,
    "squad_v2": 175, "swag": 40, "conll2003": 20,
}  # fmt: skip
# Labelled splits beside the training set; of MNLI's two dev sets the estimate counts one.
_SCORED_SPLITS = {"mnli": ("validation_matched",), "conll2003": ("validation", "test")}
_USUAL_MFU = 0.4

_NO_CORPUS = "without --corpus finished runs cannot be recognised, as a run's name depends on the corpus"


def describe(runs: Sequence[PlannedRun], store: RunStore, config: StudyConfig) -> str:
    """Lists every run with its table entries, FLOPs and hours, and the sums.

    Fine-tuning is estimated from the size of the official data sets; hours are those of one device at 40% of
    what a large matrix product reaches on it.

    Args:
        runs: the planned runs.
        store: knows what is done.
        config: its prepared corpus, for the vocabulary (without one: the original uncased vocabulary's size, and what
            is done is not known), and the device that the hours are for.
    """
    corpus = config.corpus
    vocab_size = read_manifest(Path(corpus))["vocab_size"] if corpus else ORIGINAL_VOCAB_SIZES["uncased"]
    peak, origin = assumed_speed(config, str(runs[0].settings.get("mixed_precision", "no")))
    speed = _USUAL_MFU * peak
    rows = [("state", "FLOPs", "hours", "run", "fills")]
    costs = [run_flops(run, vocab_size) for run in runs]
    for run, flops in zip(runs, costs, strict=True):
        state = _state(run, store) if corpus else "?"
        fills = ", ".join(f"{entry.table}: {entry.row}, {entry.column}" for entry in run.entries)
        rows.append((state, f"{flops:.1e}", _hours(flops / speed), run.id, fills))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        "  ".join([*(f"{text:<{width}}" for text, width in zip(row, widths, strict=False)), row[4]]) for row in rows
    ]
    remaining = sum(cost for run, cost in zip(runs, costs, strict=True) if not store.is_done(run))
    pretraining = sum(run.is_pretraining for run in runs)
    done = f"{sum(store.is_done(run) for run in runs)} done" if corpus else _NO_CORPUS
    lines += [
        "",
        f"{len(runs)} runs: {pretraining} pre-training, {len(runs) - pretraining} fine-tuning; {done}",
        f"{sum(costs):.1e} FLOPs, {remaining:.1e} of them to do: about {_hours(remaining / speed)} hours on one device "
        f"at {_USUAL_MFU:.0%} of {origin}",
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def run_flops(run: PlannedRun, vocab_size: int) -> float:
    """Returns useful FLOPs of a run, evaluation at its end included; an estimate for fine-tuning."""
    if run.start is None:
        return _pretraining_flops(run, vocab_size)
    known: dict[str, Any] = {**run.settings, "model_name_or_path": "its pre-trained model"}
    config: Any = RECIPE_CONFIGS[run.recipe](**known)
    name = config.task_name
    rows = SPLIT_ROWS[name, "train"] if config.do_train else 0  # TriviaQA: about as many as SQuAD
    scored = sum(SPLIT_ROWS[name, split] for split in _SCORED_SPLITS.get(name, ("validation",)))
    rows = min(rows, config.max_train_samples or rows)
    scored = min(scored, config.max_eval_samples or scored) * (1 + len(run.members)) if config.do_eval else 0
    tokens = get_task(name).sequences_per_example * _MEAN_TOKENS[name]
    shape = _shape(run.pretraining, vocab_size)
    per_token = flops_per_token(shape.num_hidden_layers, shape.hidden_size, vocab_size, tokens, predicted_fraction=0.0)
    # The features of a frozen encoder are computed in one forward pass, a third of a training step.
    passes = 1 / 3 if "feature_based" in run.settings else config.num_train_epochs or 3.0
    learning_rates = len(config.sweep_learning_rates) or 1
    return learning_rates * per_token * tokens * (rows * passes + scored / 3)


def _pretraining_flops(run: PlannedRun, vocab_size: int) -> float:
    config: Any = RECIPE_CONFIGS[run.recipe](**run.settings)
    shape = _shape(run, vocab_size)
    return sum(
        tokens_including_padding([phase]) * model_flops(shape, config, phase.max_seq_length)
        for phase in resolve_phases(config, 1)
    )


def _shape(pretraining: PlannedRun, vocab_size: int) -> Any:
    config: Any = RECIPE_CONFIGS[pretraining.recipe](**pretraining.settings)
    return new_model_config(config, vocab_size)


def _state(run: PlannedRun, store: RunStore) -> str:
    return "done" if store.is_done(run) else "failed" if store.has_failed(run) else "to do"


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.2f}" if seconds < 360_000 else f"{seconds / 3600:,.0f}"
