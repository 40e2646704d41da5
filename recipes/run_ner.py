# /// script
# requires-python = ">=3.11"
# dependencies = ["bert-repro"]
# ///
r"""Fine-tunes a tagger of words: your own tagged text, or CoNLL-2003 (paper 5.3,
Table 7).

    python recipes/run_ner.py \
      --model_name_or_path google-bert/bert-base-cased \
      --train_file my_train.txt --validation_file my_dev.txt \
      --output_dir runs/my-tagger

    accelerate launch recipes/run_ner.py \
      --model_name_or_path google-bert/bert-base-cased --data_dir conll2003 \
      --do_train --do_eval --do_predict --output_dir runs/ner

--data_dir holds the official eng.train, eng.testa, eng.testb (IOB1 is read as
BIO). Without it the Hub's eriktks/conll2003 is used, which has no document
boundaries: sentences are then read alone, and the results say so.
--ner_context tile|centred|sentence says what is read at once. The test set has
tags, so --do_predict scores it too. predictions.*.txt are in the columns that
conlleval takes.

--feature_based concat_last_four, or another row of Table 7, trains a two-layer
BiLSTM on hidden states of the frozen encoder, which are computed once and kept
in --feature_cache_dir (16 GB with BERT-base) for every row, learning rate and
restart:

    python recipes/run_ner.py \
      --model_name_or_path google-bert/bert-base-cased \
      --data_dir conll2003 --feature_based last --learning_rate 1e-3 \
      --bias_correction true --do_train --do_eval --output_dir runs/features

Expected: entity F1 96.4 dev, 92.4 test (BERT-base, cased, mean of 5 restarts).
Cost: three passes over 0.26 million tokens.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("run_ner")
