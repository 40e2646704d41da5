# /// script
# requires-python = ">=3.11"
# dependencies = ["bert-repro"]
# ///
r"""Uploads a prepared corpus to the Hugging Face Hub as a dataset, with a card
and its manifest. A pre-training pulls it by its id, on any machine.

    hf auth login
    python recipes/push_corpus.py \
      --corpus runs/corpus --hub_dataset_id org/wiki \
      --license cc-by-sa-4.0 --language en --dry_run
    python recipes/push_corpus.py \
      --corpus runs/corpus --hub_dataset_id org/wiki \
      --license cc-by-sa-4.0 --language en --hub_private_repo

    python recipes/run_pretraining.py --corpus org/wiki --output_dir runs/bert

The corpus is compared with its manifest before it is sent, and again where it
arrives. Of the paths of source files the last part is sent, no more. The texts
can be read back from the ids: upload only what you may pass on, under the
license that the texts have.

Pushed again, an unchanged corpus makes no commit, and a broken upload resumes.
The login is the Hub's own (hf auth login, or HF_TOKEN).
Cost: the upload; two bytes a token.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("push_corpus")
