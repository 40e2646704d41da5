"""What a study will do and cost, before it starts (`run_study --dry_run`)."""

from collections.abc import Sequence
from typing import Any

import torch

from bert_repro.corpus.prepared_corpus import PreparedCorpus
from bert_repro.presets import RELEASED_VOCAB_SIZES, positions
from bert_repro.pretraining.cost_estimate import model_flops
from bert_repro.pretraining.run import new_model_config, resolve_phases
from bert_repro.recipes import RECIPES
from bert_repro.reproduction.store import Store
from bert_repro.reproduction.suite import Run
from bert_repro.training.cpu_performance import measured_peak
from bert_repro.training.flops import flops_per_token

# Training rows, dev rows (with CoNLL-2003's test set), mean tokens of a row with the released uncased vocabulary.
_TASK_SIZES = {
    "mnli": (392_702, 9_815, 39),
    "qnli": (104_743, 5_463, 50),
    "mrpc": (3_668, 408, 53),
    "sst2": (67_349, 872, 13),
    "qqp": (363_846, 40_430, 30),
    "cola": (8_551, 1_043, 11),
    "stsb": (5_749, 1_500, 32),
    "rte": (2_490, 277, 70),
    "squad": (87_599, 10_570, 175),
    "squad_v2": (130_319, 11_873, 175),
    "swag": (73_546, 20_006, 4 * 40),
    "conll2003": (14_041, 6_703, 20),
}
_USUAL_SHARE = 0.4  # of the peak, that training reaches

_NO_CORPUS = "without --corpus finished runs cannot be recognised, as a run's name depends on the corpus"


def describe(runs: Sequence[Run], store: Store, corpus: str) -> str:
    """A text for people: every run with its cells, operations and time, and the sums.

    Fine-tuning is estimated from the size of the official data sets; the time is that of one device such as this
    machine's at 40% of what a large product reaches on it.

    Args:
        runs: the plan.
        store: knows what is done.
        corpus: the prepared corpus, for its vocabulary; empty: the released uncased vocabulary's size, and what is
            done is not known.
    """
    vocab_size = PreparedCorpus.load(corpus).manifest["vocab_size"] if corpus else RELEASED_VOCAB_SIZES["uncased"]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    precision = str(runs[0].settings.get("mixed_precision", "no"))
    speed = _USUAL_SHARE * measured_peak(device, precision)
    rows = [("state", "FLOPs", "hours", "run", "fills")]
    costs = [run_flops(run, vocab_size) for run in runs]
    for run, flops in zip(runs, costs, strict=True):
        state = _state(run, store) if corpus else "?"
        fills = ", ".join(f"{cell.table}: {cell.row}, {cell.column}" for cell in run.cells)
        rows.append((state, f"{flops:.1e}", _hours(flops / speed), run.id, fills))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        "  ".join([*(f"{text:<{width}}" for text, width in zip(row, widths, strict=False)), row[4]]) for row in rows
    ]
    open_cost = sum(cost for run, cost in zip(runs, costs, strict=True) if not store.is_done(run))
    pretraining = sum(run.pretrains for run in runs)
    done = f"{sum(store.is_done(run) for run in runs)} done" if corpus else _NO_CORPUS
    lines += [
        "",
        f"{len(runs)} runs: {pretraining} pre-training, {len(runs) - pretraining} fine-tuning; {done}",
        f"{sum(costs):.1e} floating-point operations, {open_cost:.1e} of them to do: about {_hours(open_cost / speed)} "
        f"hours on one device such as this one ({device.type}, {speed / _USUAL_SHARE / 1e12:.2f} TFLOP/s on a large "
        f"product, {_USUAL_SHARE:.0%} of it)",
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _state(run: Run, store: Store) -> str:
    return "done" if store.is_done(run) else "failed" if store.has_failed(run) else "to do"


def run_flops(run: Run, vocab_size: int) -> float:
    """Useful operations of a run, evaluation at its end included; an estimate for fine-tuning."""
    if run.start is None:
        return _pretraining_flops(run, vocab_size)
    known: dict[str, Any] = {**run.settings, "model_name_or_path": "its pre-trained model"}
    settings: Any = RECIPES[run.recipe].config(**known)
    rows, scored, tokens = _TASK_SIZES[settings.task_name]
    rows = min(rows, settings.max_train_samples or rows)
    scored = min(scored, settings.max_eval_samples or scored)
    shape = _shape(run.start, vocab_size)
    per_token = flops_per_token(shape.num_hidden_layers, shape.hidden_size, vocab_size, tokens, predicted_fraction=0.0)
    # The features of a frozen encoder are computed in one forward pass, a third of a training step.
    passes = 1 / 3 if "feature_based" in run.settings else settings.num_train_epochs or 3.0
    searched = len(settings.sweep_learning_rates) or 1
    return searched * per_token * tokens * (rows * passes + scored / 3)


def _pretraining_flops(run: Run, vocab_size: int) -> float:
    config: Any = RECIPES[run.recipe].config(**run.settings)
    shape = _shape(run, vocab_size)
    return sum(
        positions([phase]) * model_flops(shape, config, phase.max_seq_length) for phase in resolve_phases(config, 1)
    )


def _shape(pretraining: Run, vocab_size: int) -> Any:
    config: Any = RECIPES[pretraining.recipe].config(**pretraining.settings)
    return new_model_config(config, vocab_size)


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.2f}" if seconds < 360_000 else f"{seconds / 3600:,.0f}"
