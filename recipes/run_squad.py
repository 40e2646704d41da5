# /// script
# requires-python = ">=3.11"
# dependencies = ["bert-repro"]
# ///
r"""Fine-tunes a model that answers questions about passages: SQuAD v1.1 and v2.0
(paper 4.2 and 4.3, Tables 2 and 3), or your own questions.

    python recipes/run_squad.py \
      --model_name_or_path google-bert/bert-base-uncased \
      --train_file train.csv --validation_file dev.csv --output_dir runs/faq

    accelerate launch recipes/run_squad.py \
      --model_name_or_path google-bert/bert-base-uncased --task_name squad \
      --do_train --do_eval --output_dir runs/squad

    python recipes/run_squad.py --model_name_or_path runs/squad \
      --test_file questions.json --output_dir runs/answers

    python recipes/run_squad.py \
      --model_name_or_path runs/seed1 --task_name squad \
      --ensemble_with runs/seed2 runs/seed3 --do_eval \
      --output_dir runs/ensemble

Without accelerate launch the same command runs on one device. Tasks: squad
(batch 32, 3 epochs), squad_v2 (batch 48, 2 epochs), learning rate 5e-5, all
the paper's. The data comes from the Hub (rajpurkar/squad, rajpurkar/squad_v2),
with --data_dir from the folder of train-v1.1.json, dev-v1.1.json ..., or from
--train_file, --validation_file, --test_file: SQuAD's .json, or .csv, .tsv and
.jsonl with question, context and answer (empty for none). Files and finished
models say themselves which task they are for. Writes predictions.json,
nbest_predictions.json and, for v2.0, null_odds.json, as the official scripts
take them. For v2.0 the threshold on the null score is chosen on the dev set,
as in the paper, and stored in the model; the scores at 0 are reported too.
--ensemble_with answers from the mean of the logits of several finished models
(Table 2's ensemble: 7 models).

Expected on dev: v1.1 EM 80.8 and F1 88.5 (BERT-base), 84.1 and 90.9
(BERT-large); v2.0 78.7 and 81.9 (BERT-large).
Cost: v1.1 has 88,000 windows of at most 384 tokens; three epochs take about
half an hour on one modern GPU (base).
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("run_squad")
