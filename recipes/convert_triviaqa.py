# /// script
# requires-python = ">=3.11"
# dependencies = ["bert-repro"]
# ///
r"""Converts TriviaQA to SQuAD's JSON, for the step before SQuAD v1.1 (paper 4.2,
Table 2, footnote 12).

    python recipes/convert_triviaqa.py --evidence_dir triviaqa-rc/evidence \
      --qa_file triviaqa-rc/qa/wikipedia-train.json \
      --output_file runs/triviaqa/train.json

    accelerate launch recipes/run_squad.py \
      --model_name_or_path google-bert/bert-large-uncased --task_name squad \
      --train_file runs/triviaqa/train.json --do_train \
      --output_dir runs/triviaqa/model

    accelerate launch recipes/run_squad.py \
      --model_name_or_path runs/triviaqa/model --task_name squad \
      --do_train --do_eval --output_dir runs/squad

A passage is the first 400 tokens of a document; documents without a name of
the answer there are left out and counted. The paper uses TriviaQA-Wiki; the
files of the web part are read too.

Expected after the third command: dev EM 84.2 and F1 91.1 (BERT-large; 84.1 and
90.9 without this step).
Cost: the conversion reads each document once, minutes; the second command is a
run about the size of SQuAD's own.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("convert_triviaqa")
