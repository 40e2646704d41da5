r"""Converts a checkpoint of the original TensorFlow code, or an old pytorch_model.bin.

    python recipes/convert_checkpoint.py --checkpoint uncased_L-12_H-768_A-12 --gelu erf --output_dir runs/bert-base

All flags: --help_all.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("convert_checkpoint")
