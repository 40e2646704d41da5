"""Settings of fine-tuning for any task: the run, a sweep over some of its settings, and the user's own files."""

from dataclasses import dataclass, fields
from pathlib import Path

from bert_repro.configs.base import encoding_setting, require_fraction, require_positive, setting
from bert_repro.configs.named_data import NamedDataConfig, refuse_other_data
from bert_repro.configs.training import OptimizerConfig, RunConfig
from bert_repro.errors import UserError, flag
from bert_repro.utils.text_encodings import require_encoding

SWEPT = {
    "sweep_learning_rates": "learning_rate",
    "sweep_batch_sizes": "train_batch_size",
    "sweep_num_train_epochs": "num_train_epochs",
}
"""What a sweep varies: the setting that lists the values -> the setting of a single run."""

SHORTEST_INPUT = 8  # tokens, with [CLS] and [SEP]


class DefaultRate(float):
    """A learning rate that was not given, so that it is replaced for small models; otherwise a number like others."""


@dataclass(frozen=True)
class FinetuningConfig(OptimizerConfig, RunConfig):
    """Settings of fine-tuning: model, training, evaluation, sweeps and restarts."""

    REQUIRED = ("model_name_or_path", "output_dir")

    model_name_or_path: str = setting("", "Checkpoint to start from: a folder or a Hub id.")
    ensemble_with: tuple[str, ...] = setting(
        (), "Further fine-tuned models of the same task. The mean of all models' logits is scored."
    )
    task_name: str = setting("", "Name of the task.")
    data_dir: str | None = setting(None, "Folder of the official files. Default: the Hub.")
    do_train: bool = setting(False, "Train on the training set.")
    do_eval: bool = setting(False, "Score the dev set.", decides_result=False)
    do_predict: bool = setting(False, "Predict the test set.", decides_result=False)
    num_train_epochs: float | None = setting(3.0, "Number of passes over the training set.")
    learning_rate: float = setting(
        DefaultRate(5e-5),
        "Peak learning rate. Default: 5e-5; small models 1e-4 or 3e-4, with Adam's bias correction.",
    )
    bias_correction: bool | None = setting(None, "Adam's bias correction; few rows need it.")
    warmup_ratio: float = setting(0.1, "Length of the warm-up as a fraction of all steps.")
    max_seq_length: int = setting(128, "Longest input in tokens. Longer inputs are truncated.")
    bilstm_size: int | None = setting(
        None, "Add a BiLSTM of this size per direction between encoder and head ('+ BiLSTM' in Table 5)."
    )
    hidden_dropout_prob: float | None = setting(None, "Dropout after every layer. Default: as in the checkpoint.")
    attention_probs_dropout_prob: float | None = setting(
        None, "Dropout of attention weights. Default: as in the checkpoint."
    )
    freeze_layers: int | None = setting(None, "Keep the embeddings and this many of the first layers as they are.")
    layerwise_lr_decay: float = setting(
        1.0, "Learning rate of each layer as a fraction of the rate of the layer above it."
    )
    early_stopping_patience: int | None = setting(
        None,
        "Stop after this many evaluations (every eval_steps) without a better score on the dev set, and publish the "
        "best weights.",
    )
    load_best_model_at_end: bool = setting(
        False,
        "Publish the weights with the best score on the dev set (scored every eval_steps) instead of the last ones.",
    )
    max_train_samples: int | None = setting(
        None, "Train on at most this many examples. They are drawn at random, and are the same for every seed."
    )
    max_eval_samples: int | None = setting(None, "Score at most this many examples, from the beginning of the dev set.")
    sweep_learning_rates: tuple[float, ...] = setting(
        (),
        "Train with each of these learning rates, in all combinations with batch sizes and epochs, and publish the "
        "model with the best score on the dev set.",
    )
    sweep_batch_sizes: tuple[int, ...] = setting((), "Batch sizes of the sweep, in sequences per step.")
    sweep_num_train_epochs: tuple[float, ...] = setting((), "Numbers of epochs of the sweep.")
    num_restarts: int = setting(
        1,
        "Train this many times, with the seeds seed, seed + 1 ..., and publish the model with the best score on the "
        "dev set.",
    )

    @property
    def sweeps(self) -> bool:
        """Whether these settings ask for several runs."""
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
        if self.max_seq_length < SHORTEST_INPUT:
            raise UserError(
                f"{flag('max_seq_length', self.max_seq_length)} is too short. It must be at least {SHORTEST_INPUT}.",
                setting="max_seq_length",
            )
        if not (self.do_train or self.do_eval or self.do_predict):
            raise UserError(
                f"There is nothing to do. Name files such as {flag('train_file')}, or add {flag('do_train')}, "
                f"{flag('do_eval')} or {flag('do_predict')}.",
                setting="do_train",
            )
        self._check_training_settings()
        self._check_choice_on_dev()
        if self.sweeps:
            self._check_sweep()

    def _check_training_settings(self) -> None:
        """Refuses settings that contradict each other about training."""
        if self.ensemble_with and self.do_train:
            raise UserError(
                f"{flag('ensemble_with')} and {flag('do_train')} exclude each other. Train every model by itself, then "
                "combine them.",
                setting="ensemble_with",
            )
        for name in ("push_to_hub", "peft", "freeze_layers", "bilstm_size"):
            value = getattr(self, name)
            if not self.do_train and value is not None and value is not False:
                raise UserError(
                    f"{flag(name, value)} requires {flag('do_train')}. A finished model is used as it is.", setting=name
                )
        if self.freeze_layers is not None and self.peft is not None:
            raise UserError(
                f"{flag('freeze_layers', self.freeze_layers)} and {flag('peft', self.peft)} exclude each other, "
                "because an adapter already keeps all layers as they are. Leave one out.",
                setting="freeze_layers",
            )

    def _check_choice_on_dev(self) -> None:
        """Refuses to choose weights by their score on dev in a run that does not score them."""
        missing = [flag(name) for name in ("do_train", "do_eval", "eval_steps") if not getattr(self, name)]
        for name in ("early_stopping_patience", "load_best_model_at_end"):
            if getattr(self, name) and missing:
                raise UserError(
                    f"{flag(name)} requires {' and '.join(missing)}, because it depends on scores on the dev set.",
                    setting=name,
                )

    def _do_what_files_are_for(self) -> None:
        """Switches on training, scoring and predicting for the files that are set, unless a flag says what to do."""
        if self.do_train or self.do_eval or self.do_predict:
            return
        data_settings = {
            "do_train": ("train_file",),
            "do_eval": ("validation_file", "validation_fraction"),
            "do_predict": ("test_file",),
        }
        for action, names in data_settings.items():
            if any(getattr(self, name, None) is not None for name in names):
                # The class is frozen for its users.
                object.__setattr__(self, action, True)
        # A dataset usually has a split for each of these; its test split is only predicted if a flag asks for it.
        if getattr(self, "dataset_name", None) is not None:
            object.__setattr__(self, "do_train", True)
            object.__setattr__(self, "do_eval", True)

    def _check_sweep(self) -> None:
        if not self.do_train or not self.do_eval:
            raise UserError(
                f"A sweep and restarts require {flag('do_train')} and {flag('do_eval')}, because the best run on the "
                "dev set is published.",
                setting="do_eval",
            )
        defaults = {item.name: item.default for item in fields(self)}
        for name, single in SWEPT.items():
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise UserError(f"{flag(name, values)} contains a value twice. Leave repetitions out.", setting=name)
            single_value = getattr(self, single)
            if values and single_value != defaults[single]:
                raise UserError(
                    f"{flag(single, single_value)} and {flag(name, values)} exclude each other. Leave one out.",
                    setting=single,
                )
        if self.max_steps is not None and self.sweep_num_train_epochs:
            raise UserError(
                f"{flag('max_steps', self.max_steps)} and {flag('sweep_num_train_epochs')} exclude each other. Leave "
                "one out.",
                setting="max_steps",
            )
        if self.resume_from_checkpoint not in (None, "latest", "auto"):
            raise UserError(
                f"{flag('resume_from_checkpoint', self.resume_from_checkpoint)}: a sweep cannot resume from one "
                "checkpoint. The same command resumes it; leave the setting out, or use `latest`.",
                setting="resume_from_checkpoint",
            )


