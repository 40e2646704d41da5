# /// script
# requires-python = ">=3.11"
# dependencies = ["bert-repro"]
# ///
r"""Fine-tunes a text classifier or regressor: your own .csv, .tsv or .jsonl files,
or a task of GLUE (paper 4.1, Table 1).

    python recipes/run_glue.py \
      --model_name_or_path google-bert/bert-base-uncased \
      --train_file train.csv --validation_file dev.csv \
      --output_dir runs/my-classifier

    accelerate launch recipes/run_glue.py \
      --model_name_or_path google-bert/bert-base-uncased --task_name mrpc \
      --do_train --do_eval --do_predict --output_dir runs/mrpc

Without accelerate launch the same command runs on one device. Files have a
column "text" (or text_a and text_b) and a column "label"; --text_columns and
--label_column name others. Without --do_train, --do_eval and --do_predict a
run does what files are given for (--train_file, --validation_file,
--test_file); --validation_fraction 0.1 holds out dev rows of --train_file.
Tasks: cola sst2 mrpc stsb qqp mnli qnli rte wnli ax, from the Hub
(nyu-mll/glue) or, with --data_dir, from the folder that holds the official
CoLA/, SST-2/, MRPC/ ... Batch 32, 3 epochs (the paper's). --preset glue-sweep
takes the best on dev of the learning rates 5e-5, 4e-5, 3e-5 and 2e-5,
--num_restarts 5 of five seeds; the same command, repeated, resumes.

Expected, BERT-base on dev (Table 5): accuracy 84.4 MNLI-m, 86.7 MRPC, 92.7
SST-2. On the leaderboard's test sets (Table 1): 71.2 QQP, 90.5 QNLI, 93.5
SST-2, 52.1 CoLA, 85.8 STS-B, 88.9 MRPC (F1), 66.4 RTE. Small sets differ by
points from seed to seed.
Cost: on one modern GPU a minute for RTE or MRPC, under an hour for MNLI.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("run_glue")
