# /// script
# requires-python = ">=3.11"
# dependencies = ["bert-repro"]
# ///
r"""Makes the runs behind the paper's tables: Tables 1 to 8 and Figure 5, at any
size.

    python recipes/run_study.py \
      --table 5 --size_preset trial --corpus runs/corpus \
      --glue_dir glue --squad_dir squad --output_dir runs/study

    python recipes/run_study.py --table 5 6 7 8 figure5 --size_preset gpu \
      --corpus runs/corpus --list

A run that several tables need is made once; the same command, repeated,
resumes, and in several shells it shares the work. --list prints one command
for each run, which recipes/slurm/study.sbatch runs as a job array, and
--engine ray uses a Ray cluster. Afterwards

    python recipes/report.py \
      --runs_dir runs/study/records --report_dir runs/report

shows our numbers beside the paper's.

Expected with --size_preset paper: the paper's tables. With trial, scores are
far below; docs/report says which of the paper's orderings appear all the same.
Cost: trial two hours on two CPU cores, gpu about a day on one modern GPU,
paper thirteen pre-trainings of a million steps.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("run_study")
