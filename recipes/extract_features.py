"""Write the features of a frozen BERT for every text of a file (the feature-based approach of paper 5.3, Table 7).

    python recipes/extract_features.py --model_name_or_path google-bert/bert-base-cased \
      --input_file texts.txt --layers last_four --output_file features.parquet

`--input_file` has one text per line, or is `.jsonl` with the text in `--text_column`. `--layers` takes `embeddings`,
`last`, `second_to_last`, `last_four`, `all`, or indices such as `-1 -2`; several are joined by `--combine concat|sum`.
`--pooling none` keeps a vector per token, `cls` and `mean` make one vector per text. The Parquet file has a row per
text: `features`, and `tokens` where there is a vector for each. Memory stays flat.

Cost: one pass of the encoder over the text, without padding; runs in one process.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("extract_features", __doc__)
