"""What pre-training and fine-tuning share: optimiser, adapters, the run itself."""

from dataclasses import dataclass, fields

from bert_repro.configs.base import Config, require, setting


@dataclass(frozen=True)
class OptimizerConfig(Config):
    """BERT's Adam and its schedule (paper A.2, released optimization.py)."""

    learning_rate: float = setting(1e-4, "Peak learning rate.", source="paper")
    adam_beta1: float = setting(0.9, "Adam's beta 1.", source="paper")
    adam_beta2: float = setting(0.999, "Adam's beta 2.", source="paper")
    adam_epsilon: float = setting(1e-6, "Adam's epsilon.", source="original implementation")
    weight_decay: float = setting(
        0.01,
        "Decoupled weight decay on everything but biases and LayerNorm.",
        source="paper",
        deviation="The paper writes L2 weight decay; the released optimiser decays decoupled from the gradient (ours).",
    )
    bias_correction: bool = setting(
        False,
        "Adam's bias correction.",
        source="original implementation",
        deviation="The paper says Adam, whose definition corrects the bias; the released optimiser does not (ours), "
        "which its author called an oversight.",
    )
    fused_optimizer: bool = setting(True, "Update all weights in one kernel (not on XLA).")
    max_grad_norm: float = setting(
        1.0,
        "Clip the global gradient norm to this; 0 turns clipping off.",
        source="original implementation",
        deviation="Not in the paper. The release clips each core's gradient; ours clips the gradient of the whole "
        "global batch, so the result does not depend on the number of devices.",
    )
    warmup_steps: int | None = setting(None, "Steps of linear warm-up; overrides warmup_ratio.", unit="steps")
    warmup_ratio: float = setting(
        0.01,
        "Warm-up as a share of all steps.",
        source="paper",
        unit="fraction",
        deviation="Pre-training: 10,000 of 1,000,000 steps (paper). Fine-tuning: 0.1 (released; the paper is silent).",
    )
    decay_from: str = setting(
        "start",
        "Linear decay to 0 measured from step 0 (start) or from the end of the warm-up (warmup_end).",
        source="original implementation",
        choices=("start", "warmup_end"),
        deviation="The paper says linear decay. The release measures it from step 0 (ours), so the rate drops by the "
        "warm-up's share when the warm-up ends.",
    )

    def validate(self) -> None:
        """Ranges of the optimiser's numbers."""
        super().validate()
        for name in ("learning_rate", "weight_decay", "max_grad_norm", "warmup_steps"):
            value = getattr(self, name)
            require(value is None or value >= 0, f"--{name} is {value}; it must not be negative")
        require(self.adam_epsilon > 0, f"--adam_epsilon is {self.adam_epsilon}; it must be positive")
        require(0 <= self.warmup_ratio <= 1, f"--warmup_ratio is {self.warmup_ratio}; it must lie in [0, 1]")
        for name in ("adam_beta1", "adam_beta2"):
            value = getattr(self, name)
            require(0 <= value < 1, f"--{name} is {value}; it must lie in [0, 1)")


