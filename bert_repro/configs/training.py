"""What pre-training and fine-tuning share: optimizer, adapters, the run itself."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from bert_repro.configs.base import Config, require_fraction, require_positive, setting
from bert_repro.errors import UserError, flag

Tracker = Literal[
    "none", "all", "trackio", "tensorboard", "wandb", "mlflow", "comet_ml", "aim", "clearml", "dvclive", "swanlab"
]
TRACKERS: tuple[str, ...] = get_args(Tracker)[2:]
"""The experiment trackers that Accelerate knows."""


@dataclass(frozen=True)
class OptimizerConfig(Config):
    """Optimizer and schedule: BERT's Adam (paper A.2; optimization.py of the original implementation)."""

    learning_rate: float = setting(1e-4, "Peak learning rate.")
    adam_beta1: float = setting(0.9, "Adam's beta 1.")
    adam_beta2: float = setting(0.999, "Adam's beta 2.")
    adam_epsilon: float = setting(1e-6, "Adam's epsilon.")
    weight_decay: float = setting(0.01, "Decoupled weight decay on everything but biases and LayerNorm.")
    bias_correction: bool | None = setting(False, "Adam's bias correction; few rows need it.")
    max_grad_norm: float = setting(1.0, "Clip the global gradient norm to this; 0 switches clipping off.")
    warmup_steps: int | None = setting(None, "Steps of linear warm-up; overrides warmup_ratio.")
    warmup_ratio: float = setting(0.01, "Warm-up as a fraction of all steps.")
    decay_from: Literal["start", "warmup_end"] = setting(
        "start", "Linear decay to 0 measured from step 0 (start) or from the end of the warm-up (warmup_end)."
    )

    @property
    def trains(self) -> bool:
        """Whether a run with these settings trains; only then its learning rate matters."""
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("learning_rate", "weight_decay", "max_grad_norm", "warmup_steps"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise UserError(f"{flag(name, value)} is negative. It must be at least 0.", setting=name)
        if self.trains and self.learning_rate == 0:
            raise UserError(
                f"{flag('learning_rate', self.learning_rate)} leaves every weight as it is. Set a positive learning "
                "rate.",
                setting="learning_rate",
            )
        require_positive(self, "adam_epsilon")
        require_fraction(self, "warmup_ratio")
        require_fraction(self, "adam_beta1", "adam_beta2", below_one=True)


@dataclass(frozen=True)
class DryRunConfig(Config):
    """Estimates of a run before it starts."""

    dry_run: bool = setting(False, "Print tokens, FLOPs and expected hours, and stop.", decides_result=False)


@dataclass(frozen=True)
class AdapterConfig(Config):
    """Adapters of the `peft` library: a few added weights are trained instead of all (Hu et al., 2021)."""

    peft: Literal["lora", "dora"] | None = setting(
        None, "Train an adapter of this kind and freeze the rest; it needs higher learning rates, such as 5e-4."
    )
    lora_r: int = setting(8, "Rank of the added matrices.")
    lora_alpha: int = setting(16, "Their product is scaled by lora_alpha / lora_r.")
    lora_dropout: float = setting(0.1, "Dropout in front of them.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "lora_r", "lora_alpha")
        require_fraction(self, "lora_dropout", below_one=True)
        for name in ("lora_r", "lora_alpha", "lora_dropout"):
            value = getattr(self, name)
            if not self.peft and value != getattr(AdapterConfig, name):
                raise UserError(
                    f"{flag(name, value)} has no effect without an adapter. Add {flag('peft', 'lora')} or "
                    f"{flag('peft', 'dora')}, or leave it out.",
                    setting=name,
                )


@dataclass(frozen=True)
class RunConfig(AdapterConfig):
    """The run: where it writes, how it computes, what it logs and saves."""

    REQUIRED: ClassVar[tuple[str, ...]] = ("output_dir",)

    output_dir: str = setting("runs/run", "Folder for the model, results, logs and checkpoints.", decides_result=False)
    overwrite_output_dir: bool = setting(False, "Replace what the output folder holds.", decides_result=False)
    seed: int = setting(42, "Seed of all random draws.")
    train_batch_size: int | None = setting(
        None,
        "Sequences per optimizer step over all devices; default: follows from per_device_train_batch_size, else the "
        "paper's.",
    )
    per_device_train_batch_size: int | None = setting(
        None, "Sequences per device and forward pass.", decides_result=False
    )
    gradient_accumulation_steps: int | None = setting(
        None,
        "Forward passes per optimizer step; follows from the other two where train_batch_size is given.",
        decides_result=False,
    )
    per_device_eval_batch_size: int = setting(64, "Sequences per device in evaluation.", decides_result=False)
    max_steps: int | None = setting(None, "Optimizer steps of the run.")
    mixed_precision: Literal["no", "bf16", "fp16", "auto"] = setting(
        "no", "Autocast precision; auto: bf16 where the device has it."
    )
    attn_implementation: str = setting(
        "sdpa",
        "Attention of transformers' interface: eager, sdpa, flex_attention, flash_attention_2 ...",
        decides_result=False,
    )
    packing: bool = setting(
        True,
        "Concatenate sequences instead of padding them; without dropout the results are equal up to rounding.",
        decides_result=False,
    )
    cpu_kernels: bool = setting(
        True,
        "On a CPU: this package's kernels, oneDNN float32 and kept freed memory; only dropout's draws and rounding "
        "differ.",
        decides_result=False,
    )
    torch_compile: bool | None = setting(
        None,
        "Compile the training step; fine-tuning compiles each layer for itself. Default: on a GPU; fine-tuning only "
        "from 2,500 steps on.",
        decides_result=False,
    )
    gradient_checkpointing: bool = setting(False, "Recompute activations to save memory.", decides_result=False)
    dataloader_num_workers: int | None = setting(
        None,
        "Loader processes per device; default: with a GPU up to 4, as its share of the cores allows, else 0. The "
        "examples do not depend on it.",
        decides_result=False,
    )
    logging_steps: int | None = setting(
        None,
        "Steps between two lines of the log; default: a hundredth of the run, at most 10.",
        decides_result=False,
    )
    eval_steps: int | None = setting(
        None, "Steps between two evaluations; default: at the end only.", decides_result=False
    )
    save_steps: int | None = setting(None, "Steps between two checkpoints; default: none.", decides_result=False)
    save_total_limit: int = setting(2, "Checkpoints to keep, the newest.", decides_result=False)
    resume_from_checkpoint: str | None = setting(
        None,
        "Resume from a checkpoint: its folder, `latest` for the newest valid one, or `auto`: that one, or the start "
        "where there is none yet.",
        decides_result=False,
    )
    allow_changed_settings: bool = setting(
        False, "Resume although settings have changed that decide the result.", decides_result=False
    )
    report_to: tuple[Tracker, ...] = setting(
        ("none",),
        "Send settings, log and final results to these trackers too; all: to all that are installed.",
        decides_result=False,
    )
    run_name: str | None = setting(
        None, "Name of the run in trackers; default: that of the output folder.", decides_result=False
    )
    project: str = setting("bert_repro", "Project of the run in trackers.", decides_result=False)
    deterministic: bool = setting(
        False, "Deterministic CUDA kernels: bit-identical repetition, slower.", decides_result=False
    )
    push_to_hub: bool = setting(False, "Upload the finished folder to the Hub.", decides_result=False)
    hub_model_id: str | None = setting(None, "Repository on the Hub, for example org/name.", decides_result=False)
    hub_private_repo: bool | None = setting(
        None,
        "Make a new repository private; default: public, unless its organization decides otherwise.",
        decides_result=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(
            self, "train_batch_size", "per_device_train_batch_size", "gradient_accumulation_steps",
            "per_device_eval_batch_size", "max_steps", "logging_steps", "eval_steps", "save_steps", "save_total_limit",
        )  # fmt: skip
        if not 0 <= self.seed < 2**32:
            raise UserError(f"{flag('seed', self.seed)} is out of range: 0 to {2**32 - 1}.", setting="seed")
        if self.push_to_hub and not self.hub_model_id:
            raise UserError(
                f"{flag('push_to_hub')} requires {flag('hub_model_id')}, for example org/bert-repro-base.",
                setting="hub_model_id",
            )
        workers = self.dataloader_num_workers
        if workers is not None and workers < 0:
            raise UserError(
                f"{flag('dataloader_num_workers', workers)} is negative. It must be at least 0.",
                setting="dataloader_num_workers",
            )