@dataclass(frozen=True)
class CustomDataConfig(NamedDataConfig, FinetuningConfig):
    """Settings for your own files, or a dataset by its name, in place of a task's data."""

    train_file: str | None = setting(
        None, "File to train on: .csv, .tsv, .xlsx, .jsonl, .parquet. Tags may be a .txt, questions SQuAD's .json."
    )
    validation_file: str | None = setting(None, "File to score.")
    test_file: str | None = setting(None, "File to predict. It need not have labels.", decides_result=False)
    example_from_data: bool = setting(
        False,
        "Show a short text of your training rows on the card and in results.json, as the example of the model's input. "
        "Leave it off if the texts are private.",
        decides_result=False,
    )
    encoding: str = encoding_setting()
    validation_fraction: float | None = setting(None, "Use this fraction of train_file as the dev set.")

    @property
    def data_files(self) -> dict[str, Path]:
        """The data files that are set, by split."""
        names = {"train": self.train_file, "validation": self.validation_file, "test": self.test_file}
        return {split: Path(name) for split, name in names.items() if name is not None}

    def __post_init__(self) -> None:
        super().__post_init__()
        require_encoding(self.encoding)
        require_positive(self, "validation_fraction")
        require_fraction(self, "validation_fraction", below_one=True)
        if self.validation_fraction is not None:
            if self.train_file is None and self.dataset_name is None:
                raise UserError(
                    f"{flag('validation_fraction', self.validation_fraction)} requires {flag('train_file')} or "
                    f"{flag('dataset_name')}, whose rows it divides.",
                    setting="validation_fraction",
                )
            if self.validation_file is not None:
                raise UserError(
                    f"{flag('validation_fraction')} and {flag('validation_file')} exclude each other. Leave one out.",
                    setting="validation_fraction",
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
        if self.dataset_name is not None:
            refuse_other_data(self, self.dataset_name, ("data_dir", "train_file", "validation_file", "test_file"))

    def _check_files(self) -> None:
        """Refuses published data next to files, and a part of the run that has no file."""
        if self.data_dir is not None:
            raise UserError(
                f"{flag('data_dir', self.data_dir)} cannot be combined with {flag('train_file')}, "
                f"{flag('validation_file')} or {flag('test_file')}. Leave one out.",
                setting="data_dir",
            )
        for action, split in (("do_train", "train"), ("do_eval", "validation"), ("do_predict", "test")):
            is_held_out = split == "validation" and self.validation_fraction is not None
            if getattr(self, action) and split not in self.data_files and not is_held_out:
                needed = flag(f"{split}_file")
                if split == "validation":
                    needed += f" or {flag('validation_fraction')}"
                raise UserError(f"{flag(action)} requires {needed}.", setting=f"{split}_file")
