"""What pre-training and fine-tuning share: optimizer, adapters, the run itself."""

from dataclasses import dataclass, fields

from bert_repro.configs.base import Config, require, setting

TRACKERS = ("trackio", "tensorboard", "wandb", "mlflow", "comet_ml", "aim", "clearml", "dvclive", "swanlab")
"""The experiment trackers that Accelerate knows."""


@dataclass(frozen=True)
class OptimizerConfig(Config):
    """BERT's Adam and its schedule (paper A.2; optimization.py of the original implementation)."""

    learning_rate: float = setting(1e-4, "Peak learning rate.", source="paper", group="training", at_least=0)
    adam_beta1: float = setting(0.9, "Adam's beta 1.", source="paper", group="optimizer", at_least=0, below=1)
    adam_beta2: float = setting(0.999, "Adam's beta 2.", source="paper", group="optimizer", at_least=0, below=1)
    adam_epsilon: float = setting(
        1e-6,
        "Adam's epsilon.",
        source="original implementation",
        deviation="Not in the paper. 1e-6 in the original implementation (ours); PyTorch's default is 1e-8.",
        group="optimizer",
        above=0,
    )
    weight_decay: float = setting(
        0.01,
        "Decoupled weight decay on everything but biases and LayerNorm.",
        source="paper",
        deviation="The paper writes L2 weight decay; the original implementation decays decoupled from the gradient "
        "(ours). What is exempt the paper does not say: biases, the output biases among them, and LayerNorm, as in the "
        "original implementation; embeddings and the matrices of heads are decayed.",
        group="optimizer",
        at_least=0,
    )
    bias_correction: bool = setting(
        False,
        "Adam's bias correction.",
        source="original implementation",
        deviation="The paper says Adam, whose definition corrects the bias; the original implementation does not "
        "(ours), which its author called an oversight.",
        group="optimizer",
    )
    fused_optimizer: bool = setting(True, "Update all weights in one kernel (not on XLA).", group="optimizer")
    max_grad_norm: float = setting(
        1.0,
        "Clip the global gradient norm to this; 0 switches clipping off.",
        source="original implementation",
        deviation="Not in the paper. The original implementation clips each core's gradient; ours clips the gradient "
        "of the global batch, so the result does not depend on the number of devices.",
        group="optimizer",
        at_least=0,
    )
    warmup_steps: int | None = setting(
        None,
        "Steps of linear warm-up; overrides warmup_ratio.",
        unit="steps",
        group="optimizer",
        at_least=0,
        at_most=1_000_000_000,
    )
    warmup_ratio: float = setting(
        0.01,
        "Warm-up as a fraction of all steps.",
        source="paper",
        unit="fraction",
        deviation="Pre-training: 10,000 of 1,000,000 steps (paper). Fine-tuning: 0.1 (original implementation; the "
        "paper is silent).",
        group="optimizer",
        at_least=0,
        at_most=1,
    )
    decay_from: str = setting(
        "start",
        "Linear decay to 0 measured from step 0 (start) or from the end of the warm-up (warmup_end).",
        source="original implementation",
        choices=("start", "warmup_end"),
        deviation="The paper says linear decay. The original implementation measures it from step 0 (ours), so the "
        "learning rate drops by the warm-up's fraction when the warm-up ends.",
        group="optimizer",
    )


@dataclass(frozen=True)
class DryRunConfig(Config):
    """Estimates of a run before it starts, on this machine or for another device."""

    dry_run: bool = setting(
        False, "Print tokens, FLOPs and expected hours, and stop.", aliases=("plan",), group="output"
    )
    tflops: float | None = setting(
        None,
        "With dry_run: estimate the time for devices of this speed instead of this machine's.",
        unit="TFLOP/s",
        group="output",
        above=0,
        at_most=1_000_000,
    )
    device_name: str | None = setting(
        None,
        "With dry_run: estimate the time for this device, by the speed that its maker publishes.",
        choices=("t4", "v100", "rtx3090", "rtx4090", "l4", "l40s", "a100", "h100", "h200"),
        group="output",
    )

    def validate(self) -> None:
        """Refuses a speed or a device without an estimate."""
        super().validate()
        for name in ("tflops", "device_name"):
            require(getattr(self, name) is None or self.dry_run, f"--{name} needs --dry_run")
        require(self.tflops is None or self.device_name is None, "--tflops and --device_name exclude each other")


