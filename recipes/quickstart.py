"""The whole road in miniature: text, vocabulary, pre-training, fine-tuning, publishing (paper 3 and 4, made small).

    make quickstart
    python recipes/quickstart.py --seed 1

It reads the docstrings of the standard library and of the packages this project depends on (parsed, never imported),
so nothing is downloaded. Everything is written to runs/quickstart, which a second run replaces.

Expected: masked tokens of unseen modules guessed at least twice as well as by the best constant guess; a classifier
that tells from which package a docstring comes, at least 15 points above the majority class and above the same network
not pre-trained. It ends with a table, and with exit code 1 when one of these is not reached.
Cost: under 5 minutes on two cores.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("quickstart", __doc__)
