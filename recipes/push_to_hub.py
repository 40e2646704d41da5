# /// script
# requires-python = ">=3.11"
# dependencies = ["bert-repro"]
# ///
r"""Uploads a finished model to the Hugging Face Hub: weights, code, card and
results, in one commit.

    hf auth login
    python recipes/push_to_hub.py \
      --folder runs/mrpc --hub_model_id org/bert-mrpc \
      --dry_run
    python recipes/push_to_hub.py \
      --folder runs/mrpc --hub_model_id org/bert-mrpc \
      --hub_private_repo

    python recipes/push_to_hub.py \
      --folder runs/base --hub_model_id org/bert-base \
      --checkpoints

--dry_run lists what would be sent and checks the card's metadata, without
asking the Hub. --checkpoints uploads every checkpoint of the run as a revision
named after it (from_pretrained("org/bert-base", revision="step-100000"));
run_pretraining --push_to_hub --hub_strategy every_save does so while it
trains. Optimizer states, predictions and what else lies in the folder are not
uploaded.

Pushed again, an unchanged folder makes no commit, and a broken upload resumes.
Every file's checksum is compared afterwards. The login is the Hub's own (hf
auth login, or HF_TOKEN); no recipe takes a token.
Cost: the upload.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("push_to_hub")
