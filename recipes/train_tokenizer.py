r"""Trains a WordPiece vocabulary on raw text.

    python recipes/train_tokenizer.py --input_files corpus/ --vocab_size 30522 --output_dir runs/tokenizer

All flags: --help_all.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("train_tokenizer")
