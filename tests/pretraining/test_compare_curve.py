"""The verdict on a run against a reference whose curve is known."""

import json
import math
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from running import recipe

from bert_repro.configs import Phase, PretrainingConfig
from bert_repro.pretraining.compare_curve import Curve, compare, curve_names, setting_differences

MILLION = 1_000_000


def reference_loss(tokens: float) -> float:
    return 4 + 5 * math.exp(-tokens / (3 * MILLION))


def write_log(path: Path, points: list[tuple[int, float | None]], metric: str = "eval_mlm_loss") -> Path:
    """A log as training writes it: a row of training, then a row of the evaluation, which has no tokens."""
    rows: list[dict[str, object]] = []
    for step, (tokens, value) in enumerate(points, start=1):
        rows.append({"step": step, "loss": 1.0, "tokens": tokens})
        rows.append({"step": step, metric: value}) if metric.startswith("eval") else rows[-1].update({metric: value})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    return write_log(
        tmp_path / "reference.jsonl", [(n * MILLION // 4, reference_loss(n * MILLION / 4)) for n in range(1, 81)]
    )


def verdict(run: Path, reference: Path, capfd: pytest.CaptureFixture[str], *more: object) -> tuple[int, str]:
    code = recipe("compare_curve", "--run", run, "--reference", reference, *more)
    captured = capfd.readouterr()
    return code, captured.out + captured.err


def test_the_same_curve_is_on_track_and_plotted(tmp_path, reference, capfd):
    (tmp_path / "run").mkdir()
    write_log(tmp_path / "run" / "train_log.jsonl", [(n * MILLION, reference_loss(n * MILLION)) for n in range(1, 8)])
    code, out = verdict(tmp_path / "run", reference, capfd)
    assert code == 0 and out.startswith("on track: ") and "held-out mlm loss" in out
    assert (tmp_path / "run" / "curve_comparison.png").stat().st_size > 1000
    noisy = write_log(tmp_path / "noisy.jsonl", [(n * MILLION, reference_loss(n * MILLION) + n % 2) for n in range(8)])
    code, out = verdict(noisy, noisy, capfd)
    assert code == 0 and "equal within 2%" in out, "an earlier point that was as good says nothing"


def test_a_run_with_another_vocabulary_is_refused(tmp_path, reference, capfd):
    (tmp_path / "run").mkdir()
    write_log(tmp_path / "run" / "train_log.jsonl", [(n * MILLION, 4.0) for n in range(1, 8)])
    (tmp_path / "run" / "config.json").write_text('{"vocab_size": 3000}')
    start = json.dumps({"step": 0, "tokens": 0, "eval_mlm_loss": 9.1}) + "\n"
    reference.write_text(start + reference.read_text())
    code, out = verdict(tmp_path / "run", reference, capfd)
    assert code == 2 and "8.01" in out and "9.10" in out


def test_a_run_at_half_the_pace_is_behind_by_half_its_tokens_and_at_twice_the_pace_ahead(tmp_path, reference, capfd):
    run = write_log(tmp_path / "run.jsonl", [(n * MILLION, reference_loss(n * MILLION / 2)) for n in range(1, 9)])
    code, out = verdict(run, reference, capfd)
    assert code == 4 and out.startswith("behind: ")
    lag = int(out.split(" tokens behind")[0].rpartition(" ")[2].replace(",", ""))
    assert lag == pytest.approx(4 * MILLION, rel=0.01)
    run = write_log(tmp_path / "run.jsonl", [(n * MILLION, reference_loss(n * MILLION * 2)) for n in range(1, 5)])
    code, out = verdict(run, reference, capfd)
    assert code == 0 and any(f"{tokens} tokens ahead" in out for tokens in ("3,999,999", "4,000,000", "4,000,001"))


@pytest.mark.parametrize("end", [7.0, None])
def test_a_loss_that_rises_again_or_is_not_finite_has_diverged(tmp_path, reference, capfd, end):
    good = [(n * MILLION, reference_loss(n * MILLION)) for n in range(1, 6)]
    run = write_log(tmp_path / "run.jsonl", [*good, (6 * MILLION, end)])
    code, out = verdict(run, reference, capfd)
    assert code == 5 and out.startswith("diverged")


def test_only_evaluations_of_equally_long_sequences_are_compared(tmp_path, capfd):
    def log(name: str, lengths: tuple[int, int, int]) -> Path:
        rows: list[dict[str, object]] = []
        for step, length in enumerate(lengths, start=1):
            held_out = 9.0 - step if length == 128 else 3.0
            rows.append({"step": step, "loss": 1.0, "mlm_loss": 7.5, "tokens": step * MILLION})
            rows.append({"step": step, "eval_mlm_loss": held_out, "eval_max_seq_length": length})
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    reference = log("reference.jsonl", (128, 128, 512))
    code, out = verdict(log("run.jsonl", (32, 128, 128)), reference, capfd)
    assert code == 0 and "after 2,000,000 tokens, held-out mlm loss is 7.000 in run and 7.000 in reference" in out
    code, out = verdict(log("early.jsonl", (32, 32, 32)), reference, capfd)  # the reference has none of 32 tokens
    assert code == 0 and out.startswith("on track: after 3,000,000 tokens, mlm loss is 7.500")


def test_what_cannot_be_compared_is_one_line_and_code_2(tmp_path, reference, capfd):
    (tmp_path / "other.jsonl").write_text('{"step": 1}\n')
    late = write_log(tmp_path / "late.jsonl", [(100 * MILLION, 4.0)])
    training = write_log(tmp_path / "training.jsonl", [(MILLION, 4.0)], "mlm_loss")
    for run, reason in [
        (tmp_path / "missing.jsonl", "no such file"),
        (tmp_path / "other.jsonl", "no row with tokens"),
        (late, "20,000,000"),
        (training, "eval_mlm_loss"),
    ]:
        code, out = verdict(run, reference, capfd)
        assert code == 2 and reason in out and len(out.splitlines()) == 1


# ------------------------------------------------------------------------------------------------- every ordering

# The reference falls from 8 to 4 within 10 million tokens and stays there until 20 million.
REFERENCE = Curve(np.array([0, 5, 10, 20]) * 1e6, np.array([8.0, 6.0, 4.0, 4.0]), "reference")


@pytest.mark.parametrize(
    ("tokens", "values", "verdict", "lag", "words"),
    [
        # At 5 million tokens the reference has 6.0.
        ([1, 5], [8.0, 6.1], "on track", 0, "equal within 2%"),
        ([1, 5], [8.0, 5.9], "on track", 0, "equal within 2%"),
        ([1, 5], [8.0, 5.0], "on track", -2_500_000, "16.7% lower, 2,500,000 tokens ahead"),
        ([1, 5], [8.0, 3.9], "on track", None, "lower than reference ever gets"),
        ([1, 5], [7.5, 6.2], "on track", 500_000, "3.3% higher, 500,000 tokens behind"),
        ([1, 5], [8.0, 7.0], "behind", 2_500_000, "16.7% higher, 2,500,000 tokens behind"),
        ([1, 5], [9.0, 9.0], "behind", 5_000_000, "5,000,000 tokens behind"),
        ([1, 5], [6.0, 7.0], "diverged", 2_500_000, "16.7% higher"),
        ([1, 5], [7.0, math.nan], "diverged", 5_000_000, "not finite"),
        # At its end, where the reference has 4.0 and nothing follows.
        ([1, 20], [8.0, 3.456], "on track", None, "13.6% lower, lower than reference ever gets"),
        ([1, 20], [8.0, 4.544], "behind", None, "13.6% higher"),
        ([1, 20], [8.0, 4.05], "on track", 0, "equal within 2%"),
        # A run that is longer than the reference is compared at its last point within.
        ([1, 20, 40], [8.0, 3.0, 1.0], "on track", None, "25.0% lower"),
        # Lower values at another place say nothing: both have risen again.
        ([1, 5, 15], [8.0, 3.0, 4.0], "on track", 0, "equal within 2%"),
    ],
)
def test_every_ordering_of_two_curves(tokens, values, verdict, lag, words):
    run = Curve(np.array(tokens) * 1e6, np.array(values), "run")
    comparison = compare(run, REFERENCE, "eval_mlm_loss")
    assert comparison.verdict == verdict
    assert words in comparison.sentence()
    if lag is not None:
        assert comparison.lag == pytest.approx(lag, abs=1)
    elif verdict == "on track":
        assert comparison.lag is None
    assert comparison.is_equal is (lag == 0)


def test_swapping_two_curves_swaps_who_is_better():
    better = Curve(REFERENCE.tokens, REFERENCE.values * 0.864, "better")
    ahead, behind = compare(better, REFERENCE, "mlm_loss"), compare(REFERENCE, better, "mlm_loss")
    assert "13.6% lower" in ahead.sentence() and not ahead.is_equal
    assert "15.7% higher" in behind.sentence() and behind.verdict == "behind"


# ------------------------------------------------------------------------------------------------- names and settings


def run_folder(path: Path, scale: float = 1.0, **settings: object) -> Path:
    path.mkdir(parents=True)
    points = [(n * MILLION, scale * reference_loss(n * MILLION)) for n in range(1, 8)]
    write_log(path / "train_log.jsonl", points)
    stored = asdict(PretrainingConfig(corpus="corpus", max_steps=7, **settings))
    (path / "results.json").write_text(json.dumps({"settings": stored}))
    return path


def test_settings_that_differ_are_listed_and_curves_have_the_names_of_their_folders(tmp_path, capfd):
    first = run_folder(tmp_path / "few-masks", 0.864, masked_lm_prob=0.15)
    second = run_folder(tmp_path / "many-masks", masked_lm_prob=0.4, num_hidden_layers=6, seed=7)
    code, out = verdict(first, second, capfd)
    assert code == 0 and "13.6% lower" in out and "equal" not in out
    assert "few-masks" in out and "many-masks" in out
    assert "--masked_lm_prob: 0.15 in few-masks, 0.4 in many-masks" in out
    assert "--num_hidden_layers" in out and "--seed" not in out
    assert "different tasks" in out, "another share of masks is another task"


def test_another_learning_rate_is_listed_and_does_not_change_the_task(tmp_path, capfd):
    first, second = run_folder(tmp_path / "a", learning_rate=1e-3), run_folder(tmp_path / "b", learning_rate=2e-3)
    _, out = verdict(first, second, capfd)
    assert "--learning_rate: 0.001 in a, 0.002 in b" in out and "different tasks" not in out


def test_phases_of_other_lengths_differ_and_of_other_steps_do_not():
    def settings(*phases: Phase) -> dict[str, object]:
        return json.loads(json.dumps(asdict(PretrainingConfig(corpus="c", phases=phases))))

    short, longer = settings(Phase(128, 10, 32)), settings(Phase(128, 20, 32))
    assert setting_differences(short, longer) == ()
    (difference,) = setting_differences(short, settings(Phase(512, 10, 32)))
    assert difference.name == "phases"
    assert setting_differences(short, None) is None


def test_curves_of_folders_with_the_same_name_are_told_apart(tmp_path):
    for part in ("first/run", "second/run"):
        (tmp_path / part).mkdir(parents=True)
    assert curve_names(str(tmp_path / "first/run"), str(tmp_path / "second/run")) == ("first/run", "second/run")
    assert curve_names(str(tmp_path / "first/run"), "docs/reference_curves/mini.jsonl") == ("run", "mini")


def test_a_log_without_settings_says_so(tmp_path, reference, capfd):
    _, out = verdict(reference, reference, capfd)
    assert "settings of these runs were not compared" in out
