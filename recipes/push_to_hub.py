r"""Uploads a finished model to the Hugging Face Hub: weights, code, card, results.

    hf auth login
    python recipes/push_to_hub.py --folder runs/mrpc --hub_model_id org/bert-mrpc --dry_run
    python recipes/push_to_hub.py --folder runs/mrpc --hub_model_id org/bert-mrpc --hub_private_repo

All flags: --help_all.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("push_to_hub")
