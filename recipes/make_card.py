r"""Rewrites the model card of a finished run with facts that the run cannot know.

    python recipes/make_card.py --folder runs/mrpc --base_model google-bert/bert-base-uncased

All flags: --help_all.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("make_card")
