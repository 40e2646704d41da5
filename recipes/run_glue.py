r"""Fine-tunes a classifier of texts: a task of GLUE, or your own files (paper 4.1).

    python recipes/run_glue.py --model_name_or_path google-bert/bert-base-uncased \
      --train_file train.csv --validation_file dev.csv --output_dir runs/my-classifier

All flags: --help_all. On several devices: accelerate launch recipes/run_glue.py ...
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("run_glue")
