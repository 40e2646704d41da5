r"""Writes vectors of a frozen BERT for the texts of a file (paper 5.3, Table 7).

    python recipes/extract_features.py --model_name_or_path google-bert/bert-base-cased --input_file texts.txt \
      --layers last_four --output_file features.parquet

All flags: --help_all.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("extract_features")
