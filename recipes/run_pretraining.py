r"""Pre-trains BERT, from scratch or from a checkpoint (paper 3.1, A.2).

    python recipes/run_pretraining.py --preset cpu-trial --corpus runs/corpus --output_dir runs/trial

All flags: --help_all. On several devices: accelerate launch recipes/run_pretraining.py ...
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("run_pretraining")
