"""Fine-tuning of any task: the run, a sweep over its settings, custom data in place of a task's."""

from dataclasses import dataclass, fields
from pathlib import Path

from bert_repro.configs.base import require, setting, tokenizer_setting
from bert_repro.configs.training import OptimizerConfig, RunConfig


@dataclass(frozen=True)
class FinetuningConfig(OptimizerConfig, RunConfig):
    """Fine-tuning, evaluation and prediction of one task; each task family adds its own settings."""

    model_name_or_path: str = setting(
        "",
        "Checkpoint to start from: a folder or a Hub id.",
        source="transformers",
        group="model",
        checkpoint=True,
        required="name a checkpoint folder or a Hub id",
    )
    tokenizer_name: str | None = tokenizer_setting()
    ensemble_with: tuple[str, ...] = setting(
        (),
        "More finished models of the task: scores and predictions come from the mean of the logits of all of them and "
        "of model_name_or_path.",
        deviation="The paper's SQuAD ensembles (Table 2) are 7 systems from different pre-training checkpoints and "
        "fine-tuning seeds; which checkpoints, and how the systems are combined, it does not say. Ours takes the "
        "mean of their logits; `run_study --table 2` starts them from the last two checkpoints of one pre-training "
        "in turn, with the seeds 1 to 7.",
        group="model",
        checkpoint=True,
    )
    task_name: str = setting("", "Name of the task.", source="transformers", group="data")
    data_dir: str | None = setting(
        None, "Folder of the official files; default: the task's dataset on the Hub.", group="data"
    )
    do_train: bool = setting(False, "Train.", source="transformers", group="training")
    do_eval: bool = setting(False, "Score the dev set.", source="transformers", group="training")
    do_predict: bool = setting(False, "Predict the test set.", source="transformers", group="training")
    num_train_epochs: float | None = setting(
        3.0, "Passes over the training set.", source="paper", unit="epochs", group="training", above=0, at_most=10_000
    )
    learning_rate: float = setting(
        5e-5,
        "Peak learning rate.",
        source="paper",
        deviation="The paper picks the best of 5e-5, 4e-5, 3e-5 and 2e-5 on dev (4.1); a single run needs one value.",
        group="training",
        at_least=0,
    )
    warmup_ratio: float = setting(
        0.1,
        "Warm-up as a fraction of all steps.",
        source="original implementation",
        unit="fraction",
        group="optimizer",
        at_least=0,
        at_most=1,
    )
    max_seq_length: int = setting(
        128,
        "Tokens per sequence; longer ones are truncated.",
        source="original implementation",
        unit="tokens",
        deviation="GLUE: the paper states no length. 128 in the original implementation (ours).",
        group="data",
        at_least=8,
        at_most=65_536,
    )
    bilstm_size: int | None = setting(
        None,
        "Put a randomly initialized BiLSTM of this size per direction between the encoder and the new head (Table 5's "
        "+ BiLSTM).",
        source="paper",
        unit="dimensions",
        deviation="The paper states neither the size of the BiLSTM it adds to the left-to-right model (5.1) nor what "
        "a classifier reads of it: ours is given by this setting, and reads the forward state after the last token "
        "and the backward state after the first, in the pooler's place.",
        group="model",
        above=0,
        at_most=65_536,
    )
    hidden_dropout_prob: float | None = setting(
        None,
        "Dropout after every layer; default: the checkpoint's.",
        unit="fraction",
        group="model",
        at_least=0,
        below=1,
    )
    attention_probs_dropout_prob: float | None = setting(
        None,
        "Dropout of attention weights; default: the checkpoint's.",
        unit="fraction",
        group="model",
        at_least=0,
        below=1,
    )
    freeze_layers: int | None = setting(
        None,
        "Do not train the embeddings and this many of the first layers; as many as the model has leave the head and "
        "the pooler.",
        unit="layers",
        group="training",
        at_least=0,
    )
    layerwise_lr_decay: float = setting(
        1.0,
        "Learning rate of each layer as a fraction of that of the layer above it, down to the embeddings; 1: the same "
        "for all.",
        unit="fraction",
        group="optimizer",
        above=0,
        at_most=1,
    )
    early_stopping_patience: int | None = setting(
        None,
        "Stop after this many evaluations in a row (every eval_steps) without a better primary metric on dev, and "
        "publish the weights of the best one.",
        source="transformers",
        unit="evaluations",
        group="training",
        above=0,
    )
    load_best_model_at_end: bool = setting(
        False,
        "Publish the weights of the evaluation (every eval_steps) with the best primary metric on dev, not the last.",
        source="transformers",
        group="training",
    )
    max_train_samples: int | None = setting(
        None,
        "Train on at most this many examples, the first.",
        source="transformers",
        unit="examples",
        group="data",
        above=0,
    )
    max_eval_samples: int | None = setting(
        None,
        "Score at most this many examples, the first.",
        source="transformers",
        unit="examples",
        group="data",
        above=0,
    )
    sweep_learning_rates: tuple[float, ...] = setting(
        (),
        "Train with each of these learning rates, each batch size and each number of epochs of the sweep, and keep "
        "the model that is best on dev. The paper's two sweeps are the presets glue-sweep and finetuning-grid.",
        aliases=("search_learning_rates",),
        group="sweep",
        above=0,
    )
    sweep_batch_sizes: tuple[int, ...] = setting(
        (),
        "Batch sizes of the sweep.",
        unit="sequences",
        aliases=("search_batch_sizes",),
        group="sweep",
        above=0,
        at_most=1_000_000,
    )
    sweep_num_train_epochs: tuple[float, ...] = setting(
        (),
        "Numbers of epochs of the sweep.",
        unit="epochs",
        aliases=("search_num_train_epochs",),
        group="sweep",
        above=0,
        at_most=10_000,
    )
    num_restarts: int = setting(
        1,
        "Train this many times, with the seeds seed, seed + 1 ...: another order of the data, another new head, the "
        "same checkpoint. With a sweep: each of its configurations.",
        unit="runs",
        deviation="The paper restarts BERT-large on small sets and takes the best run on dev (4.1), without saying "
        "how many; Tables 6 and 7 give means of 5. Ours is one run; of several, mean and standard deviation are "
        "reported with the best.",
        group="sweep",
        above=0,
        at_most=10_000,
    )

    @property
    def sweeps(self) -> bool:
        """Whether this is a sweep over several runs."""
        return self.num_restarts > 1 or any(getattr(self, name) for name in SWEPT)

    def __post_init__(self) -> None:
        self._do_what_files_are_for()
        super().__post_init__()

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

    def validate(self) -> None:
        """Checks that there is something to do, what needs training, and that a sweep's settings agree."""
        super().validate()
        require(
            self.do_train or self.do_eval or self.do_predict,
            "nothing to do: give files such as --train_file, or at least one of --do_train, --do_eval, --do_predict",
        )
        require(
            not self.ensemble_with or not self.do_train,
            "--ensemble_with and --do_train exclude each other: train every model first, then combine them",
        )
        require(
            not self.push_to_hub or self.do_train,
            "--push_to_hub needs --do_train: a run that only scores or predicts publishes no model; upload the folder "
            "of the run that trained it with push_to_hub",
        )
        require(
            self.peft is None or self.do_train,
            f"--peft {self.peft} needs --do_train; a finished run's folder holds the merged model, score it without",
        )
        for name in ("early_stopping_patience", "load_best_model_at_end"):
            require(
                not getattr(self, name) or (self.do_train and self.do_eval and self.eval_steps is not None),
                f"--{name} needs {self._missing_for_best()}: evaluations on dev decide",
            )
        require(
            self.freeze_layers is None or (self.do_train and self.peft is None),
            f"--freeze_layers {self.freeze_layers} needs --do_train, and no --peft, which freezes all layers",
        )
        require(
            self.bilstm_size is None or self.do_train,
            "--bilstm_size needs --do_train; a finished model says itself whether it has a BiLSTM",
        )
        if self.sweeps:
            self._validate_sweep()

    def _missing_for_best(self) -> str:
        """Returns what an evaluation on dev during training lacks, as flags."""
        flags = ("do_train", "do_eval", "eval_steps")
        return " and ".join(f"--{name}" for name in flags if not getattr(self, name))

    def _validate_sweep(self) -> None:
        require(self.do_train and self.do_eval, "a sweep and restarts need --do_train and --do_eval: dev chooses")
        defaults = {item.name: item.default for item in fields(self)}
        for name, single in SWEPT.items():
            values = getattr(self, name)
            require(len(set(values)) == len(values), f"--{name} is {_listed(values)}; leave repetitions out")
            own = getattr(self, single)
            require(
                not values or own == defaults[single],
                f"--{single} {own} and --{name} {_listed(values)} exclude each other; leave one out",
            )
        require(
            self.max_steps is None or not self.sweep_num_train_epochs,
            f"--max_steps {self.max_steps} and --sweep_num_train_epochs exclude each other; leave one out",
        )
        require(
            self.resume_from_checkpoint in (None, "latest"),
            f"--resume_from_checkpoint {self.resume_from_checkpoint}: a sweep resumes with the same command; write "
            "`latest` or leave it out",
        )


