"""What a run is told: every setting once, with its help text, unit and source.

The field metadata is the single source of three things: the recipes' flags (`bert_repro.cli`), the configuration
reference (docs/CONFIGURATION.md) and the list of choices where the paper and the released code differ or are silent
(docs/DEVIATIONS.md). `source` says who decides the default: "paper", "released" (the code the authors released),
"transformers" (a name and meaning its users know) or "ours".
"""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from bert_repro.errors import UserError

Source = Literal["paper", "released", "transformers", "ours"]


def setting(
    default: Any,
    help: str,
    *,
    source: Source = "ours",
    unit: str | None = None,
    choices: tuple[str, ...] | None = None,
    deviation: str | None = None,
) -> Any:
    """A dataclass field with the metadata that help texts and documents are generated from.

    Args:
        default: the default value; immutable.
        help: one sentence.
        source: who decides the default.
        unit: what a number counts (steps, tokens, epochs, fraction ...).
        choices: the allowed values of a string.
        deviation: where the paper, the released code or this project differ or are silent about this choice, and
            which reading the default takes. Listed in docs/DEVIATIONS.md.
    """
    metadata = {"help": help, "source": source, "unit": unit, "choices": choices, "deviation": deviation}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Config:
    """Base of all configurations: checks the choices; a subclass adds its own checks in `validate`."""

    def __post_init__(self) -> None:
        for item in fields(self):
            choices, value = item.metadata.get("choices"), getattr(self, item.name)
            if choices and value is not None and value not in choices:
                raise UserError(f"--{item.name} is {value!r}; it must be one of: {', '.join(choices)}")
        self.validate()

    def validate(self) -> None:
        """Raises `UserError` when settings contradict each other. Each class checks its own and calls super()."""


def require(condition: bool, message: str) -> None:
    """Raises `UserError` with `message` unless the condition holds."""
    if not condition:
        raise UserError(message)


# ---------------------------------------------------------------------------------------------------------------- text


@dataclass(frozen=True)
class TextConfig(Config):
    """Where raw text comes from and which of it counts as text."""

    input_files: tuple[str, ...] = setting(
        (),
        "Files (.txt with a blank line between documents, .jsonl, .parquet; text also .gz or .xz), folders, globs, "
        "or one Hub dataset id.",
    )
    text_column: str = setting("text", "Field of a JSON line or column of a Parquet file that holds the text.")
    title_column: str = setting("title", "Field that holds the title, dropped where the text repeats it.")
    hub_config: str | None = setting(None, "Configuration of a Hub dataset, for example 20231101.en.")
    hub_split: str = setting("train", "Split of a Hub dataset.")
    max_documents: int | None = setting(None, "Stop after this many documents.", unit="documents")
    text_passages_only: bool = setting(
        True,
        "Drop headings, lists, tables and debris.",
        source="paper",
        deviation="The paper extracts only the text passages of Wikipedia and ignores lists, tables and headers "
        "(3.1); it does not publish the rules. Ours are in bert_repro/data/passages.py and what each drops is counted.",
    )

    def validate(self) -> None:
        """At least one input; positive limits."""
        super().validate()
        require(len(self.input_files) > 0, "--input_files is empty; name at least one file, folder or Hub dataset id")
        require(self.max_documents is None or self.max_documents > 0, "--max_documents must be positive")


@dataclass(frozen=True)
class TokenizerConfig(TextConfig):
    """Trains a WordPiece vocabulary (recipes/train_tokenizer.py)."""

    output_dir: str = setting("runs/tokenizer", "Folder to write the tokenizer to.")
    overwrite_output_dir: bool = setting(False, "Replace what the output folder holds.", source="transformers")
    vocab_size: int = setting(
        30522,
        "Size of the vocabulary, special tokens included.",
        source="released",
        unit="tokens",
        deviation="The paper says 30,000; the released vocabularies have 30,522 (uncased) and 28,996 (cased).",
    )
    lowercase: bool = setting(True, "Lower-case the text (the uncased models).", source="released")
    strip_accents: bool | None = setting(None, "Strip accents; default: as `lowercase`.", source="released")
    handle_chinese_chars: bool = setting(True, "Put spaces around CJK characters.", source="released")
    min_frequency: int = setting(2, "Drop pieces seen less often than this.", unit="occurrences")
    limit_alphabet: int = setting(
        1000, "Most frequent characters that get entries; raise it for scripts with many.", unit="characters"
    )
    max_input_chars_per_word: int = setting(
        100,
        "A longer word becomes [UNK].",
        source="transformers",
        unit="characters",
        deviation="100 in the first release and in transformers (ours, so tokens equal stock); 200 in the release "
        "since 2018-11-23.",
    )
    max_words: int | None = setting(None, "Learn from the first so many words only.", unit="words")


