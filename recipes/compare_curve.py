# /// script
# requires-python = ">=3.11"
# dependencies = ["bert-repro"]
# ///
r"""Says whether a pre-training run is on track: its log beside a reference curve,
at equal numbers of tokens.

    python recipes/compare_curve.py --run runs/mini \
      --reference docs/reference_curves/bert-repro-mini.jsonl

--run is the output folder of a run, finished or not, or its train_log.jsonl.
Losses compare only between runs with the same vocabulary and held-out
documents; for other data give a run of your own as --reference.

Expected: one line, "on track", "behind by N tokens" or "diverged", and a plot
of both curves. Exit codes: 0 on track; 4 behind by more than --tolerance of
the run's tokens; 5 diverged: not finite, or worse than its own best and than
the reference by 0.5 nats or 10 points of accuracy.
Cost: a second.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("compare_curve")