SWEPT = {
    "sweep_learning_rates": "learning_rate",
    "sweep_batch_sizes": "train_batch_size",
    "sweep_num_train_epochs": "num_train_epochs",
}
"""What a sweep goes over: the setting that lists the values, and the setting of a run that takes one of them."""


def _listed(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:g}" for value in values)


@dataclass(frozen=True)
class CustomDataConfig(FinetuningConfig):
    """A task, or custom data in its place."""

    train_file: str | None = setting(None, "File to train on.", source="transformers", group="data")
    validation_file: str | None = setting(None, "File to score.", source="transformers", group="data")
    test_file: str | None = setting(None, "File to predict; may lack labels.", source="transformers", group="data")
    validation_fraction: float | None = setting(
        None,
        "Hold out this share of train_file as the dev set, in place of validation_file: drawn with the seed; of texts, "
        "each label in proportion; of questions, complete passages.",
        unit="fraction",
        group="data",
        above=0,
        below=1,
    )

    @property
    def data_files(self) -> dict[str, Path]:
        """The files given, by split."""
        named = {"train": self.train_file, "validation": self.validation_file, "test": self.test_file}
        return {split: Path(name) for split, name in named.items() if name is not None}

    def validate(self) -> None:
        """Checks that custom data excludes published data, and that every part of the run has a file."""
        super().validate()
        divides = self.validation_fraction is not None
        require(not divides or self.train_file is not None, "--validation_fraction needs --train_file")
        require(
            not divides or self.validation_file is None,
            "--validation_fraction and --validation_file exclude each other; leave one out",
        )
        if self.data_files:
            self._validate_files()

    def _validate_files(self) -> None:
        divides = self.validation_fraction is not None
        require(
            self.data_dir is None,
            f"--data_dir {self.data_dir} excludes --train_file, --validation_file and --test_file; leave one out",
        )
        for doing, split in (("do_train", "train"), ("do_eval", "validation"), ("do_predict", "test")):
            require(
                not getattr(self, doing) or split in self.data_files or (split == "validation" and divides),
                f"--{doing} needs --{split}_file" + (" or --validation_fraction" if split == "validation" else ""),
            )
