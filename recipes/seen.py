r"""Finds a text in a corpus and the steps at which a pre-training run read it.

    python recipes/seen.py "the green river runs" --run runs/bert --corpus runs/corpus

All flags: --help_all.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("seen")
