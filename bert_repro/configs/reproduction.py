"""The paper's studies and the report."""

from dataclasses import dataclass
from typing import Literal

from bert_repro.configs.base import Config, setting

TableName = Literal["1", "2", "3", "4", "5", "6", "7", "8", "figure5"]


@dataclass(frozen=True)
class StudyConfig(Config):
    """Repeats tables of the paper: makes the runs behind Tables 1 to 8 and Figure 5.

      bert-repro run_study --table 5 --size_preset trial --corpus runs/corpus --glue_dir glue --squad_dir squad \\
        --output_dir runs/study

    A run that several tables need is made once; the same command, repeated, resumes, and in several shells it shares
    the work. --list prints a command for every run that is not done, for a scheduler. Then
    `bert-repro report --runs_dir runs/study/records` shows our numbers next to the paper's. The size trial takes two
    hours on two CPU cores, gpu about a day on one modern GPU (estimated).
    """

    REQUIRED = ("table", "corpus", "output_dir")

    table: tuple[TableName, ...] = setting(
        (), "Tables to repeat: 1 to 8, figure5. Runs that several need are made once."
    )
    size_preset: str = setting(
        "trial", "How large: trial (two CPU cores), gpu (one modern GPU), paper, or a YAML file."
    )
    corpus: str = setting(
        "", "Prepared corpus for all pre-training runs: a folder that prepare_corpus made, or a dataset of the Hub."
    )
    glue_dir: str | None = setting(None, "Folder of GLUE's official files; default: the Hub.")
    squad_dir: str | None = setting(None, "Folder of SQuAD's official files; default: the Hub.")
    swag_dir: str | None = setting(None, "Folder of SWAG's official files; default: the Hub.")
    conll_dir: str | None = setting(None, "Folder of CoNLL-2003's official files; default: the Hub.")
    output_dir: str = setting("runs/study", "Folder for all runs; the same command, repeated, resumes.")
    records_dir: str | None = setting(
        None, "Folder for the results of finished runs; default: `records` in output_dir."
    )
    keep_models: bool = setting(
        False, "Keep the weights of fine-tuned models; those of pre-trained ones are always kept."
    )
    only: tuple[str, ...] = setting((), "Make only the runs with these names, and those that they start from.")
    list: bool = setting(False, "Make no run; print one command for each that is not done, for an array job.")
    engine: Literal["local", "ray"] = setting(
        "local", "Run one after another in this process (local), or as many as a Ray cluster has room for (ray)."
    )

    @property
    def makes_runs(self) -> bool:
        """Whether it does more than list runs; only then it writes a status.json."""
        return not self.list


@dataclass(frozen=True)
class ReportConfig(Config):
    """Writes the paper's tables with our numbers next to them.

      bert-repro report --runs_dir runs/study/records --report_dir runs/report

    Reads every results.json below --runs_dir. The same results give the same bytes.
    """

    runs_dir: str = setting("runs/study/records", "Folder with the results.json of finished runs below it.")
    report_dir: str = setting("runs/report", "Folder for report.md and the plots.")
