r"""Says whether a pre-training run is on track: its log next to a reference curve.

    python recipes/compare_curve.py --run runs/mini --reference docs/reference_curves/bert-repro-mini.jsonl

All flags: --help_all.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("compare_curve")
