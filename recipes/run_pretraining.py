# /// script
# requires-python = ">=3.11"
# dependencies = ["bert-repro"]
# ///
r"""Pre-trains BERT with masked LM and next sentence prediction (paper 3.1, A.2),
from scratch or from a checkpoint.

    accelerate launch recipes/run_pretraining.py --preset paper-base \
      --corpus runs/corpus --mixed_precision bf16 --save_steps 10000 \
      --output_dir runs/base

    python recipes/run_pretraining.py --preset cpu-trial --corpus runs/corpus \
      --output_dir runs/trial

    python recipes/run_pretraining.py --model_name_or_path \
      google-bert/bert-base-uncased --corpus runs/my-corpus \
      --max_steps 10000 --learning_rate 3e-5 --output_dir runs/my-domain

Without accelerate launch the same command runs on one device. After an
interruption --resume_from_checkpoint latest continues exactly as if there had
been none. Without NSP (Table 5): --next_sentence_prediction false. --dry_run
prints tokens, FLOPs and expected time and stops.

Expected: held-out metrics in results.json. The paper states NSP accuracy
97-98% (footnote 5) and, for Table 6's models, masked-LM perplexities from 5.84
(3 layers) over 3.99 (BERT-base) to 3.23 (BERT-large), on data it does not
describe.
Cost: the paper took 4 days on 16 TPU chips for BERT-base, on 64 for
BERT-large; --preset cpu-trial takes about an hour on two cores. The log says
tokens per second and the time left.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("run_pretraining")
