r"""Checks the examples of a pre-training before compute is spent on them.

    python recipes/audit_pretraining_data.py --corpus runs/corpus --output_dir runs/audit

All flags: --help_all.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("audit_pretraining_data")