@dataclass(frozen=True)
class CorpusConfig(TextConfig):
    """Turns raw text into a memory-mapped folder of token ids (recipes/prepare_corpus.py)."""

    tokenizer: str = setting("", "Tokenizer folder, vocab.txt or Hub id.")
    output_dir: str = setting("runs/corpus", "Folder to write the prepared corpus to.")
    overwrite_output_dir: bool = setting(False, "Replace what the output folder holds.", source="transformers")
    num_proc: int = setting(1, "Processes that split and tokenise; the result does not depend on it.")
    sentence_splitter: str = setting(
        "nupunkt",
        "nupunkt finds sentence boundaries; lines takes each line as one sentence (the released input format).",
        choices=("nupunkt", "lines"),
        deviation="The paper does not name its sentence splitter and the released code leaves it to the user. "
        "Ours is nupunkt; its version is in the manifest.",
    )
    max_input_chars_per_word: int | None = setting(
        None, "A longer word becomes [UNK]; default: as the tokenizer was saved.", unit="characters"
    )

    shard: str | None = setting(
        None,
        "Prepare one share of the work, for example 3/16 (from 1/16 to 16/16): the same command on every machine, with "
        "the same output_dir on a disk they share. Afterwards the same command with --join makes the corpus.",
    )
    join: bool = setting(False, "Make the corpus out of shards that are all prepared; the same as one made whole.")

    def validate(self) -> None:
        """A tokenizer is needed; a shard is written as number/count."""
        super().validate()
        if self.shard is not None:
            number, _, count = self.shard.partition("/")
            is_shard = number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)
            require(is_shard, f"--shard is {self.shard!r}; write number/count from 1/16 to 16/16, for example 3/16")
            require(
                not self.join, f"--shard {self.shard} and --join are two steps: first all the shards, then the join"
            )
            require(
                not self.overwrite_output_dir,
                "--overwrite_output_dir with --shard could remove the work of other shards; give it to --join",
            )
        require(bool(self.tokenizer), "--tokenizer is missing; name a tokenizer folder, a vocab.txt or a Hub id")


# -------------------------------------------------------------------------------------------------- every training run


@dataclass(frozen=True)
class OptimizerConfig(Config):
    """BERT's Adam and its schedule (paper A.2, released optimization.py)."""

    learning_rate: float = setting(1e-4, "Peak learning rate.", source="paper")
    adam_beta1: float = setting(0.9, "Adam's beta 1.", source="paper")
    adam_beta2: float = setting(0.999, "Adam's beta 2.", source="paper")
    adam_epsilon: float = setting(1e-6, "Adam's epsilon.", source="released")
    weight_decay: float = setting(
        0.01,
        "Decoupled weight decay on everything but biases and LayerNorm.",
        source="paper",
        deviation="The paper writes L2 weight decay; the released optimiser decays decoupled from the gradient (ours).",
    )
    bias_correction: bool = setting(
        False,
        "Adam's bias correction.",
        source="released",
        deviation="The paper says Adam, whose definition corrects the bias; the released optimiser does not (ours), "
        "which its author called an oversight.",
    )
    max_grad_norm: float = setting(
        1.0,
        "Clip the global gradient norm to this; 0 turns clipping off.",
        source="released",
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
        source="released",
        choices=("start", "warmup_end"),
        deviation="The paper says linear decay. The release measures it from step 0 (ours), so the rate drops by the "
        "warm-up's share when the warm-up ends.",
    )

    def validate(self) -> None:
        """Ranges of the optimiser's numbers."""
        super().validate()
        require(self.learning_rate >= 0, f"--learning_rate is {self.learning_rate}; it must not be negative")
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


# --------------------------------------------------------------------------------------------------------- pre-training


@dataclass(frozen=True)
class Phase:
    """A stretch of pre-training at one sequence length (paper A.2: 128 for 90% of the steps, then 512).

    Args:
        max_seq_length: tokens per sequence, special tokens included.
        steps: optimiser steps of this phase.
        batch: sequences per optimiser step over all devices.
        max_predictions_per_seq: most predicted tokens of a sequence; None: no limit beyond masked_lm_prob.
        per_device_batch: sequences per device and forward pass; None: the run's setting.
    """

    max_seq_length: int
    steps: int
    batch: int
    max_predictions_per_seq: int | None = None
    per_device_batch: int | None = None


