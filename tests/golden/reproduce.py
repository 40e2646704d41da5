"""Runs official scorers on the golden predictions and compares what they print with what is on record.

    python tests/golden/reproduce.py path/to/evaluate-v1.1.py path/to/evaluate-v2.0.py path/to/conlleval glue

The scorers are not part of this project: name those that you have, under these names. `glue` is for the functions
of scikit-learn and scipy that GLUE's evaluation calls. Says where a scorer's SHA-256 is not the recorded one, and ends
with 1 where a number differs.
"""

import csv
import hashlib
import importlib
import inspect
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).resolve().parent
SQUAD = {"evaluate-v1.1.py": "v1.1", "evaluate-v2.0.py": "v2.0"}
CONLL = re.compile(
    r"processed (?P<tokens>\d+) tokens with (?P<entities>\d+) phrases; found: (?P<predicted>\d+) phrases; "
    r"correct: (?P<correct>\d+)\..*?FB1:\s*(?P<f1_percent>[\d.]+)",
    re.DOTALL,
)


def squad(scorer: Path, version: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The record, and what the scorer prints now."""
    record = json.loads((GOLDEN / "squad" / "expected.json").read_text("utf-8"))[version]
    arguments = shlex.split(record["command"])[2:]
    command = [sys.executable, str(scorer.resolve()), *arguments]
    done = subprocess.run(command, cwd=GOLDEN / "squad", capture_output=True, text=True, check=True)
    return record, json.loads(done.stdout)


def conlleval(scorer: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The record, and what the scorer prints now."""
    record = json.loads((GOLDEN / "conll_expected.json").read_text("utf-8"))
    record["printed"] = {name: record[name] for name in CONLL.groupindex}
    predictions = (GOLDEN / "conll_predictions.txt").read_text("utf-8")
    done = subprocess.run(["perl", str(scorer)], input=predictions, capture_output=True, text=True, check=True)
    found = CONLL.search(done.stdout)
    assert found, f"{scorer} printed something else:\n{done.stdout}"
    return record, {name: json.loads(value) for name, value in found.groupdict().items()}


def glue() -> Iterator[tuple[str, Path, dict[str, Any], Any]]:
    """For each score on record: its name, the scorer's file, the record, and what the scorer says now."""
    for record in json.loads((GOLDEN / "glue" / "expected.json").read_text("utf-8"))["scores"]:
        module, _, name = record["function"].rpartition(".")
        function = getattr(importlib.import_module(module), name)
        with (GOLDEN / "glue" / record["file"]).open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        predictions, references = ([float(row[column]) for row in rows] for column in ("prediction", "reference"))
        result = function(references, predictions)
        file = Path(inspect.getsourcefile(inspect.unwrap(function)) or "")
        yield f"{record['file']} {name}", file, record, float(result[0] if isinstance(result, tuple) else result)


def compared(argument: str) -> Iterator[tuple[str, Path, dict[str, Any], Any]]:
    """What `glue` gives, for any scorer that the command line names."""
    if argument == "glue":
        yield from glue()
        return
    scorer = Path(argument)
    record, now = squad(scorer, SQUAD[scorer.name]) if scorer.name in SQUAD else conlleval(scorer)
    yield scorer.name, scorer, record, now


def main() -> int:
    """Compares every scorer that is named."""
    differ = 0
    for name, scorer, record, now in (found for argument in sys.argv[1:] for found in compared(argument)):
        sha256 = hashlib.sha256(scorer.read_bytes()).hexdigest()
        if sha256 != record["scorer_sha256"]:
            sys.stdout.write(f"{name}: SHA-256 {sha256}, on record {record['scorer_sha256']}\n")
        equal = now == record["printed"]
        differ += not equal
        verdict = "equal" if equal else f"printed {now}, on record {record['printed']}"
        sys.stdout.write(f"{name}: {verdict}\n")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
