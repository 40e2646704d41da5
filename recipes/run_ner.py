r"""Fine-tunes a tagger of words: CoNLL-2003, or your own tagged text (paper 5.3).

    python recipes/run_ner.py --model_name_or_path google-bert/bert-base-cased \
      --train_file my_train.txt --validation_file my_dev.txt --output_dir runs/my-tagger

All flags: --help_all. On several devices: accelerate launch recipes/run_ner.py ...
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("run_ner")
