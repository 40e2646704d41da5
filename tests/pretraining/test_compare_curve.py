"""The verdict on a run against a reference whose curve is known."""

import json
import math
from pathlib import Path

import pytest
from running import recipe

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
    assert code == 0 and out.startswith("on track: held-out mlm loss")
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
    assert code == 2 and "MLM loss of 8.01 and the reference begins at 9.10" in out


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
    assert code == 0 and "held-out mlm loss 7.000 after 2,000,000 tokens, reference 7.000" in out
    code, out = verdict(log("early.jsonl", (32, 32, 32)), reference, capfd)  # the reference has none of 32 tokens
    assert code == 0 and out.startswith("on track: mlm loss 7.500 after 3,000,000 tokens")


def test_what_cannot_be_compared_is_one_line_and_code_2(tmp_path, reference, capfd):
    (tmp_path / "other.jsonl").write_text('{"step": 1}\n')
    late = write_log(tmp_path / "late.jsonl", [(100 * MILLION, 4.0)])
    training = write_log(tmp_path / "training.jsonl", [(MILLION, 4.0)], "mlm_loss")
    for run, reason in [
        (tmp_path / "missing.jsonl", "no such file"),
        (tmp_path / "other.jsonl", "no row with tokens"),
        (late, "the reference ends after 20,000,000"),
        (training, "in common"),
    ]:
        code, out = verdict(run, reference, capfd)
        assert code == 2 and reason in out and len(out.splitlines()) == 1
