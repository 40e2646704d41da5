# /// script
# requires-python = ">=3.11"
# dependencies = ["bert-repro"]
# ///
r"""Writes what a fine-tuned model says about texts: labels, numbers, tags, answers
or choices, each with its probability. The model knows which task it is for.

    echo "Wo bleibt mein Paket?" | \
      python recipes/predict.py --model_name_or_path runs/my-classifier

    python recipes/predict.py --model_name_or_path runs/my-classifier \
      --input_file new.csv --id_column ticket --output_file answers.csv

    python recipes/predict.py --model_name_or_path runs/my-answers \
      --input_file questions.txt --context_file handbook.txt \
      --output_file answers.jsonl

Input: a text on each line (standard input, .txt), or .csv, .tsv or .jsonl with
the columns the model was trained on, which its folder remembers (or text, or
text_a and text_b); question and context; sent1, sent2, ending0, ending1 ... As
many rows come out as go in. A tagger divides plain text into words and
punctuation; --input_format conll reads a word on each line. Output:
CSV, or JSON lines with --output_format jsonl or a file that ends in .jsonl: id
or index, the texts, the right answer where the input has it, the prediction
and its probability. Messages go to the standard error.

Cost: loading the model, then one forward pass; runs in one process.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("predict")
