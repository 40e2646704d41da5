"""Table 7 for real, in miniature: killed three times, its records are those of a study that nobody touched."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from families import families

SCALE = """
description: tiny
base: tiny
sizes: {tiny: {num_hidden_layers: 4, hidden_size: 16, num_attention_heads: 2}}
pretraining: {max_steps: 12, train_batch_size: 8, max_seq_length: 64, max_eval_sequences: 16, learning_rate: 1e-3}
checkpoints: [4, 8, 12]
tasks:
  {mnli: {}, qnli: {}, mrpc: {}, sst2: {}, squad: {}, conll2003: {max_steps: 4, max_seq_length: 64},
   features: {max_steps: 4, max_seq_length: 64, bilstm_size: 8}}
seeds: [1]
bilstm_size: 8
"""
RUNS = 1 + 1 + 6


def start(world: Any, conll: object, folder: Path) -> subprocess.Popen[bytes]:
    folder.mkdir(exist_ok=True)
    (folder / "scale.yaml").write_text(SCALE)
    recipe = Path(__file__).parents[2] / "recipes" / "run_study.py"
    flags = ["--table", "7", "--size_preset", folder / "scale.yaml", "--corpus", world.corpus, "--conll_dir", conll]
    return subprocess.Popen(
        [sys.executable, str(recipe), *map(str, flags), "--output_dir", str(folder / "study")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
    )


def scores(folder: Path) -> dict[str, Any]:
    found = {path.parent.name: json.loads(path.read_text()) for path in folder.glob("study/records/*/results.json")}
    return {name: (record["metrics"], record["study"]) for name, record in found.items()}


@pytest.mark.slow
def test_killed_three_times_the_scores_are_the_same(world: Any, tmp_path: Path) -> None:
    conll = Path(str(families(world, tmp_path)["run_ner"].flags[-1]))
    shutil.copy(conll / "eng.testa", conll / "eng.testb")
    assert start(world, conll, tmp_path / "complete").wait() == 0
    complete = scores(tmp_path / "complete")
    assert len(complete) == RUNS
    killed = tmp_path / "killed"
    runs = killed / "study" / "runs"
    for sign in ("pretraining-*/checkpoints/step-4", "conll2003-*/status.json", "features-*/status.json"):
        process = start(world, conll, killed)
        limit = time.monotonic() + 600
        while not list(runs.glob(sign)):
            assert time.monotonic() < limit
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert start(world, conll, killed).wait() == 0
    assert {name: metrics for name, (metrics, _) in scores(killed).items()} == {
        name: metrics for name, (metrics, _) in complete.items()
    }
