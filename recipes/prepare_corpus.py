# /// script
# requires-python = ">=3.11"
# dependencies = ["bert-repro"]
# ///
r"""Turns raw text into a prepared corpus: documents, text passages, sentences,
token ids (paper 3.1).

    python recipes/prepare_corpus.py --input_files corpus/ --num_proc 2 \
      --tokenizer runs/tokenizer --output_dir runs/corpus

    python recipes/prepare_corpus.py --input_files wikimedia/wikipedia \
      --hub_config 20231101.en --tokenizer google-bert/bert-base-uncased \
      --num_proc 16 --output_dir runs/wikipedia

Input as for train_tokenizer. Headings, lists, tables and debris are dropped
and counted, as the paper keeps only the text passages of Wikipedia. The result
does not depend on --num_proc; an interrupted preparation resumes.

Several machines with a common disk can share the work, for example a SLURM
array of 1-16; the joined corpus equals that of a single machine:

    python recipes/prepare_corpus.py ... --shard $SLURM_ARRAY_TASK_ID/16
    python recipes/prepare_corpus.py ... --join    # when all have finished

Expected: a memory-mapped datasets folder with manifest.json, which says what
was kept and dropped. The paper's corpus has 3,300 million words.
Cost: about 0.12 million words a second and core, so 8 hours on one core for
the paper's corpus.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("prepare_corpus")
