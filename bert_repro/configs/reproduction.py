"""Studies, the report and the quickstart."""

from dataclasses import dataclass

from bert_repro.configs.base import Config, require, setting


@dataclass(frozen=True)
class StudyConfig(Config):
    """Makes the runs behind a table of the paper (recipes/run_study.py)."""

    table: tuple[str, ...] = setting((), "Tables to make: 1 to 8, figure5. Runs that several need are made once.")
    size_preset: str = setting(
        "trial",
        "How large: trial (two CPU cores), gpu (one modern GPU), paper, or a YAML file.",
        aliases=("scale",),
    )
    corpus: str = setting("", "Prepared corpus for all pre-training runs (recipes/prepare_corpus.py).")
    glue_dir: str | None = setting(None, "Folder of GLUE's official files; default: the Hub.")
    squad_dir: str | None = setting(None, "Folder of SQuAD's official files; default: the Hub.")
    swag_dir: str | None = setting(None, "Folder of SWAG's official files; default: the Hub.")
    conll_dir: str | None = setting(None, "Folder of CoNLL-2003's official files; default: the Hub.")
    output_dir: str = setting("runs/study", "Folder for all runs; the same command goes on where it stopped.")
    records_dir: str | None = setting(
        None, "Folder for what is kept of finished runs, which the report reads; default: `records` in output_dir."
    )
    keep_models: bool = setting(False, "Keep the weights of fine-tuned models; those of pre-trained ones always stay.")
    only: tuple[str, ...] = setting((), "Make only the runs with these names, and those that they start from.")
    dry_run: bool = setting(False, "List runs, FLOPs and hours, and stop.")
    emit: str | None = setting(
        None, "Write job scripts for this scheduler in place of running: slurm.", choices=("slurm",)
    )
    engine: str = setting(
        "local",
        "local: one run after another in this process; the command given several times shares the work. ray: all runs "
        "that can go on, on a Ray cluster.",
        choices=("local", "ray"),
    )

    @property
    def makes_runs(self) -> bool:
        """Whether it does more than to list runs or to write job scripts; only then it leaves a status.json."""
        return not self.dry_run and self.emit is None

    def validate(self) -> None:
        """At least one study; a corpus unless nothing is run."""
        super().validate()
        known = ("1", "2", "3", "4", "5", "6", "7", "8", "figure5")
        require(len(self.table) > 0, f"--table is missing; name some of: {', '.join(known)}")
        for name in self.table:
            require(name in known, f"--table is {name!r}; choose some of: {', '.join(known)}")
        require(self.dry_run or bool(self.corpus), "--corpus is missing; name a prepared corpus")


@dataclass(frozen=True)
class ReportConfig(Config):
    """Writes the reproduction report: our numbers beside the paper's (recipes/report.py)."""

    runs_dir: str = setting("docs/report/runs", "Folder with the results.json of finished runs below it.")
    report_dir: str = setting("docs/report", "Folder for report.md, index.html, numbers.json and the plots.")


@dataclass(frozen=True)
class QuickstartConfig(Config):
    """The whole road in miniature (recipes/quickstart.py)."""

    output_dir: str = setting(
        "runs/quickstart", "Folder of all it makes; replaced when it is that of an earlier quickstart."
    )
    seed: int = setting(42, "Decides initialisation, dropout, order, pairs and masks.", source="transformers")
