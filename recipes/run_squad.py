r"""Fine-tunes a model that answers questions: SQuAD, or your own (paper 4.2, 4.3).

    python recipes/run_squad.py --model_name_or_path google-bert/bert-base-uncased \
      --train_file train.csv --validation_file dev.csv --output_dir runs/faq

All flags: --help_all. On several devices: accelerate launch recipes/run_squad.py ...
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("run_squad")