@dataclass(frozen=True)
class ExampleConfig(Config):
    """How pre-training examples are made from documents (paper 3.1, A.1, A.2; fidelity to the released generator)."""

    next_sentence_prediction: bool = setting(True, "Train with the NSP loss (False: Table 5's no NSP).", source="paper")
    left_to_right: bool = setting(
        False,
        "Left-to-right language model (Table 5's LTR): causal attention, every next token is predicted and none is "
        "masked; needs next_sentence_prediction false.",
        source="paper",
        deviation="The paper's left-to-right model sees left context only, in fine-tuning too (5.1). It does not say "
        "which token its classifier reads: ours reads the last one, since under causal attention [CLS] sees nothing "
        "but itself. [CLS] and [SEP] are read and [SEP] is predicted like any token.",
    )
    nsp_sampling: str = setting(
        "paper",
        "paper: the label is drawn first, 50/50. released: a chunk of one sentence is always NotNext.",
        source="paper",
        choices=("paper", "released"),
        deviation="The paper states 50% IsNext; the released generator gives more NotNext (55-60% on usual text) "
        "because a chunk of one sentence can only be NotNext. Where the two disagree about a stated fact, the paper.",
    )
    no_nsp_input: str = setting(
        "pairs",
        "Without NSP: the same pairs with the loss off (pairs), or one contiguous text (contiguous).",
        choices=("pairs", "contiguous"),
        deviation="The paper does not say what the no-NSP model reads (Table 5).",
    )
    short_seq_prob: float = setting(0.1, "Probability of a shorter target length.", source="paper", unit="fraction")
    masked_lm_prob: float = setting(0.15, "Share of tokens that are predicted.", source="paper", unit="fraction")
    mask_share: float = setting(0.8, "Of those, replaced by [MASK].", source="paper", unit="fraction")
    random_share: float = setting(0.1, "Of those, replaced by a random token.", source="paper", unit="fraction")
    random_token_source: str = setting(
        "vocab",
        "Random tokens from the whole vocabulary (vocab), or without special and [unused] tokens (ordinary).",
        source="released",
        choices=("vocab", "ordinary"),
        deviation="The paper says a random token; the release draws from all ids, specials included (ours).",
    )
    whole_word_masking: bool = setting(
        False,
        "Mask whole words (the release of 2019-05).",
        source="released",
        deviation="Not in the paper. In the release a segment B that starts with ## joins A's last word across "
        "[SEP]; ours starts a new group after [SEP].",
    )
    dupe_factor: int | None = setting(
        None,
        "Static examples: so many passes over the documents are drawn once, shuffled together, and repeated with the "
        "same pairs and masks; the release's is 10. Default: every pass is drawn anew.",
        unit="passes",
        deviation="The paper is silent. The release writes examples to disk with their masks, ten passes shuffled "
        "together, and repeats them. Ours draws pairs and masks anew in every pass; with dupe_factor=10 the examples "
        "are those of the release in distribution, and each repetition comes in a new order.",
    )

    def validate(self) -> None:
        """Shares are fractions."""
        super().validate()
        for name in ("short_seq_prob", "masked_lm_prob", "mask_share", "random_share"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"--{name} is {value}; it must lie in [0, 1]")
        require(self.dupe_factor is None or self.dupe_factor > 0, f"--dupe_factor is {self.dupe_factor}; at least 1")
        require(
            not (self.left_to_right and self.next_sentence_prediction),
            "--left_to_right needs --next_sentence_prediction false: [CLS] sees no later token to judge by",
        )
        require(
            not (self.left_to_right and self.whole_word_masking),
            "--left_to_right and --whole_word_masking exclude each other: nothing is masked",
        )
        total = self.mask_share + self.random_share
        require(total <= 1 + 1e-9, f"--mask_share + --random_share is {total}; it must not exceed 1")


@dataclass(frozen=True)
class PretrainingConfig(ExampleConfig, OptimizerConfig, RunConfig):
    """Pre-training with MLM and NSP (recipes/run_pretraining.py)."""

    corpus: str = setting("", "Prepared corpus (recipes/prepare_corpus.py).")
    model_name_or_path: str | None = setting(
        None, "Go on from this BERT checkpoint; default: from scratch.", source="transformers"
    )
    num_hidden_layers: int = setting(12, "Layers (the paper's L).", source="paper")
    hidden_size: int = setting(768, "Hidden size (H); the feed-forward size is 4H.", source="paper")
    num_attention_heads: int = setting(12, "Attention heads (A).", source="paper")
    hidden_act: str = setting(
        "gelu",
        "gelu (erf) or gelu_new (tanh).",
        source="released",
        choices=("gelu", "gelu_new"),
        deviation="The paper says gelu. The release of 2018 computed erf (ours), from 2019-02 the tanh form.",
    )
    initializer_range: float = setting(
        0.02, "Standard deviation of the first weights, truncated at two of it.", source="released"
    )
    hidden_dropout_prob: float = setting(0.1, "Dropout after every layer.", unit="fraction", source="paper")
    attention_probs_dropout_prob: float = setting(0.1, "Dropout of attention weights.", unit="fraction", source="paper")
    max_seq_length: int = setting(128, "Tokens per sequence, where `phases` is not set.", unit="tokens")
    max_predictions_per_seq: int | None = setting(
        None, "Most predicted tokens of a sequence, where `phases` is not set.", unit="tokens"
    )
    phases: tuple[Phase, ...] = setting((), "Phases as a YAML list of {max_seq_length, steps, batch}.", source="paper")
    heldout_fraction: float = setting(
        0.01,
        "Share of documents that training never sees.",
        unit="fraction",
        deviation="The paper does not describe its held-out data.",
    )
    torch_compile: bool | None = setting(
        None, "Compile the model with torch.compile. Default: on a GPU.", source="transformers"
    )
    fixed_shapes: bool | None = setting(
        None,
        "Fill every forward pass of a phase up to one shape with sequences of padding that change no loss, so that one "
        "graph is compiled: as many tokens as nearly every step needs, or with padded batches their full length. "
        "Default: where the model is compiled, and on XLA.",
    )
    plan: bool = setting(False, "Print positions, FLOPs and expected time of the run, and stop.")
    hub_strategy: str = setting(
        "end",
        "With push_to_hub: upload the finished model (end), or every checkpoint of save_steps too, as the revision "
        "step-N (every_save).",
        source="transformers",
        choices=("end", "every_save"),
    )
    max_eval_sequences: int = setting(1024, "Held-out sequences in an evaluation.", unit="sequences")

    def validate(self) -> None:
        """Shape of the model and of the phases."""
        super().validate()
        require(
            self.hidden_size % self.num_attention_heads == 0,
            f"--hidden_size is {self.hidden_size}; it must be a multiple of --num_attention_heads "
            f"({self.num_attention_heads})",
        )
        require(self.initializer_range > 0, f"--initializer_range is {self.initializer_range}; it must be positive")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            value = getattr(self, name)
            require(0 <= value < 1, f"--{name} is {value}; it must lie in [0, 1)")
        require(
            self.peft is None or self.model_name_or_path is not None,
            f"--peft {self.peft} needs --model_name_or_path: an adapter goes beside trained weights",
        )
        require(
            self.hub_strategy == "end" or (self.push_to_hub and self.peft is None and self.save_steps is not None),
            "--hub_strategy every_save needs --push_to_hub and --save_steps, and no --peft",
        )
        require(0 < self.heldout_fraction < 1, f"--heldout_fraction is {self.heldout_fraction}; it must lie in (0, 1)")
        for phase in self.phases:
            require(
                phase.max_seq_length >= 8 and phase.steps > 0 and phase.batch > 0,
                f"phases: {phase}; max_seq_length must be at least 8, steps and batch positive",
            )
        require(self.max_seq_length >= 8, f"--max_seq_length is {self.max_seq_length}; it must be at least 8")


