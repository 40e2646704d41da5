"""Fine-tuning of any task: the run, a sweep over its settings, custom data in place of a task's."""

from dataclasses import dataclass, fields
from pathlib import Path

from bert_repro.configs.base import require, require_fraction, require_positive, setting
from bert_repro.configs.named_data import NamedDataConfig
from bert_repro.configs.training import OptimizerConfig, RunConfig
from bert_repro.errors import UserError, flag

SWEPT = {
    "sweep_learning_rates": "learning_rate",
    "sweep_batch_sizes": "train_batch_size",
    "sweep_num_train_epochs": "num_train_epochs",
}
"""What a sweep goes over: the setting that lists the values, and the setting of a run that takes one of them."""


@dataclass(frozen=True)
class FinetuningConfig(OptimizerConfig, RunConfig):
    """Fine-tuning: model, training, evaluation, sweeps and restarts."""

    REQUIRED = ("model_name_or_path", "output_dir")

    model_name_or_path: str = setting("", "Checkpoint to start from: a folder or a Hub id.")
    ensemble_with: tuple[str, ...] = setting(
        (), "More finished models of the task: the mean of all models' logits is scored."
    )
    task_name: str = setting("", "Name of the task.")
    data_dir: str | None = setting(None, "Folder of the official files; default: the Hub.")
    do_train: bool = setting(False, "Train.")
    do_eval: bool = setting(False, "Score the dev set.", decides_result=False)
    do_predict: bool = setting(False, "Predict the test set.", decides_result=False)
    num_train_epochs: float | None = setting(3.0, "Passes over the training set.")
    learning_rate: float = setting(5e-5, "Peak learning rate.")
    warmup_ratio: float = setting(0.1, "Warm-up as a fraction of all steps.")
    max_seq_length: int = setting(128, "Tokens per sequence; longer ones are truncated.")
    bilstm_size: int | None = setting(
        None, "Size per direction of a new BiLSTM between encoder and head (Table 5's + BiLSTM)."
    )
    hidden_dropout_prob: float | None = setting(None, "Dropout after every layer; default: the checkpoint's.")
    attention_probs_dropout_prob: float | None = setting(
        None, "Dropout of attention weights; default: the checkpoint's."
    )
    freeze_layers: int | None = setting(None, "Do not train the embeddings and this many of the first layers.")
    layerwise_lr_decay: float = setting(1.0, "Learning rate of each layer as a fraction of that of the layer above it.")
    early_stopping_patience: int | None = setting(
        None,
        "Stop after this many evaluations (every eval_steps) without a better score on dev; publish the best weights.",
    )
    load_best_model_at_end: bool = setting(
        False, "Publish the weights with the best score on dev (every eval_steps), not the last."
    )
    max_train_samples: int | None = setting(
        None, "Train on at most this many examples, drawn at random: the same ones for every seed."
    )
    max_eval_samples: int | None = setting(None, "Score at most this many examples, the first.")
    sweep_learning_rates: tuple[float, ...] = setting(
        (),
        "Train with each of these learning rates (and batch sizes and epochs) and keep the model that is best on dev.",
    )
    sweep_batch_sizes: tuple[int, ...] = setting((), "Batch sizes of the sweep, in sequences.")
    sweep_num_train_epochs: tuple[float, ...] = setting((), "Numbers of epochs of the sweep.")
    num_restarts: int = setting(
        1, "Train this many times, with the seeds seed, seed + 1 ..., and keep the model that is best on dev."
    )

    @property
    def sweeps(self) -> bool:
        """Whether this is a sweep over several runs."""
        return self.num_restarts > 1 or any(getattr(self, name) for name in SWEPT)

    @property
    def trains(self) -> bool:
        """Whether the run trains before it evaluates or predicts."""
        return self.do_train

    def __post_init__(self) -> None:
        self._do_what_files_are_for()
        super().__post_init__()
        require_positive(
            self, "num_train_epochs", "max_seq_length", "bilstm_size", "layerwise_lr_decay", "early_stopping_patience",
            "max_train_samples", "max_eval_samples", "num_restarts", *SWEPT,
        )  # fmt: skip
        require_fraction(self, "layerwise_lr_decay")
        require_fraction(self, "hidden_dropout_prob", "attention_probs_dropout_prob", below_one=True)
        require(self.max_seq_length >= 8, f"--max_seq_length is {self.max_seq_length}; it must be at least 8")
        require(
            self.do_train or self.do_eval or self.do_predict,
            "nothing to do: give files such as --train_file, or at least one of --do_train, --do_eval, --do_predict",
        )
        require(
            not self.ensemble_with or not self.do_train,
            "--ensemble_with and --do_train exclude each other: train every model first, then combine them",
        )
        for name in ("push_to_hub", "peft", "freeze_layers", "bilstm_size"):
            value = getattr(self, name)
            given = f"--{name}" if value is True else f"--{name} {value}"
            require(
                self.do_train or value is None or value is False,
                f"{given} needs --do_train; a finished model is used as it is",
            )
        require(
            self.freeze_layers is None or self.peft is None,
            f"--freeze_layers {self.freeze_layers} and --peft, which freezes all layers, exclude each other",
        )
        missing = [f"--{name}" for name in ("do_train", "do_eval", "eval_steps") if not getattr(self, name)]
        for name in ("early_stopping_patience", "load_best_model_at_end"):
            require(
                not getattr(self, name) or not missing,
                f"--{name} needs {' and '.join(missing)}: evaluations on dev decide",
            )
        if self.sweeps:
            self._check_sweep()

    def _do_what_files_are_for(self) -> None:
        """Trains, scores and predicts where files are given for it and no flag says which of these to do."""
        if self.do_train or self.do_eval or self.do_predict:
            return
        data = {
            "do_train": ("train_file",),
            "do_eval": ("validation_file", "validation_fraction"),
            "do_predict": ("test_file",),
        }
        for doing, names in data.items():
            if any(getattr(self, name, None) is not None for name in names):
                object.__setattr__(self, doing, True)
        # A dataset usually has a split for each of these; its test split is only predicted if a flag asks for it.
        if getattr(self, "dataset_name", None) is not None:
            object.__setattr__(self, "do_train", True)
            object.__setattr__(self, "do_eval", True)

    def _check_sweep(self) -> None:
        require(self.do_train and self.do_eval, "a sweep and restarts need --do_train and --do_eval: dev chooses")
        defaults = {item.name: item.default for item in fields(self)}
        for name, single in SWEPT.items():
            values, own = getattr(self, name), getattr(self, single)
            given = " ".join(f"{value:g}" for value in values)
            require(len(set(values)) == len(values), f"--{name} is {given}; leave repetitions out")
            require(
                not values or own == defaults[single],
                f"--{single} {own} and --{name} {given} exclude each other; leave one out",
            )
        require(
            self.max_steps is None or not self.sweep_num_train_epochs,
            f"--max_steps {self.max_steps} and --sweep_num_train_epochs exclude each other; leave one out",
        )
        require(
            self.resume_from_checkpoint in (None, "latest", "auto"),
            f"--resume_from_checkpoint {self.resume_from_checkpoint}: a sweep resumes with the same command; write "
            "`latest` or leave it out",
        )


