r"""Fine-tunes a model that chooses one of several: SWAG, or your own rows (paper 4.4).

    python recipes/run_swag.py --model_name_or_path google-bert/bert-base-uncased \
      --train_file train.jsonl --validation_file dev.jsonl --output_dir runs/my-choices

All flags: --help_all. On several devices: accelerate launch recipes/run_swag.py ...
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("run_swag")
