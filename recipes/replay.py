r"""Checks a pre-training run: rebuilds the batch of a step and recomputes its losses.

    python recipes/replay.py --run runs/bert --corpus runs/corpus --step 1200

All flags: --help_all.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("replay")
