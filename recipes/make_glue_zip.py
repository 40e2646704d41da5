# /// script
# requires-python = ">=3.11"
# dependencies = ["bert-repro"]
# ///
r"""Makes the zip that the GLUE leaderboard (gluebenchmark.com) takes from finished
runs.

    python recipes/make_glue_zip.py --runs runs/glue --output_file glue.zip

--runs names folders of finished runs, or folders that hold them at any depth:
one for each of cola sst2 mrpc stsb qqp mnli qnli rte, made with --do_predict,
and one for ax, predicted by the MNLI model:

    python recipes/run_glue.py \
      --task_name ax --model_name_or_path runs/glue/mnli \
      --do_predict --output_dir runs/glue/ax

WNLI is the majority class, as in the paper. A zip is written only if it is
complete; otherwise the first file that is missing or is not about the official
test set is named.

Expected: eleven files; the paper's scores on the leaderboard are Table 1.
Cost: seconds.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("make_glue_zip")
