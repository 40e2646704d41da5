"""What is kept of a run for the report: thinned loss curves; and what an interrupted sweep leaves."""

import json

import pytest

from bert_repro.errors import UserError
from bert_repro.reproduction.run_store import CURVE_POINTS, RunStore, loss_curve
from bert_repro.reproduction.size_presets import SIZE_PRESETS
from bert_repro.reproduction.suite import plan_runs


def log(folder, rows):
    (folder / "train_log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_curve_is_thinned_by_means_of_its_own_loss(tmp_path):
    rows = [{"step": step, "loss": 9.0, "mlm_loss": float(step), "learning_rate": 0.1} for step in range(1, 1001)]
    log(tmp_path, [*rows, {"step": 500, "eval_mlm_loss": 2.0, "eval_nsp_loss": 0.5}])
    curve = loss_curve(tmp_path)
    assert len(curve["training"]["step"]) == CURVE_POINTS and curve["training"]["step"][-1] == 1000
    assert curve["training"]["mlm_loss"][0] == 3.0  # the mean of steps 1 to 5
    assert curve["heldout"] == {"step": [500], "mlm_loss": [2.0], "nsp_loss": [0.5]}
    log(tmp_path, [{"step": 1, "loss": 4.0, "learning_rate": 0.1}, {"step": 1, "eval_lm_loss": 3.0}])
    curve = loss_curve(tmp_path)
    assert curve == {"training": {"step": [1], "lm_loss": [4.0]}, "heldout": {"step": [1], "lm_loss": [3.0]}}


def test_a_run_without_a_log_has_no_curve(tmp_path):
    with pytest.raises(UserError, match="logs no training step"):
        loss_curve(tmp_path)


def test_an_interrupted_sweep_resumes_and_leaves_no_weights(tmp_path):
    store = RunStore(str(tmp_path), None)
    run = next(run for run in plan_runs(["1"], SIZE_PRESETS["paper"], "corpus", str) if run.start)
    weights = store.folder(run) / "sweep" / "lr5e-05-batch32-epochs3" / "seed1" / "model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"weights")
    assert not store.can_resume(run)
    (store.folder(run) / "sweep" / "sweep.json").write_text("{}")
    assert store.can_resume(run)
    store.drop_weights(run)
    assert not weights.exists()
