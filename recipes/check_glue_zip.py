# /// script
# requires-python = ">=3.11"
# dependencies = ["bert-repro"]
# ///
r"""Checks a zip for the GLUE leaderboard before one of the few submissions is
spent on it.

    python recipes/check_glue_zip.py --zip_file glue.zip

Names every missing or unknown file, wrong header, row count, order, label and
number; exit code 2 if there is any, 0 if the zip is ready.
Cost: seconds.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("check_glue_zip")
