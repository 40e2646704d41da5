# /// script
# requires-python = ">=3.11"
# dependencies = ["bert-repro"]
# ///
r"""Writes the hidden states of a frozen BERT for every text of a file (the
feature-based approach of paper 5.3, Table 7).

    python recipes/extract_features.py \
      --input_file texts.txt --layers last_four \
      --model_name_or_path google-bert/bert-base-cased \
      --output_file features.parquet

--input_file has one text per line, or is .jsonl with the text in
--text_column. --layers takes embeddings, last, second_to_last, last_four, all,
or indices such as -1 -2; several are joined by --combine concat|sum.
--pooling none keeps a vector per token, cls and mean make one vector per text.
The output is Parquet with a row per text. Memory does not grow with the file.

Cost: one forward pass of the encoder over the text, without padding; runs in
one process.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("extract_features")