@dataclass(frozen=True)
class AdapterConfig(Config):
    """Training a few added weights instead of all, through the `peft` library (Hu et al., 2021; not in the paper)."""

    peft: str | None = setting(
        None,
        "Train an adapter of this kind, with a new head where there is one, and freeze the rest: lora, dora or ia3. "
        "It needs higher learning rates than full fine-tuning, such as 5e-4. The run writes the adapter to `adapter/` "
        "and the complete model with the adapter merged.",
        choices=("lora", "dora", "ia3"),
        group="adapter",
    )
    lora_r: int = setting(
        8, "lora, dora: rank of the added matrices.", source="transformers", group="adapter", above=0, at_most=65_536
    )
    lora_alpha: int = setting(
        16,
        "lora, dora: their product is scaled by lora_alpha / lora_r.",
        source="transformers",
        group="adapter",
        above=0,
    )
    lora_dropout: float = setting(
        0.1, "lora, dora: dropout in front of them.", unit="fraction", group="adapter", at_least=0, below=1
    )
    peft_target_modules: tuple[str, ...] = setting(
        (),
        "Ends of the names of the layers that get an adapter; default: the library's choice for BERT (lora, dora: "
        "query and value of the attention; ia3: key, value and output.dense).",
        group="adapter",
    )

    def validate(self) -> None:
        """Refuses settings of an adapter without an adapter."""
        super().validate()
        require(
            self.peft is not None or not self.peft_target_modules,
            "--peft_target_modules needs --peft, for example --peft lora",
        )
        for item in fields(AdapterConfig):
            value = getattr(self, item.name)
            require(
                self.peft in ("lora", "dora") or not item.name.startswith("lora_") or value == item.default,
                f"--{item.name} {value} needs --peft lora or --peft dora",
            )


