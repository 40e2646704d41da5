# /// script
# requires-python = ">=3.11"
# dependencies = ["bert-repro"]
# ///
r"""Runs the complete path in miniature: text, vocabulary, pre-training,
fine-tuning, a published model (paper 3 and 4, made small).

    python recipes/quickstart.py
    python recipes/quickstart.py --seed 1

It reads the docstrings of the standard library and of installed packages
(parsed, never imported), so nothing is downloaded. Everything is written to
runs/quickstart, which a second run replaces.

Expected: masked tokens of unseen modules predicted at least twice as well as
by the best constant guess; a classifier that names the package of a docstring
at least 10 points above the majority class and above the same network without
pre-training. It ends with a table, and with exit code 1 when one of these is
not reached.
Cost: under 5 minutes on two cores.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("quickstart")