@dataclass(frozen=True)
class AdapterConfig(Config):
    """Training a few added weights in place of all, through the `peft` library (Hu et al., 2021; not in the paper)."""

    peft: str | None = setting(
        None,
        "Train an adapter of this kind, with a new head where there is one, and freeze the rest: lora, dora or ia3. It "
        "wants higher rates than full training, such as 5e-4. The run leaves the adapter in `adapter/` and beside it "
        "the whole model with the adapter merged.",
        choices=("lora", "dora", "ia3"),
    )
    lora_r: int = setting(8, "lora, dora: rank of the added matrices.", source="transformers")
    lora_alpha: int = setting(16, "lora, dora: their product is scaled by lora_alpha / lora_r.", source="transformers")
    lora_dropout: float = setting(0.1, "lora, dora: dropout in front of them.", unit="fraction")
    peft_target_modules: tuple[str, ...] = setting(
        (),
        "Ends of the names of the layers that get an adapter; default: the library's choice for BERT (lora, dora: "
        "query and value of the attention; ia3: key, value and output.dense).",
    )

    def validate(self) -> None:
        """Ranges of the adapter's numbers; its own settings only with an adapter."""
        super().validate()
        for name in ("lora_r", "lora_alpha"):
            require(getattr(self, name) > 0, f"--{name} is {getattr(self, name)}; it must be positive")
        require(0 <= self.lora_dropout < 1, f"--lora_dropout is {self.lora_dropout}; it must lie in [0, 1)")
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

    output_dir: str = setting("runs/run", "Folder for the model, results, logs and checkpoints.", source="transformers")
    overwrite_output_dir: bool = setting(False, "Replace what the output folder holds.", source="transformers")
    seed: int = setting(42, "Decides initialisation, dropout, order, pairs and masks.", source="transformers")
    train_batch_size: int | None = setting(
        None,
        "Sequences per optimiser step over all devices. Default: per_device_train_batch_size x "
        "gradient_accumulation_steps x devices where given, else the paper's.",
        unit="sequences",
    )
    per_device_train_batch_size: int | None = setting(
        None, "Sequences per device and forward pass.", source="transformers", unit="sequences"
    )
    gradient_accumulation_steps: int | None = setting(
        None,
        "Forward passes per optimiser step; with train_batch_size it follows from the other two.",
        source="transformers",
    )
    per_device_eval_batch_size: int = setting(
        64, "Sequences per device in evaluation.", source="transformers", unit="sequences"
    )
    max_steps: int | None = setting(None, "Optimiser steps of the whole run.", source="transformers", unit="steps")
    mixed_precision: str = setting("no", "Autocast precision.", source="transformers", choices=("no", "bf16", "fp16"))
    attn_implementation: str = setting(
        "sdpa",
        "Attention of transformers' interface: eager, sdpa, flex_attention, flash_attention_2 ...",
        source="transformers",
    )
    packing: bool = setting(True, "Lay sequences end to end instead of padding them; the results are equal.")
    cpu_kernels: bool = setting(
        True,
        "On a CPU: dropout and packed attention by kernels of our own, faster than PyTorch's; the results differ "
        "in the draws of dropout only.",
    )
    fast_float32: bool = setting(
        True, "On a CPU: float32 products by oneDNN, where a trial shows that it keeps float32's accuracy."
    )
    keep_freed_memory: bool = setting(
        True, "On a CPU: keep freed memory for the next step in place of giving it back to the system each time."
    )
    gradient_checkpointing: bool = setting(False, "Recompute activations to save memory.", source="transformers")
    fsdp: bool = setting(
        False,
        "Each device keeps only its share of weights, gradients and moments (FSDP2), for models too large for one; "
        "also switched on by accelerate launch --use_fsdp --fsdp_version 2. One device keeps all. The checkpoints are "
        "the same.",
    )
    dataloader_num_workers: int | None = setting(
        None,
        "Loader processes per device; 0 loads in the training process. Default: 4 beside a GPU, else 0. The examples "
        "are the same.",
        source="transformers",
    )
    dataloader_prefetch_factor: int = setting(
        4, "Steps that each loader process is ahead.", source="transformers", unit="steps"
    )
    dataloader_pin_memory: bool = setting(
        True,
        "Load into page-locked memory where there is a GPU, so that copies overlap with work.",
        source="transformers",
    )
    logging_steps: int = setting(10, "Log every so many steps.", source="transformers", unit="steps")
    eval_steps: int | None = setting(None, "Evaluate every so many steps.", source="transformers", unit="steps")
    save_steps: int | None = setting(
        None, "Write a checkpoint every so many steps.", source="transformers", unit="steps"
    )
    save_total_limit: int = setting(2, "Keep the newest checkpoints only.", source="transformers", unit="checkpoints")
    resume_from_checkpoint: str | None = setting(
        None,
        "Go on from a checkpoint: its folder, or `latest` for the newest valid one in the output folder.",
        source="transformers",
    )
    report_to: str = setting(
        "none", "Also log to this tracker.", source="transformers", choices=("none", "tensorboard", "wandb")
    )
    deterministic: bool = setting(False, "Deterministic CUDA kernels: bit-exact repetition, slower.")
    push_to_hub: bool = setting(False, "Upload the finished folder to the Hub.", source="transformers")
    hub_model_id: str | None = setting(None, "Repository on the Hub, for example org/name.", source="transformers")
    hub_private_repo: bool | None = setting(
        None,
        "Make a new repository private; default: public, unless its organisation decides otherwise.",
        source="transformers",
    )

    def validate(self) -> None:
        """Positive counts; contradictory batch sizes."""
        super().validate()
        for name in ("train_batch_size", "per_device_train_batch_size", "gradient_accumulation_steps",
                     "per_device_eval_batch_size", "max_steps", "logging_steps", "eval_steps", "save_steps",
                     "save_total_limit", "dataloader_prefetch_factor"):  # fmt: skip
            value = getattr(self, name)
            require(value is None or value > 0, f"--{name} is {value}; it must be positive")
        require(
            not (self.fsdp and self.peft),
            f"--fsdp and --peft {self.peft} exclude each other: an adapter's gradients and moments are small; leave "
            "--fsdp out",
        )
