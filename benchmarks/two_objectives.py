"""Collects one comparison of a masked with a left-to-right model: the training curves and the fine-tuning scores.

    python benchmarks/two_objectives.py --masked runs/a --left_to_right runs/b --step 5000 \\
      --finetuned runs/a-mnli runs/b-mnli --output_file benchmarks/results/two-objectives.json

The folders are those of `run_pretraining` (finished or not) and `run_glue`. Nothing is measured here: the record has
the numbers of the runs' own logs and results.
"""

import argparse
import json
from pathlib import Path
from typing import Any

CURVE_POINTS = 50
CURVE_FIELDS = ("step", "tokens", "loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy", "accuracy")


def main() -> None:
    """Writes the record; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--masked", type=Path, required=True)
    parser.add_argument("--left_to_right", type=Path, required=True)
    parser.add_argument("--step", type=int, required=True, help="the checkpoint that was fine-tuned")
    parser.add_argument("--finetuned", type=Path, nargs="+", required=True)
    parser.add_argument("--output_file", type=Path, required=True)
    arguments = parser.parse_args()

    record = {
        "step": arguments.step,
        "masked": curve(arguments.masked, arguments.step),
        "left_to_right": curve(arguments.left_to_right, arguments.step),
        "finetuned": {folder.name: scores(folder) for folder in arguments.finetuned},
    }
    arguments.output_file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for name, result in record["finetuned"].items():
        print(name, result["metrics"], "baselines", result["baselines"])


def curve(folder: Path, last_step: int) -> list[dict[str, Any]]:
    """Returns about fifty rows of a training log, up to a step; the mean of the rows in between is taken.

    Args:
        folder: the run.
        last_step: the last step to include.
    """
    rows = [json.loads(line) for line in (folder / "train_log.jsonl").read_text("utf-8").splitlines()]
    rows = [row for row in rows if row["step"] <= last_step and "loss" in row]
    size = max(1, len(rows) // CURVE_POINTS)
    points = []
    for start in range(0, len(rows), size):
        group = rows[start : start + size]
        point: dict[str, Any] = {}
        for field in CURVE_FIELDS:
            values = [row[field] for row in group if field in row]
            if values:
                is_count = field in ("step", "tokens")
                point[field] = values[-1] if is_count else round(sum(values) / len(values), 4)
        points.append(point)
    return points


def scores(folder: Path) -> dict[str, Any]:
    """Returns the parts of a fine-tuning run's results that the comparison needs."""
    results = json.loads((folder / "results.json").read_text("utf-8"))
    return {name: results[name] for name in ("task", "seed", "metrics", "baselines", "rows_scored", "degenerate")}


if __name__ == "__main__":
    main()
