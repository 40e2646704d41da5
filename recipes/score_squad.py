r"""Scores SQuAD predictions as the official scripts do.

    python recipes/score_squad.py --data_file dev-v1.1.json --predictions_file predictions.json

All flags: --help_all.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("score_squad")
