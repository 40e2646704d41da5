"""Experiments of the paper, the report and the quickstart."""

from dataclasses import dataclass

from bert_repro.configs.base import Config, require, setting
from bert_repro.utils.readers import shown


@dataclass(frozen=True)
class StudyConfig(Config):
    """Makes the runs behind a table of the paper (recipes/run_study.py)."""

    table: tuple[str, ...] = setting(
        (),
        "Tables to repeat: 1 to 8, figure5. Runs that several need are made once.",
        group="data",
        required="name some of: 1, 2, 3, 4, 5, 6, 7, 8, figure5",
    )
    size_preset: str = setting(
        "trial",
        "How large: trial (two CPU cores), gpu (one modern GPU), paper, or a YAML file.",
        group="data",
    )
    corpus: str = setting(
        "",
        "Prepared corpus for all pre-training runs: a folder that prepare_corpus made, or a dataset of the Hub.",
        group="data",
        required="name a prepared corpus",
    )
    glue_dir: str | None = setting(None, "Folder of GLUE's official files; default: the Hub.", group="data")
    squad_dir: str | None = setting(None, "Folder of SQuAD's official files; default: the Hub.", group="data")
    swag_dir: str | None = setting(None, "Folder of SWAG's official files; default: the Hub.", group="data")
    conll_dir: str | None = setting(None, "Folder of CoNLL-2003's official files; default: the Hub.", group="data")
    output_dir: str = setting("runs/study", "Folder for all runs; the same command, repeated, resumes.", group="output")
    records_dir: str | None = setting(
        None,
        "Folder for the results of finished runs, which the report reads; default: `records` in output_dir.",
        group="output",
    )
    keep_models: bool = setting(
        False, "Keep the weights of fine-tuned models; those of pre-trained ones are always kept.", group="output"
    )
    only: tuple[str, ...] = setting(
        (), "Make only the runs with these names, and those that they start from.", group="speed"
    )
    list: bool = setting(
        False, "Make no run; print one command for each that is not done, for an array job.", group="speed"
    )
    engine: str = setting(
        "local",
        "local: one run after another in this process; the same command in several shells shares the work. ray: on a "
        "Ray cluster, as many runs at a time as it has room for.",
        choices=("local", "ray"),
        group="speed",
    )

    @property
    def makes_runs(self) -> bool:
        """Whether it does more than list runs; only then it writes a status.json."""
        return not self.list

    def validate(self) -> None:
        """Checks that tables are known."""
        super().validate()
        known = ("1", "2", "3", "4", "5", "6", "7", "8", "figure5")
        for name in self.table:
            require(name in known, f"--table is {shown(name)}; choose some of: {', '.join(known)}")


@dataclass(frozen=True)
class ReportConfig(Config):
    """Writes the reproduction report: our numbers beside the paper's (recipes/report.py)."""

    runs_dir: str = setting(
        "runs/study/records", "Folder with the results.json of finished runs below it.", group="data"
    )
    report_dir: str = setting("runs/report", "Folder for report.md and the plots.", group="output")


@dataclass(frozen=True)
class QuickstartConfig(Config):
    """The complete path in miniature (recipes/quickstart.py)."""

    output_dir: str = setting(
        "runs/quickstart",
        "Folder for everything it makes; replaced when it is that of an earlier quickstart.",
        group="output",
    )
    seed: int = setting(
        42,
        "Seed of initialization, dropout, order, pairs and masks.",
        source="transformers",
        group="training",
        at_least=0,
        at_most=4_294_967_295,
    )
