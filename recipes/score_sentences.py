r"""Scores sentences by masked LM, or compares minimal pairs (BLiMP).

    python recipes/score_sentences.py --model_name_or_path google-bert/bert-base-uncased --input_file texts.txt \
      --output_dir runs/scores

All flags: --help_all.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("score_sentences")
