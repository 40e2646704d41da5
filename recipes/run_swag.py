# /// script
# requires-python = ">=3.11"
# dependencies = ["bert-repro"]
# ///
r"""Fine-tunes a model that chooses the right one of several endings: SWAG with its
four (paper 4.4, Table 4), or your own rows with two or more.

    python recipes/run_swag.py \
      --model_name_or_path google-bert/bert-base-uncased \
      --train_file train.jsonl --validation_file dev.jsonl \
      --output_dir runs/my-choices

    accelerate launch recipes/run_swag.py \
      --model_name_or_path google-bert/bert-base-uncased \
      --do_train --do_eval --output_dir runs/swag

Without accelerate launch the same command runs on one device. The data comes
from the Hub (allenai/swag) or, with --data_dir, from the official train.csv
and val.csv. Your own .csv, .tsv or .jsonl files have the columns sent1 (a
sentence or a question), sent2 (the start of the next, may be empty), ending0,
ending1 and as many more as there are, and label (the right ending, from 0).
Batch 16, 3 epochs, learning rate 2e-5 (the paper's).

Expected: 81.6 dev accuracy (BERT-base), 86.6 (BERT-large); chance is 25.
Cost: 13,800 steps of 16 examples, four sequences each; the paper says at most
an hour on one Cloud TPU for any of its tasks.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("run_swag")
