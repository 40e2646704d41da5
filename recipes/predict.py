r"""Predicts with a fine-tuned model: labels, numbers, tags, answers or choices.

    echo "Wo bleibt mein Paket?" | python recipes/predict.py --model_name_or_path runs/my-classifier

All flags: --help_all.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("predict")
