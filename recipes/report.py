# /// script
# requires-python = ">=3.11"
# dependencies = ["bert-repro"]
# ///
r"""Writes the reproduction report: every table of the paper with our numbers
beside its own, and how certain they are.

    python recipes/report.py

Reads every results.json below --runs_dir (runs/study/records by default), with
the examples.json and curve.json beside it, as run_study leaves them, and
writes report.md and plots/ to --report_dir. It begins with which orderings of
the paper appear in our numbers, which are reversed, inconclusive or failed.
The same results give the same bytes. A results.json of another run is counted
and fills no entry; to give it one, add to it "study": {"size_preset": "mine",
"table_entries": [{"table": 2, "row": "BERT-base", "column": "dev F1"}]}.

Expected: a page of Markdown, runs/report/report.md. In a checkout, make report
rebuilds docs/report byte for byte from docs/report/runs.
Cost: seconds.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("report")
