# /// script
# requires-python = ">=3.11"
# dependencies = ["bert-repro"]
# ///
r"""Scores a file of SQuAD predictions, number by number as the official scripts
do.

    python recipes/score_squad.py --data_file dev-v1.1.json \
      --predictions_file predictions.json

    python recipes/score_squad.py \
      --task_name squad_v2 --data_file dev-v2.0.json \
      --predictions_file predictions.json --null_odds_file null_odds.json

Scores are fractions; the official scripts print them times 100. The texts are
scored as they are, which is the v2.0 script's --na-prob-thresh at infinity;
with null odds its best_exact and best_f1 and their thresholds are added.
Cost: seconds.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("score_squad")