@dataclass(frozen=True)
class AuditConfig(ExampleConfig):
    """Measures the examples that a corpus and settings give (recipes/audit_pretraining_data.py)."""

    corpus: str = setting("", "Prepared corpus (recipes/prepare_corpus.py).")
    output_dir: str = setting("runs/audit", "Folder for audit.json, audit.txt and audit.png.", source="transformers")
    overwrite_output_dir: bool = setting(False, "Replace what the output folder holds.", source="transformers")
    seed: int = setting(42, "Decides pairs and masks, as in pre-training.", source="transformers")
    max_seq_length: int = setting(128, "Tokens per sequence.", unit="tokens")
    max_predictions_per_seq: int | None = setting(None, "Most predicted tokens of a sequence.", unit="tokens")
    num_sequences: int = setting(200_000, "Sequences to look at, drawn from the first epoch.", unit="sequences")

    def validate(self) -> None:
        """A corpus; lengths and numbers that can be."""
        super().validate()
        require(bool(self.corpus), "--corpus is missing; name a prepared corpus")
        require(not self.left_to_right, "--left_to_right has no masks to audit; leave it out")
        require(self.max_seq_length >= 8, f"--max_seq_length is {self.max_seq_length}; it must be at least 8")
        require(self.num_sequences > 0, f"--num_sequences is {self.num_sequences}; it must be positive")


