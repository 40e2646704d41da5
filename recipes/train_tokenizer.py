# /// script
# requires-python = ">=3.11"
# dependencies = ["bert-repro"]
# ///
r"""Trains a WordPiece vocabulary (paper 3: "WordPiece embeddings with a 30,000
token vocabulary").

    python recipes/train_tokenizer.py \
      --input_files corpus/ --vocab_size 30522 \
      --output_dir runs/tokenizer

Input: .txt with a blank line between documents, .jsonl (also .gz, .xz),
.parquet, folders of these, or a dataset id of the Hub. --lowercase false makes
a cased vocabulary; --max_words learns from the beginning of the input only.

Expected: a folder that AutoTokenizer loads; the same input gives the same
vocabulary, ids included. The paper's own vocabularies need no training: name a
vocab.txt or a Hub id such as google-bert/bert-base-uncased wherever a
tokenizer is asked for.
Cost: about a minute for ten million words on one core.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("train_tokenizer")
