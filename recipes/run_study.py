r"""Repeats tables of the paper: makes the runs behind Tables 1 to 8 and Figure 5.

    python recipes/run_study.py --table 5 --size_preset trial --corpus runs/corpus --glue_dir glue --squad_dir squad \
      --output_dir runs/study

All flags: --help_all.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("run_study")
