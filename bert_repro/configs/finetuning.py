"""Fine-tuning, whatever the task: the run, a search over its settings, own files in place of a task's."""

from dataclasses import dataclass, fields
from pathlib import Path

from bert_repro.configs.base import require, setting
from bert_repro.configs.training import OptimizerConfig, RunConfig


@dataclass(frozen=True)
class FinetuningConfig(OptimizerConfig, RunConfig):
    """Fine-tuning, evaluation and prediction of one task; each task family adds its own settings."""

    model_name_or_path: str = setting("", "Checkpoint to start from: a folder or a Hub id.", source="transformers")
    tokenizer_name: str | None = setting(None, "Tokenizer, where it is not with the model.", source="transformers")
    ensemble_with: tuple[str, ...] = setting(
        (),
        "More finished models of the task: scores and predictions come from the mean of the logits of all of them and "
        "of model_name_or_path.",
        deviation="The paper's SQuAD ensembles (Table 2) are 7 systems from different pre-training checkpoints and "
        "fine-tuning seeds; how they are combined it does not say. Ours takes the mean of their logits.",
    )
    task_name: str = setting("", "Name of the task.", source="transformers")
    data_dir: str | None = setting(None, "Folder of the official files; default: the task's dataset on the Hub.")
    do_train: bool = setting(False, "Train.", source="transformers")
    do_eval: bool = setting(False, "Score the dev set.", source="transformers")
    do_predict: bool = setting(False, "Predict the test set.", source="transformers")
    num_train_epochs: float | None = setting(3.0, "Passes over the training set.", source="paper", unit="epochs")
    learning_rate: float = setting(
        5e-5,
        "Peak learning rate.",
        source="paper",
        deviation="The paper picks the best of 5e-5, 4e-5, 3e-5 and 2e-5 on dev (4.1); a single run needs one value.",
    )
    warmup_ratio: float = setting(
        0.1, "Warm-up as a share of all steps.", source="original implementation", unit="fraction"
    )
    max_seq_length: int = setting(
        128, "Tokens per sequence; longer ones are truncated.", source="original implementation", unit="tokens"
    )
    bilstm_size: int | None = setting(
        None,
        "Put a randomly initialised BiLSTM of this size per direction between the encoder and the new head (Table 5's "
        "+ BiLSTM).",
        source="paper",
        unit="dimensions",
        deviation="The paper states neither the size of the BiLSTM it adds to the left-to-right model (5.1) nor what a "
        "classifier reads of it: ours is given by this setting, and reads the forward state after the last token "
        "beside the backward state after the first, in the pooler's place.",
    )
    max_train_samples: int | None = setting(
        None, "Train on the first so many examples.", source="transformers", unit="examples"
    )
    max_eval_samples: int | None = setting(
        None, "Score the first so many examples.", source="transformers", unit="examples"
    )
    sweep_learning_rates: tuple[float, ...] = setting(
        (),
        "Train with each of these rates, each batch size and each number of epochs of the sweep, and keep the model "
        "that is best on dev. The paper's two sweeps are the presets glue-sweep and finetuning-grid.",
        aliases=("search_learning_rates",),
    )
    sweep_batch_sizes: tuple[int, ...] = setting(
        (), "Batch sizes of the sweep.", unit="sequences", aliases=("search_batch_sizes",)
    )
    sweep_num_train_epochs: tuple[float, ...] = setting(
        (), "Numbers of epochs of the sweep.", unit="epochs", aliases=("search_num_train_epochs",)
    )
    num_restarts: int = setting(
        1,
        "Train so many times, with the seeds seed, seed + 1 ...: another order of the data, another new head, the same "
        "checkpoint. With a search: each of its cells.",
        unit="runs",
        deviation="The paper restarts BERT-large on small sets and takes the best run on dev (4.1), without saying how "
        "many; Tables 6 and 7 give means of 5. Ours is one run; of several, mean and deviation stand beside the best.",
    )
    sweep_keep_models: bool = setting(
        False,
        "Keep the weights of every run of a sweep; otherwise those of the best run only.",
        aliases=("search_keep_models",),
    )

    @property
    def sweeps(self) -> bool:
        """Whether this is a search over several runs."""
        return self.num_restarts > 1 or any(getattr(self, name) for name in SWEPT)

    def validate(self) -> None:
        """A model, something to do, positive lengths, a search that can be one."""
        super().validate()
        require(bool(self.model_name_or_path), "--model_name_or_path is missing; name a checkpoint folder or a Hub id")
        require(
            self.do_train or self.do_eval or self.do_predict,
            "nothing to do: give at least one of --do_train, --do_eval, --do_predict",
        )
        require(
            not self.ensemble_with or not self.do_train,
            "--ensemble_with and --do_train exclude each other: train every model first, then combine them",
        )
        require(
            not self.push_to_hub or self.do_train,
            "--push_to_hub needs --do_train: a run that only scores or predicts publishes no model; upload the folder "
            "of the run that trained it with recipes/push_to_hub.py",
        )
        require(
            self.peft is None or self.do_train,
            f"--peft {self.peft} needs --do_train; a finished run's folder holds the merged model, score it without",
        )
        require(
            self.bilstm_size is None or self.do_train,
            "--bilstm_size needs --do_train; a finished model says itself whether it has a BiLSTM",
        )
        for name in ("num_train_epochs", "max_train_samples", "max_eval_samples", "num_restarts", "bilstm_size"):
            value = getattr(self, name)
            require(value is None or value > 0, f"--{name} is {value}; it must be positive")
        if self.sweeps:
            self._validate_search()

    def _validate_search(self) -> None:
        require(self.do_train and self.do_eval, "a sweep and restarts need --do_train and --do_eval: dev chooses")
        defaults = {item.name: item.default for item in fields(self)}
        for name, single in SWEPT.items():
            values = getattr(self, name)
            require(all(value > 0 for value in values), f"--{name} is {_listed(values)}; each must be positive")
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
"""What a search goes over: the setting that lists the values, and the setting of a run that takes one of them."""


def _listed(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:g}" for value in values)


@dataclass(frozen=True)
class CustomDataConfig(FinetuningConfig):
    """A task, or one's own files in its place."""

    train_file: str | None = setting(None, "File to train on.", source="transformers")
    validation_file: str | None = setting(None, "File to score.", source="transformers")
    test_file: str | None = setting(None, "File to predict; may lack labels.", source="transformers")

    @property
    def data_files(self) -> dict[str, Path]:
        """The files given, by split."""
        named = {"train": self.train_file, "validation": self.validation_file, "test": self.test_file}
        return {split: Path(name) for split, name in named.items() if name is not None}

    def validate(self) -> None:
        """Own files stand in place of published data, and every part of the run has one."""
        super().validate()
        if not self.data_files:
            return
        require(self.data_dir is None, f"--data_dir {self.data_dir} and own files exclude each other; leave one out")
        for doing, split in (("do_train", "train"), ("do_eval", "validation"), ("do_predict", "test")):
            require(
                not getattr(self, doing) or split in self.data_files,
                f"--{doing} needs --{split}_file",
            )
