"""A study whose runs take a moment and learn nothing; also run as a script, in processes of its own.

python toy_study.py OUTPUT LOG [--seconds S] [flags of run_study]
"""

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from bert_repro import cli
from bert_repro.studies import engine


class ToyRecipe:
    """Stands in for a recipe: writes what a run leaves, with a score that its settings decide, and logs its start."""

    def __init__(self, recipe: cli.Recipe, log: Path, seconds: float) -> None:
        self.config, self.log, self.seconds = recipe.config, log, seconds

    def load(self) -> Any:
        return self.run

    def run(self, config: Any) -> None:
        folder = Path(config.output_dir)
        self._say(f"begin {folder.name}")
        time.sleep(self.seconds)
        name = folder.name + Path(getattr(config, "model_name_or_path", None) or "").name
        score = int(hashlib.sha256(name.encode()).hexdigest()[:4], 16) / 65536
        results = {"settings": {"output_dir": str(folder), "seed": config.seed}, "metrics": {"accuracy": score}}
        (folder / "model.safetensors").write_bytes(b"weights")
        (folder / "results.json").write_text(json.dumps(results))
        self._say(f"end {folder.name}")

    def _say(self, line: str) -> None:
        with self.log.open("a") as file:
            file.write(line + "\n")


def install(log: Path, seconds: float = 0.0) -> None:
    """Makes the engine run toys."""
    for name in ("run_pretraining", "run_glue", "run_squad", "run_ner"):
        recipe: Any = ToyRecipe(cli.RECIPES[name], log, seconds)
        engine.RECIPES = {**engine.RECIPES, name: recipe}
    engine.evidence = lambda config: {"examples.json": {}}
    engine.corpus_fingerprint = lambda corpus: "toy corpus"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("log", type=Path)
    parser.add_argument("--seconds", type=float, default=0.0)
    known, flags = parser.parse_known_args()
    install(known.log, known.seconds)
    cli.main("run_study", argv=flags or sys.argv[2:])