@dataclass(frozen=True)
class CustomDataConfig(NamedDataConfig, FinetuningConfig):
    """Your own files, or a dataset by its name, in place of a task's data."""

    train_file: str | None = setting(None, "File to train on.")
    validation_file: str | None = setting(None, "File to score.")
    test_file: str | None = setting(None, "File to predict; may lack labels.", decides_result=False)
    validation_fraction: float | None = setting(
        None, "Hold out this fraction of train_file as the dev set, in place of validation_file."
    )

    @property
    def data_files(self) -> dict[str, Path]:
        """The files given, by split."""
        named = {"train": self.train_file, "validation": self.validation_file, "test": self.test_file}
        return {split: Path(name) for split, name in named.items() if name is not None}

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "validation_fraction")
        require_fraction(self, "validation_fraction", below_one=True)
        divides = self.validation_fraction is not None
        if divides and self.train_file is None and self.dataset_name is None:
            raise UserError(
                f"{flag('validation_fraction', self.validation_fraction)} requires {flag('train_file')} or "
                f"{flag('dataset_name')}, whose rows it divides.",
                setting="validation_fraction",
            )
        require(
            not divides or self.validation_file is None,
            "--validation_fraction and --validation_file exclude each other; leave one out",
        )
        self._check_dataset_name()
        if self.data_files:
            self._check_files()

    @property
    def has_own_data(self) -> bool:
        """Whether files or a dataset are named in place of a task's data."""
        return bool(self.data_files) or self.dataset_name is not None

    def _check_dataset_name(self) -> None:
        """Refuses a dataset together with files, and its settings without it."""
        super()._check_dataset_name()
        if self.dataset_name is None:
            return
        for name in ("data_dir", "train_file", "validation_file", "test_file"):
            value = getattr(self, name)
            if value is not None:
                raise UserError(
                    f"{flag('dataset_name', self.dataset_name)} and {flag(name, value)} exclude each other. Leave one "
                    "out.",
                    setting=name,
                )

    def _check_files(self) -> None:
        """Refuses published data besides files, and a part of the run without its file."""
        require(
            self.data_dir is None,
            f"--data_dir {self.data_dir} excludes --train_file, --validation_file and --test_file; leave one out",
        )
        for doing, split in (("do_train", "train"), ("do_eval", "validation"), ("do_predict", "test")):
            held_out = split == "validation" and self.validation_fraction is not None
            require(
                not getattr(self, doing) or split in self.data_files or held_out,
                f"--{doing} needs --{split}_file" + (" or --validation_fraction" if split == "validation" else ""),
            )
