"""Make the model card of a finished run anew, with facts that the run itself cannot know.

    python recipes/make_card.py --folder runs/mrpc --base_model google-bert/bert-base-uncased

    python recipes/make_card.py --folder runs/cola --same_runs runs/cola-1 runs/cola-2 \
      --output_file model_cards/bert-cola.md

Every run writes a card by itself; its figures come from results.json and train_log.jsonl only. What may be added: the
base model's id on the Hub where the run started from a local copy, languages and licences, a sentence about the data,
and runs of other seeds, of which mean and deviation are shown. The metadata is checked. Cost: seconds.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("make_card", __doc__)
