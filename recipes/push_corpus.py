r"""Uploads a prepared corpus to the Hugging Face Hub as a dataset.

    hf auth login
    python recipes/push_corpus.py --corpus runs/corpus --hub_dataset_id org/wiki --license cc-by-sa-4.0 --language en

All flags: --help_all.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("push_corpus")
