r"""Turns raw text into a corpus for pre-training: documents, sentences, token ids.

    python recipes/prepare_corpus.py --input_files corpus/ --tokenizer runs/tokenizer \
      --num_proc 2 --output_dir runs/corpus

All flags: --help_all.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("prepare_corpus")