@dataclass(frozen=True)
class RunConfig(AdapterConfig):
    """What every training run shares: where it writes, how it computes, what it saves."""

    output_dir: str = setting(
        "runs/run", "Folder for the model, results, logs and checkpoints.", source="transformers", group="output"
    )
    overwrite_output_dir: bool = setting(
        False, "Replace what the output folder holds.", source="transformers", group="output"
    )
    seed: int = setting(
        42,
        "Seed of initialization, dropout, order, pairs and masks.",
        source="transformers",
        group="training",
        at_least=0,
        at_most=4_294_967_295,
    )
    train_batch_size: int | None = setting(
        None,
        "Sequences per optimizer step over all devices. Default: per_device_train_batch_size x "
        "gradient_accumulation_steps x devices where given, else the paper's.",
        unit="sequences",
        group="training",
        above=0,
        at_most=1_000_000,
    )
    per_device_train_batch_size: int | None = setting(
        None,
        "Sequences per device and forward pass.",
        source="transformers",
        unit="sequences",
        group="speed",
        above=0,
        at_most=1_000_000,
    )
    gradient_accumulation_steps: int | None = setting(
        None,
        "Forward passes per optimizer step; where train_batch_size is given it follows from the other two.",
        source="transformers",
        group="speed",
        above=0,
        at_most=1_000_000,
    )
    per_device_eval_batch_size: int = setting(
        64,
        "Sequences per device in evaluation.",
        source="transformers",
        unit="sequences",
        group="speed",
        above=0,
        at_most=1_000_000,
    )
    max_steps: int | None = setting(
        None,
        "Optimizer steps of the run.",
        source="transformers",
        unit="steps",
        group="training",
        above=0,
        at_most=1_000_000_000,
    )
    mixed_precision: str = setting(
        "no", "Autocast precision.", source="transformers", choices=("no", "bf16", "fp16"), group="training"
    )
    attn_implementation: str = setting(
        "sdpa",
        "Attention of transformers' interface: eager, sdpa, flex_attention, flash_attention_2 ...",
        source="transformers",
        group="speed",
    )
    packing: bool = setting(
        True, "Concatenate sequences instead of padding them; the results are equal.", group="speed"
    )
    cpu_kernels: bool = setting(
        True,
        "On a CPU: this package's kernels for dropout, packed attention and cross-entropy, faster than PyTorch's; "
        "results differ in the random draws of dropout and by the rounding of sums only.",
        group="speed",
    )
    fast_float32: bool = setting(
        True,
        "On a CPU: float32 matrix products by oneDNN, where a trial shows that it keeps float32's accuracy.",
        group="speed",
    )
    keep_freed_memory: bool = setting(
        True,
        "On a CPU: keep freed memory for the next step instead of returning it to the system each time.",
        group="speed",
    )
    bf16_residual: bool = setting(
        False,
        "With mixed_precision bf16: round sums and outputs of the layers' LayerNorms to bfloat16 too, a sixth less "
        "memory traffic between a GPU's matrix products (an estimate); 32 bits wide otherwise.",
        group="speed",
    )
    torch_compile: bool | None = setting(
        None,
        "Compile the training step with torch.compile. Default: on a GPU; fine-tuning only where packed batches are "
        "trained on long enough to pay for compiling (7,500 steps, an estimate).",
        source="transformers",
        group="speed",
    )
    gradient_checkpointing: bool = setting(
        False, "Recompute activations to save memory.", source="transformers", group="speed"
    )
    fsdp: bool = setting(
        False,
        "Shard weights, gradients and optimizer state over the devices (FSDP2), for models too large for one; also "
        "switched on by accelerate launch --use_fsdp --fsdp_version 2. The checkpoints are the same.",
        group="speed",
    )
    dataloader_num_workers: int | None = setting(
        None,
        "Loader processes per device; 0 loads in the training process. Default: 4 with a GPU, else 0. The examples do "
        "not depend on it.",
        source="transformers",
        group="speed",
        at_least=0,
        at_most=1024,
    )
    dataloader_prefetch_factor: int = setting(
        4,
        "Steps that each loader process prefetches.",
        source="transformers",
        unit="steps",
        group="speed",
        above=0,
        at_most=1024,
    )
    dataloader_pin_memory: bool = setting(
        True,
        "Load into page-locked memory where there is a GPU, so that copies overlap with computation.",
        source="transformers",
        group="speed",
    )
    logging_steps: int | None = setting(
        None,
        "Steps between two lines of the log; default: 1 in runs of fewer than 200 steps, else 10.",
        source="transformers",
        unit="steps",
        group="logging",
        above=0,
        at_most=1_000_000_000,
    )
    eval_steps: int | None = setting(
        None,
        "Steps between two evaluations; default: at the end only.",
        source="transformers",
        unit="steps",
        group="logging",
        above=0,
        at_most=1_000_000_000,
    )
    save_steps: int | None = setting(
        None,
        "Steps between two checkpoints; default: none.",
        source="transformers",
        unit="steps",
        group="logging",
        above=0,
        at_most=1_000_000_000,
    )
    save_total_limit: int = setting(
        2,
        "Checkpoints to keep, the newest.",
        source="transformers",
        unit="checkpoints",
        group="logging",
        above=0,
        at_most=1_000_000_000,
    )
    resume_from_checkpoint: str | None = setting(
        None,
        "Resume from a checkpoint: its folder, or `latest` for the newest valid one in the output folder.",
        source="transformers",
        group="training",
    )
    allow_changed_settings: bool = setting(
        False, "Resume although settings have changed that decide the result.", group="training"
    )
    report_to: tuple[str, ...] = setting(
        ("none",),
        "Send settings, log and final results to these trackers too; all: to all that are installed.",
        source="transformers",
        choices=("none", "all", *TRACKERS),
        group="logging",
    )
    run_name: str | None = setting(
        None, "Name of the run in trackers; default: that of the output folder.", source="transformers", group="logging"
    )
    project: str = setting("bert_repro", "Project of the run in trackers.", source="transformers", group="logging")
    deterministic: bool = setting(False, "Deterministic CUDA kernels: bit-identical repetition, slower.", group="speed")
    push_to_hub: bool = setting(False, "Upload the finished folder to the Hub.", source="transformers", group="hub")
    hub_model_id: str | None = setting(
        None, "Repository on the Hub, for example org/name.", source="transformers", group="hub"
    )
    hub_private_repo: bool | None = setting(
        None,
        "Make a new repository private; default: public, unless its organization decides otherwise.",
        source="transformers",
        group="hub",
    )

    def validate(self) -> None:
        """Refuses to shard adapters, and 16-bit residuals without 16-bit products."""
        super().validate()
        require(
            not self.bf16_residual or self.mixed_precision == "bf16",
            f"--bf16_residual needs --mixed_precision bf16, not {self.mixed_precision}",
        )
        require(
            not (self.fsdp and self.peft),
            f"--fsdp and --peft {self.peft} exclude each other: an adapter's gradients and optimizer state are small; "
            "leave --fsdp out",
        )