# ---------------------------------------------------------------------------------------------------------- fine-tuning


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
    warmup_ratio: float = setting(0.1, "Warm-up as a share of all steps.", source="released", unit="fraction")
    max_seq_length: int = setting(
        128, "Tokens per sequence; longer ones are truncated.", source="released", unit="tokens"
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
    search_learning_rates: tuple[float, ...] = setting(
        (),
        "Train with each of these rates, each batch size and each number of epochs of the search, and keep the model "
        "that is best on dev. The paper's two searches are the presets glue-search and finetuning-grid.",
    )
    search_batch_sizes: tuple[int, ...] = setting((), "Batch sizes of the search.", unit="sequences")
    search_num_train_epochs: tuple[float, ...] = setting((), "Numbers of epochs of the search.", unit="epochs")
    num_restarts: int = setting(
        1,
        "Train so many times, with the seeds seed, seed + 1 ...: another order of the data, another new head, the same "
        "checkpoint. With a search: each of its cells.",
        unit="runs",
        deviation="The paper restarts BERT-large on small sets and takes the best run on dev (4.1), without saying how "
        "many; Tables 6 and 7 give means of 5. Ours is one run; of several, mean and deviation stand beside the best.",
    )
    search_keep_models: bool = setting(
        False, "Keep the weights of every run of a search; otherwise those of the best run only."
    )

    @property
    def searches(self) -> bool:
        """Whether this is a search over several runs."""
        return self.num_restarts > 1 or any(getattr(self, name) for name in SEARCHED)

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
        if self.searches:
            self._validate_search()

    def _validate_search(self) -> None:
        require(self.do_train and self.do_eval, "a search and restarts need --do_train and --do_eval: dev chooses")
        defaults = {item.name: item.default for item in fields(self)}
        for name, single in SEARCHED.items():
            values = getattr(self, name)
            require(all(value > 0 for value in values), f"--{name} is {_listed(values)}; each must be positive")
            require(len(set(values)) == len(values), f"--{name} is {_listed(values)}; leave repetitions out")
            own = getattr(self, single)
            require(
                not values or own == defaults[single],
                f"--{single} {own} and --{name} {_listed(values)} exclude each other; leave one out",
            )
        require(
            self.max_steps is None or not self.search_num_train_epochs,
            f"--max_steps {self.max_steps} and --search_num_train_epochs exclude each other; leave one out",
        )
        require(
            self.resume_from_checkpoint in (None, "latest"),
            f"--resume_from_checkpoint {self.resume_from_checkpoint}: a search goes on with the same command; write "
            "`latest` or leave it out",
        )


SEARCHED = {
    "search_learning_rates": "learning_rate",
    "search_batch_sizes": "train_batch_size",
    "search_num_train_epochs": "num_train_epochs",
}
"""What a search goes over: the setting that lists the values, and the setting of a run that takes one of them."""


def _listed(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:g}" for value in values)


@dataclass(frozen=True)
class OwnFilesConfig(FinetuningConfig):
    """A task, or one's own files in its place."""

    train_file: str | None = setting(None, "File to train on.", source="transformers")
    validation_file: str | None = setting(None, "File to score.", source="transformers")
    test_file: str | None = setting(None, "File to predict; may lack labels.", source="transformers")

    @property
    def own_files(self) -> dict[str, Path]:
        """The files given, by split."""
        named = {"train": self.train_file, "validation": self.validation_file, "test": self.test_file}
        return {split: Path(name) for split, name in named.items() if name is not None}

    def validate(self) -> None:
        """Own files stand in place of published data, and every part of the run has one."""
        super().validate()
        if not self.own_files:
            return
        require(self.data_dir is None, f"--data_dir {self.data_dir} and own files exclude each other; leave one out")
        for doing, split in (("do_train", "train"), ("do_eval", "validation"), ("do_predict", "test")):
            require(
                not getattr(self, doing) or split in self.own_files,
                f"--{doing} needs --{split}_file",
            )


@dataclass(frozen=True)
class GlueConfig(OwnFilesConfig):
    """GLUE, or one's own texts and labels in .csv, .tsv or .jsonl files (recipes/run_glue.py)."""

    text_columns: tuple[str, ...] = setting(
        (), "Own files: the column, or two columns, of text; default: text, else text_a and text_b."
    )
    label_column: str = setting("label", "Own files: the column of labels.")
    regression: bool = setting(False, "Own files: labels are numbers to predict.")

    def validate(self) -> None:
        """Either a task of GLUE or own files."""
        super().validate()
        if self.own_files:
            require(not self.task_name, f"--task_name {self.task_name} and own files exclude each other; leave one out")
        require(len(self.text_columns) <= 2, f"--text_columns names {len(self.text_columns)}; one or two are needed")


@dataclass(frozen=True)
class SwagConfig(FinetuningConfig):
    """SWAG (recipes/run_swag.py); batch 16 unless told otherwise."""

    task_name: str = setting("swag", "Name of the task.", source="transformers", choices=("swag",))
    learning_rate: float = setting(2e-5, "Peak learning rate.", source="paper")
    max_seq_length: int = setting(
        128,
        "Tokens per sequence, of which an example has four; longer ones are truncated.",
        unit="tokens",
        deviation="SWAG: the paper states no length, and the code was not released. Ours is GLUE's; how many examples "
        "it cuts stands in results.json (`truncated`).",
    )
    start_segment: str = setting(
        "B",
        "Segment that holds the start of the second sentence: B, before the ending, or A, after the first sentence.",
        choices=("A", "B"),
        deviation="SWAG gives a sentence and the start of the next one; the paper pairs the given sentence (A) with a "
        "possible continuation (B) and does not say where the start belongs. Ours is `B`: only the first is a sentence "
        "as it stands, and segments then meet between two sentences, as in pre-training. `A` counts both as given.",
    )


@dataclass(frozen=True)
class NerConfig(OwnFilesConfig):
    """CoNLL-2003, or one's own tagged text (recipes/run_ner.py)."""

    task_name: str = setting("conll2003", "Name of the task.", source="transformers", choices=("conll2003",))
    learning_rate: float = setting(
        5e-5,
        "Peak learning rate.",
        source="paper",
        deviation="CoNLL-2003: the paper names no hyper-parameters beyond the general ones (A.3): batch 16 or 32, rate "
        "5e-5, 3e-5 or 2e-5, 2 to 4 epochs. Ours is 32, 5e-5 and 3.",
    )
    max_seq_length: int = setting(
        512,
        "Tokens per window.",
        unit="tokens",
        deviation="CoNLL-2003: the paper takes the maximal document context (5.3) and states no length. Ours is all "
        "the positions that BERT has, as no shorter window holds more of a document, and `tile` reads no word twice. "
        "A model with fewer positions is refused: give its number.",
    )
    ner_context: str = setting(
        "tile",
        "What is read at once: as many whole sentences of a document as fit, each word once (tile); each sentence "
        "amid its document's text, about 17 times the cost (centred); each sentence alone (sentence).",
        choices=("tile", "centred", "sentence"),
        deviation="The paper includes the maximal document context (5.3) and does not say how. `tile` (ours) reads "
        "each word once, so words at a window's border see less on one side; `centred` gives every sentence as much as "
        "fits. A sentence longer than a window is cut between words; no word is dropped.",
    )
    feature_based: str | None = setting(
        None,
        "Train a two-layer BiLSTM on hidden states of the frozen encoder, which are computed once (Table 7): of the "
        "embeddings, the second-to-last or last layer, the last four added with learnt weights or side by side, or all "
        "layers added (not the embeddings).",
        source="paper",
        choices=("embeddings", "second_to_last", "last", "weighted_last_four", "concat_last_four", "weighted_all"),
        deviation="The paper's BiLSTM has two layers and 768 dimensions (5.3); whether per direction or in total it "
        "does not say, nor rate, epochs and what the BiLSTM reads. Ours has `bilstm_size` per direction, 768 unless "
        "told otherwise (384 is the other reading), reads every token of a window, and the first piece of each word is "
        "classified.",
    )
    feature_weights: str = setting(
        "softmax",
        "Weights of added layers: softmax (positive, sum 1) or free.",
        choices=("softmax", "free"),
        deviation="The paper does not say whether the weights of its weighted sums are normalised. Ours pass through a "
        "softmax and start equal; `free` ones start at 1.",
    )
    feature_cache_dir: str = setting(
        "runs/features", "Folder of the hidden states, found again by the encoder's weights and the token ids."
    )

    def validate(self) -> None:
        """A frozen encoder is read packed, and has something to train above it."""
        super().validate()
        if self.feature_based is not None:
            require(
                self.do_train,
                "--feature_based needs --do_train; a finished model says itself what it reads",
            )
            require(self.packing, "--feature_based needs packing; leave --packing false out")
            require(self.peft is None, "--feature_based and --peft exclude each other: the encoder stays as it is")


@dataclass(frozen=True)
class ExtractionConfig(Config):
    """Features of a frozen encoder for every text of a file (recipes/extract_features.py)."""

    model_name_or_path: str = setting("", "Any BERT checkpoint: a folder or a Hub id.", source="transformers")
    tokenizer_name: str | None = setting(None, "Tokenizer, where it is not with the model.", source="transformers")
    input_file: str = setting("", "A text on each line, or .jsonl with a text in each object.")
    text_column: str = setting("text", "Field of a JSON line that holds the text.")
    output_file: str = setting("", "File to write: .parquet or .safetensors.")
    overwrite_output_file: bool = setting(False, "Replace the output file.")
    layers: tuple[str, ...] = setting(
        ("last",),
        "embeddings, last, second_to_last, last_four, all, or indices: 0 for the embeddings, 1 for the first layer, -1 "
        "for the last (Table 7).",
        source="paper",
    )
    combine: str = setting("concat", "How several layers become one vector.", choices=("concat", "sum"))
    pooling: str = setting(
        "none",
        "A vector for every token, special tokens included (none); or one for the text: of [CLS] (cls), or their mean "
        "over all tokens (mean).",
        choices=("none", "cls", "mean"),
    )
    max_seq_length: int = setting(512, "Tokens per text; longer ones are truncated.", unit="tokens")
    per_device_eval_batch_size: int = setting(64, "Texts per forward pass.", source="transformers", unit="sequences")
    mixed_precision: str = setting("no", "Autocast precision.", source="transformers", choices=("no", "bf16"))
    attn_implementation: str = setting("sdpa", "Attention of transformers' interface.", source="transformers")

    def validate(self) -> None:
        """A model, an input, an output and at least one layer."""
        super().validate()
        for name in ("model_name_or_path", "input_file", "output_file"):
            require(bool(getattr(self, name)), f"--{name} is missing")
        require(len(self.layers) > 0, "--layers is empty; name at least one, for example last")
        size = self.per_device_eval_batch_size
        require(size > 0, f"--per_device_eval_batch_size is {size}; it must be positive")


@dataclass(frozen=True)
class SquadConfig(FinetuningConfig):
    """SQuAD v1.1 and v2.0, or questions of one's own in their format (recipes/run_squad.py)."""

    num_train_epochs: float | None = setting(
        None, "Passes over the training set; default: 3 for squad, 2 for squad_v2.", source="paper", unit="epochs"
    )
    max_seq_length: int = setting(
        384, "Tokens per window: [CLS] question [SEP] passage [SEP].", source="released", unit="tokens"
    )
    max_query_length: int = setting(64, "Longer questions are cut to this.", source="released", unit="tokens")
    doc_stride: int = setting(
        128,
        "How far the window moves over a passage that does not fit. (`stride` of the tokenizers library is the "
        "overlap, another number.)",
        source="released",
        unit="tokens",
        deviation="The paper does not say what it does with long passages. The release slides a window (ours); a "
        "window without the full answer has [CLS] as its target, in v1.1 too.",
    )
    train_file: str | None = setting(None, "Training questions; default: the official file in data_dir, or the Hub's.")
    validation_file: str | None = setting(None, "Questions to score; default as for train_file.")
    test_file: str | None = setting(None, "Questions to predict, with or without answers; default as for train_file.")
    qa_loss: str = setting(
        "mean",
        "Mean or sum of the cross-entropies of start and end.",
        source="released",
        choices=("mean", "sum"),
        deviation="The paper maximises the sum of the two log-likelihoods (4.2); the release and transformers take "
        "their mean (ours).",
    )
    qa_softmax: str = setting(
        "sequence",
        "Where start and end may lie in the training loss: all tokens of the window (sequence), those and its padding "
        "up to max_seq_length (padded; needs --packing false), or the passage only, with [CLS] in v2.0 (paragraph).",
        source="released",
        choices=("sequence", "padded", "paragraph"),
        deviation="The paper's softmax is over the words of the paragraph, in v2.0 with [CLS]. The release's is over "
        "the whole window, question and padding included: `padded`. Ours leaves only the padding out, so that nothing "
        "is computed on it and batches of any layout give one result. Under `paragraph` a v1.1 window without the "
        "full answer has no target and is not trained on.",
    )
    decoding: str = setting(
        "released",
        "released: the n_best_size best starts with as many best ends, then filtered. exact: the best of all spans.",
        source="released",
        choices=("released", "exact"),
        deviation="The paper takes the span with the highest score of all j >= i. The release searches the 20 best "
        "starts and ends only, anywhere in the window, and keeps a span in the window where its start has most context "
        "(ours; `exact` keeps the last rule). Padding, which the release may find among the best, has no scores here.",
    )
    n_best_size: int = setting(20, "Starts and ends considered, and answers kept.", source="released", unit="answers")
    max_answer_length: int = setting(
        30,
        "Longest answer in pieces; 0: no limit.",
        source="released",
        unit="tokens",
        deviation="The paper states no limit; the release has 30 (ours).",
    )
    answer_text: str = setting(
        "released",
        "released: whole words, trimmed by aligning them with their tokenised form. offsets: the characters of the "
        "tokens.",
        source="released",
        choices=("released", "offsets"),
        deviation="The paper does not say how tokens become text. The release aligns (ours) and keeps whole words "
        "where that fails.",
    )
    null_score_diff_threshold: float | None = setting(
        None,
        "v2.0: no answer where the null score exceeds the best answer's by more than this (the paper's -tau). Default: "
        "the best for F1 on the dev set after training, else what the model stores, else 0.",
        source="paper",
        unit="logits",
        deviation="tau is chosen on the dev set that is then scored (4.3), so F1 at 0 is reported beside it. At "
        "equality the release answers (ours); the paper does not.",
    )

    def validate(self) -> None:
        """Room for a passage, positive sizes, a layout that has padding where padding is asked for."""
        super().validate()
        for name in ("max_query_length", "doc_stride", "n_best_size"):
            require(getattr(self, name) > 0, f"--{name} is {getattr(self, name)}; it must be positive")
        require(
            self.max_answer_length >= 0,
            f"--max_answer_length is {self.max_answer_length}; it must be positive, or 0 for no limit",
        )
        require(
            self.max_seq_length >= self.max_query_length + 8,
            f"--max_seq_length is {self.max_seq_length}; it must be at least --max_query_length + 8 "
            f"({self.max_query_length + 8}) to leave room for a passage",
        )
        require(
            self.qa_softmax != "padded" or not self.packing,
            "--qa_softmax padded needs --packing false: packed sequences have no padding",
        )


@dataclass(frozen=True)
class SquadScoringConfig(Config):
    """Scores a file of predictions as the official SQuAD scripts do (recipes/score_squad.py)."""

    task_name: str = setting("squad", "squad or squad_v2.", source="transformers", choices=("squad", "squad_v2"))
    data_file: str = setting("", "Questions with their answers: dev-v1.1.json, dev-v2.0.json.")
    predictions_file: str = setting("", "JSON: question id -> answer text, empty for no answer.")
    null_odds_file: str | None = setting(
        None, "JSON: question id -> null score less best score; v2.0 then also finds the best threshold."
    )

    def validate(self) -> None:
        """Both files are needed."""
        super().validate()
        for name in ("data_file", "predictions_file"):
            require(bool(getattr(self, name)), f"--{name} is missing; name a JSON file")


@dataclass(frozen=True)
class GlueZipConfig(Config):
    """Gathers test predictions of finished runs into the zip of the GLUE leaderboard (recipes/make_glue_zip.py)."""

    runs: tuple[str, ...] = setting((), "Folders of finished runs, or folders that hold such folders at any depth.")
    output_file: str = setting("", "The zip to write.")
    overwrite_output_file: bool = setting(False, "Replace the output file.")

    def validate(self) -> None:
        """Runs to read and a zip to write."""
        super().validate()
        require(len(self.runs) > 0, "--runs is missing; name at least one folder of finished runs")
        require(
            self.output_file.endswith(".zip"), f"--output_file is {self.output_file!r}; name a file that ends in .zip"
        )


@dataclass(frozen=True)
class GlueZipCheckConfig(Config):
    """Holds any zip to the form that the GLUE leaderboard takes (recipes/check_glue_zip.py)."""

    zip_file: str = setting("", "The zip to check.")

    def validate(self) -> None:
        """A zip to read."""
        super().validate()
        require(bool(self.zip_file), "--zip_file is missing; name the zip to check")


@dataclass(frozen=True)
class CardConfig(Config):
    """Makes the card of a finished run anew, with facts that its record cannot know (recipes/make_card.py)."""

    folder: str = setting("", "Output folder of a finished run.")
    output_file: str | None = setting(None, "File to write; default: README.md in the folder.")
    same_runs: tuple[str, ...] = setting(
        (), "Folders of the same run with other seeds: the card shows mean and deviation over all of them."
    )
    hub_model_id: str | None = setting(
        None, "The model's name on the card; default: as in the run, else the folder's name.", source="transformers"
    )
    base_model: str | None = setting(None, "Id on the Hub of the weights that the run started from.")
    dataset: str | None = setting(
        None, "Id on the Hub of the data, where --data_dir held other data than the task's; none: it has no id there."
    )
    language: tuple[str, ...] = setting((), "Languages of the text, as ISO 639 codes.")
    license: str | None = setting(None, "Licence of the weights, as the Hub spells it, for example apache-2.0.")
    data_license: str | None = setting(None, "Licence of the training data, in words.")
    note: str | None = setting(None, "A sentence about the data or the scores.")

    def validate(self) -> None:
        """A folder."""
        super().validate()
        require(bool(self.folder), "--folder is missing; name the output folder of a finished run")


@dataclass(frozen=True)
class PushConfig(Config):
    """Uploads a published folder to the Hub (recipes/push_to_hub.py)."""

    folder: str = setting("", "Output folder of a finished run, or one of its checkpoints.")
    hub_model_id: str = setting(
        "", "Repository on the Hub, for example org/name; made if need be.", source="transformers"
    )
    hub_private_repo: bool | None = setting(
        None,
        "Make a new repository private; default: public, unless its organisation decides otherwise.",
        source="transformers",
    )
    hub_revision: str | None = setting(
        None, "Branch to upload to; default: main, for a checkpoint step-N.", source="transformers"
    )
    checkpoints: bool = setting(False, "Upload the run's checkpoints too, each as the revision step-N.")
    dry_run: bool = setting(False, "List files and sizes, check the card's metadata, and stop.")

    def validate(self) -> None:
        """A folder and a repository."""
        super().validate()
        require(bool(self.folder), "--folder is missing; name the output folder of a finished run")
        require(bool(self.hub_model_id), "--hub_model_id is missing; name a repository such as org/name")


@dataclass(frozen=True)
class OnnxConfig(Config):
    """Writes a published folder's model as ONNX (recipes/export_onnx.py)."""

    folder: str = setting("", "Published folder: the output folder of a finished run, or one of its checkpoints.")
    output_file: str | None = setting(None, "File to write; default: onnx/model.onnx in the folder.")
    overwrite_output_file: bool = setting(False, "Replace the output file.")

    def validate(self) -> None:
        """A folder."""
        super().validate()
        require(bool(self.folder), "--folder is missing; name the output folder of a finished run")


@dataclass(frozen=True)
class TriviaqaConfig(Config):
    """Turns TriviaQA into SQuAD's JSON (recipes/convert_triviaqa.py)."""

    qa_file: str = setting("", "Questions with answers: TriviaQA's qa/wikipedia-train.json, or another of its files.")
    evidence_dir: str = setting("", "Folder of the documents: TriviaQA's `evidence`, with wikipedia/ and web/ in it.")
    output_file: str = setting("", "JSON file to write, for run_squad's --train_file.")
    overwrite_output_file: bool = setting(False, "Replace the output file.")
    max_tokens: int = setting(
        400,
        "Length of a passage: the beginning of a document.",
        source="paper",
        unit="tokens",
        deviation="TriviaQA step (footnote 12): passages are the first 400 tokens of documents that contain an answer. "
        "The paper does not say what a token is (ours: a word or a punctuation mark), which of several places is the "
        "answer (ours: the first, whatever its case), nor batch, rate and epochs of the step (ours: SQuAD v1.1's).",
    )

    def validate(self) -> None:
        """All three paths; a positive length."""
        super().validate()
        for name in ("qa_file", "evidence_dir", "output_file"):
            require(bool(getattr(self, name)), f"--{name} is missing")
        require(self.max_tokens > 0, f"--max_tokens is {self.max_tokens}; it must be positive")


# -------------------------------------------------------------------------------------------------------------- studies


@dataclass(frozen=True)
class StudyConfig(Config):
    """Makes the runs behind a table of the paper (recipes/run_study.py)."""

    table: tuple[str, ...] = setting((), "Tables to make: 5, 6, 7, 8, figure5. Runs that several need are made once.")
    scale: str = setting(
        "trial", "How large: trial (two CPU cores), gpu (one modern GPU), paper, or a YAML file of one's own."
    )
    corpus: str = setting("", "Prepared corpus for all pre-training runs (recipes/prepare_corpus.py).")
    glue_dir: str | None = setting(None, "Folder of GLUE's official files; default: the Hub.")
    squad_dir: str | None = setting(None, "Folder of SQuAD's official files; default: the Hub.")
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

    def validate(self) -> None:
        """At least one study; a corpus unless nothing is run."""
        super().validate()
        known = ("5", "6", "7", "8", "figure5")
        require(len(self.table) > 0, f"--table is missing; name some of: {', '.join(known)}")
        for name in self.table:
            require(name in known, f"--table is {name!r}; choose some of: {', '.join(known)}")
        require(self.dry_run or bool(self.corpus), "--corpus is missing; name a prepared corpus")


@dataclass(frozen=True)
class ReportConfig(Config):
    """Writes the reproduction report: our numbers beside the paper's (recipes/report.py)."""

    runs_dir: str = setting("docs/report/runs", "Folder with the results.json of finished runs below it.")
    report_dir: str = setting("docs/report", "Folder for report.md, index.html, numbers.json and the plots.")


# ----------------------------------------------------------------------------------------------------------- quickstart


@dataclass(frozen=True)
class QuickstartConfig(Config):
    """The whole road in miniature (recipes/quickstart.py)."""

    output_dir: str = setting(
        "runs/quickstart", "Folder of all it makes; replaced when it is that of an earlier quickstart."
    )
    seed: int = setting(42, "Decides initialisation, dropout, order, pairs and masks.", source="transformers")
