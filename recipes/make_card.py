# /// script
# requires-python = ">=3.11"
# dependencies = ["bert-repro"]
# ///
r"""Rewrites the model card of a finished run with facts that the run itself cannot
know.

    python recipes/make_card.py --folder runs/mrpc \
      --base_model google-bert/bert-base-uncased

Every run writes a card; its numbers come from results.json and train_log.jsonl
only. What may be added: the base model's id on the Hub where the run started
from a local copy, languages, the license of the weights, and a sentence about
the data.
Cost: seconds.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("make_card")
