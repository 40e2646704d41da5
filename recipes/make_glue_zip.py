r"""Makes the zip that the GLUE leaderboard takes from finished runs.

    python recipes/make_glue_zip.py --runs runs/glue --output_file glue.zip

All flags: --help_all.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("make_glue_zip")
