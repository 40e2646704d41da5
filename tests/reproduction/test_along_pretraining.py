"""Curves along pre-training: tokens at a checkpoint, who takes part, and the mean over the tasks of all points."""

import pytest
from made_up import entry, finetuning, pretraining

from bert_repro.reproduction.along_pretraining import MEAN_OF_TASKS, MNLI, curves_of, tokens_after
from bert_repro.reproduction.collect import collect
from bert_repro.reproduction.paper_tables import AllResults

PHASES = [{"steps": 100, "batch": 8, "max_seq_length": 32}, {"steps": 50, "batch": 4, "max_seq_length": 128}]


@pytest.mark.parametrize(("step", "tokens"), [(10, 2_560), (100, 25_600), (101, 26_112), (None, 51_200)])
def test_tokens_follow_the_phases(step, tokens):
    assert tokens_after(PHASES, step) == tokens


def fill(folder, tasks=("mnli", "sst2")):
    for name, settings, gain in (
        ("masked", {}, 0.1),
        ("ltr", {"left_to_right": True, "next_sentence_prediction": False}, 0.0),
    ):
        pretraining(folder, name, **settings)
        for step, right in ((1000, 0.5), (None, 0.6 + gain)):
            for task in tasks:
                split = "validation_matched" if task == "mnli" else "validation"
                finetuning(
                    folder, [entry(5, name, f"{task} {step}")], right, task=task, split=split, rows=400,
                    pretraining=name, step=step,
                )  # fmt: skip


def test_a_curve_has_the_score_at_the_tokens_of_each_checkpoint(tmp_path):
    fill(tmp_path)
    (panels,) = curves_of(AllResults(collect(tmp_path))).values()
    masked = panels[MNLI]["masked, with NSP"]
    assert masked.tokens == (1000 * 32 * 128, 2000 * 32 * 128)
    assert masked.means == pytest.approx((50, 70))
    assert masked.lows[1] < 70 < masked.highs[1]
    assert panels[MNLI]["left-to-right"].means == pytest.approx((50, 60))
    assert panels[MEAN_OF_TASKS]["masked, with NSP"].means == pytest.approx((50, 70))


def test_one_task_has_no_mean_and_one_objective_no_panel(tmp_path):
    fill(tmp_path / "a", tasks=("mnli",))
    (panels,) = curves_of(AllResults(collect(tmp_path / "a"))).values()
    assert set(panels) == {MNLI}
    pretraining(tmp_path / "b", "masked")
    finetuning(tmp_path / "b", [entry("5", "BERT-base", "MNLI-m")], 0.5, rows=400, pretraining="masked", step=1000)
    assert curves_of(AllResults(collect(tmp_path / "b"))) == {}
