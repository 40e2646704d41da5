r"""Writes the paper's tables with our numbers next to them.

    python recipes/report.py --runs_dir runs/study/records --report_dir runs/report

All flags: --help_all.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("report")
