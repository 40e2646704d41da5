"""The paper's studies and the report."""

from dataclasses import dataclass
from typing import Literal

from bert_repro.configs.base import Config, require_positive, setting
from bert_repro.configs.training import DryRunConfig
from bert_repro.errors import UserError, flag

TableName = Literal["1", "2", "3", "4", "5", "6", "7", "8", "figure5"]
TABLES_OF_A_MODEL: tuple[TableName, ...] = ("1", "2", "3", "4", "7")
"""Tables whose rows begin with a finished model; the others compare pre-trainings."""
StudyTask = Literal[
    "mnli", "qqp", "qnli", "sst2", "cola", "stsb", "mrpc", "rte", "squad", "squad_v2", "swag", "conll2003", "features",
    "rte_after_mnli",
]  # fmt: skip


@dataclass(frozen=True)
class StudyConfig(DryRunConfig):
    """Repeats tables of the paper: makes the runs behind Tables 1 to 8 and Figure 5.

      bert-repro run_study --table 5 --size_preset trial --corpus runs/corpus --glue_dir glue --squad_dir squad \\
        --output_dir runs/study

      bert-repro run_study --model_name_or_path google-bert/bert-base-uncased runs/bert --size_preset evaluation \\
        --tasks sst2 mrpc squad --output_dir runs/study

    The first command pre-trains every model that a table needs; the second fills the rows of Tables 1, 2, 3, 4 and 7
    for finished models. A run that several tables need is made once; the same command, repeated, resumes, and in
    several shells it shares the work. --dry_run estimates the cost, --list prints a command for every run that is not
    done, for a scheduler. Then `bert-repro report --runs_dir runs/study/records` shows our numbers next to the paper's.
    The size trial takes two hours on two CPU cores, one-gpu about a day on one modern GPU (estimated).
    """

    REQUIRED = ("output_dir",)

    table: tuple[TableName, ...] = setting(
        (), "Tables to repeat: 1 to 8, figure5. Default with model_name_or_path: 1 2 3 4 7."
    )
    model_name_or_path: tuple[str, ...] = setting(
        (), "Finished models in place of pre-training, folders or Hub ids; others are compared with the first."
    )
    tasks: tuple[StudyTask, ...] = setting((), "Only these tasks; default: all that the tables have.")
    size_preset: str | None = setting(
        None,
        "How large: trial (two CPU cores), evaluation (a finished model in minutes), one-gpu (one modern GPU), paper, "
        "or a YAML file. Default: trial, with model_name_or_path paper.",
    )
    corpus: str = setting(
        "", "Prepared corpus for all pre-training runs: a folder that prepare_corpus made, or a dataset of the Hub."
    )
    cased_corpus: str = setting("", "Cased corpus for Table 7's pre-training (paper 5.3). Default: corpus.")
    pretraining_seed: int = setting(42, "Another one adds pre-trainings.")
    glue_dir: str | None = setting(None, "Folder of GLUE's official files; default: the Hub.")
    squad_dir: str | None = setting(None, "Folder of SQuAD's official files; default: the Hub.")
    triviaqa_file: str | None = setting(None, "File of convert_triviaqa, for Table 2's rows with TriviaQA.")
    swag_dir: str | None = setting(None, "Folder of SWAG's official files; default: the Hub.")
    conll_dir: str | None = setting(None, "Folder of CoNLL-2003's official files; default: the Hub.")
    output_dir: str = setting(
        "runs/study", "Folder for all runs and, in `records`, their results; the same command, repeated, resumes."
    )
    only: tuple[str, ...] = setting((), "Make only the runs with these names, and those that they start from.")
    list: bool = setting(False, "Make no run; print one command for each that is not done, for an array job.")
    engine: Literal["local", "ray"] = setting(
        "local", "Run one after another in this process (local), or as many as a Ray cluster has room for (ray)."
    )

    @property
    def size(self) -> str:
        """The size preset's name, or the file that holds it."""
        return self.size_preset or ("paper" if self.model_name_or_path else "trial")

    @property
    def makes_runs(self) -> bool:
        """Whether it does more than list runs; only then it writes a status.json."""
        return not (self.list or self.dry_run)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model_name_or_path:
            self._check_tables_of_models()
        elif not self.table or not self.corpus:
            raise UserError(
                f"A study needs {flag('table')} and {flag('corpus')}, or finished models with "
                f"{flag('model_name_or_path')}.",
                setting="corpus" if self.table else "table",
            )

    def _check_tables_of_models(self) -> None:
        """Completes and checks the tables of a study that starts from finished models."""
        for name in ("corpus", "cased_corpus"):
            value = getattr(self, name)
            if value:
                raise UserError(
                    f"{flag(name, value)} and {flag('model_name_or_path')} exclude each other. Leave one out.",
                    setting=name,
                )
        # The class is frozen for its users.
        object.__setattr__(self, "table", self.table or TABLES_OF_A_MODEL)
        others = [name for name in self.table if name not in TABLES_OF_A_MODEL]
        if others:
            raise UserError(
                f"{flag('table', others)} compares pre-trainings. Pass {flag('corpus')} instead of "
                f"{flag('model_name_or_path')}, or choose tables from {' '.join(TABLES_OF_A_MODEL)}.",
                setting="table",
            )


