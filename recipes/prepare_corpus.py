"""Turn raw text into a prepared corpus: documents, text passages, sentences, token ids (paper 3.1).

    python recipes/prepare_corpus.py --input_files corpus/ --tokenizer runs/tokenizer --num_proc 2 \
      --output_dir runs/corpus

    python recipes/prepare_corpus.py --input_files wikimedia/wikipedia --hub_config 20231101.en \
      --tokenizer google-bert/bert-base-uncased --num_proc 16 --output_dir runs/wikipedia

Input as in recipes/train_tokenizer.py. Headings, lists, tables and debris are dropped and counted, as the paper keeps
the text passages of Wikipedia only. The result does not depend on `--num_proc`; an interrupted preparation goes on
where it stopped.

Many machines with a common disk share the work, for example as a SLURM array of 1-16; the joined corpus is the one that
a single machine would have made:

    python recipes/prepare_corpus.py ... --output_dir runs/corpus --shard $SLURM_ARRAY_TASK_ID/16
    python recipes/prepare_corpus.py ... --output_dir runs/corpus --join    # when all have finished

Expected: a memory-mapped `datasets` folder with `manifest.json`, which says what was kept and dropped. The paper's
corpus has 3,300 million words. Cost: about 0.12 million words a second and core, so 8 hours on one core for as
many.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("prepare_corpus", __doc__)
