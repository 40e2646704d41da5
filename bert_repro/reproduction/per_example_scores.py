"""What the report needs of a run beside results.json: two small files that hold no text of any data set.

`examples.json` holds a score for every example of each scored split, in the split's order, for paired statistics; see
`Task.example_scores`:

    {"validation": {"accuracy": [1, 0, ...]}}

`curve.json` holds the losses along a pre-training run, at most `CURVE_POINTS` of each:

    {"training": {"step": [...], "mlm_loss": [...], "nsp_loss": [...]}, "heldout": {"step": [...], "mlm_loss": [...]}}

A left-to-right model has `lm_loss` instead of `mlm_loss`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bert_repro.errors import UserError
from bert_repro.training import training_log
from bert_repro.utils.output_files import TRAIN_LOG

EXAMPLES_FILE = "examples.json"
CURVE_FILE = "curve.json"
CURVE_POINTS = 200
_DIGITS = 5  # of a loss; what is drawn needs no more
_CURVES = ("mlm_loss", "nsp_loss", "lm_loss")


def loss_curve(run_folder: Path) -> dict[str, dict[str, list[float]]]:
    """The losses that a pre-training run logged; neighbouring points are averaged where there are too many.

    Args:
        run_folder: the run's output folder.

    Raises:
        UserError: the run has logged no loss.
    """
    path = run_folder / TRAIN_LOG
    rows = training_log.read(path)
    training = [row for row in rows if "learning_rate" in row]
    if not training:
        raise UserError(f"{path}: logs no training step; name the output folder of a pre-training run")
    if "mlm_loss" not in training[0]:
        training = [{**row, "lm_loss": row["loss"]} for row in training]
    evaluations = [row for row in rows if "learning_rate" not in row]
    heldout = [{name.removeprefix("eval_"): value for name, value in row.items()} for row in evaluations]
    return {"training": _columns(training), "heldout": _columns(heldout)}


def _columns(rows: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    if not rows:
        return {}
    groups = np.array_split(np.arange(len(rows)), min(CURVE_POINTS, len(rows)))
    columns: dict[str, list[float]] = {"step": [int(rows[group[-1]]["step"]) for group in groups]}
    for name in _CURVES:
        if all(name in row for row in rows):
            columns[name] = [round(float(np.mean([rows[place][name] for place in group])), _DIGITS) for group in groups]
    return columns