@dataclass(frozen=True)
class ReportConfig(Config):
    """Compares finished runs in a table; runs of a study next to the paper's numbers.

      bert-repro report --runs_dir runs --report_dir runs/report

      bert-repro report --runs_dir runs/study/records --report_dir runs/report

    Reads every results.json below --runs_dir. Runs that differ in their seed alone share a row of the table, which has
    the settings that differ, the score with its deviation over seeds, and the baseline: runs.md, runs.csv, runs.tex.
    The runs of run_study go into the paper's tables: report.md. The same results give the same bytes.
    """

    runs_dir: str = setting("runs/study/records", "Folder with the results.json of finished runs below it.")
    report_dir: str = setting("runs/report", "Folder for the tables and plots.")


ClaimStatus = Literal[
    "same", "deviates", "never run", "appears", "reversed", "inconclusive", "failed", "not run",
]  # fmt: skip


@dataclass(frozen=True)
class ClaimsConfig(Config):
    """Lists the paper's claims, with the code, the test and the status of each.

      bert-repro claims --status reversed inconclusive

      bert-repro claims --section 5.1

    The status of an ordering of the paper's tables comes from stored results of finished runs.
    """

    status: tuple[ClaimStatus, ...] = setting((), "Only claims with one of these statuses; default: all.")
    section: tuple[str, ...] = setting((), "Only claims of these sections of the paper, such as 5.1 or A.2.")


@dataclass(frozen=True)
class ReplayConfig(Config):
    """Checks a pre-training run: rebuilds the batch of a step and recomputes its losses.

      bert-repro replay --run runs/bert --corpus runs/corpus --step 1200

    The batch is shown with its masks. The steps from the nearest checkpoint before it are made again, and their losses
    are compared with the log. Exit code 4: they differ. A run without a checkpoint is recomputed from its beginning.
    """

    REQUIRED = ("run", "corpus", "step")

    run: str = setting("", "Output folder of a pre-training run, finished or not, or the Hub id of a published one.")
    corpus: str = setting("", "The prepared corpus that the run was trained on: a folder, or a dataset of the Hub.")
    step: int = setting(0, "The step, counted from 1.")
    num_examples: int = setting(4, "Examples of the batch to show.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "step", "num_examples")


@dataclass(frozen=True)
class SeenConfig(Config):
    """Finds a text in a corpus, and the steps at which a run read it.

      bert-repro seen "the green river runs" --run runs/bert --corpus runs/corpus

      bert-repro seen --task_name mrpc --data_dir glue --run runs/bert --corpus runs/corpus

    The second command checks whether the dev texts of a task occur in the pre-training corpus.
    """

    REQUIRED = ("run", "corpus")
    POSITIONAL = "text"

    text: str = setting("", "The text; it may also be the first word of the command line, in quotation marks.")
    task_name: str | None = setting(None, "Look for the dev texts of this task in place of one text.")
    data_dir: str | None = setting(None, "Folder of the task's official files; default: the Hub.")
    run: str = setting("", "Output folder of a pre-training run, finished or not, or the Hub id of a published one.")
    corpus: str = setting("", "The prepared corpus that the run was trained on: a folder, or a dataset of the Hub.")
    min_tokens: int = setting(4, "Texts with fewer tokens are skipped, because they occur everywhere.")
    max_shown: int = setting(10, "Occurrences and steps to show.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "min_tokens", "max_shown")
        if bool(self.text) == bool(self.task_name):
            raise UserError(f"Pass either {flag('text')} or {flag('task_name')}.", setting="text")
