"""Pre-training: its phases, the examples made from documents, the run, the audit of the examples."""

from dataclasses import dataclass
from typing import Literal

from bert_repro.configs.base import Config, require_fraction, require_positive, setting
from bert_repro.configs.training import DryRunConfig, OptimizerConfig, RunConfig
from bert_repro.errors import UserError, flag

SHORTEST_SEQUENCE = 8  # tokens; [CLS] A [SEP] B [SEP] with something to predict


@dataclass(frozen=True)
class Phase:
    """A part of pre-training with one sequence length (paper A.2: 128 for 90% of the steps, then 512).

        import bert_repro

        short = bert_repro.Phase(max_seq_length=128, steps=900_000, batch=256, max_predictions_per_seq=20)
        long = bert_repro.Phase(max_seq_length=512, steps=100_000, batch=256, max_predictions_per_seq=80)
        print(short.steps + long.steps)

    Args:
        max_seq_length: tokens per sequence, special tokens included.
        steps: optimizer steps of this phase.
        batch: sequences per optimizer step over all devices.
        max_predictions_per_seq: most predicted tokens of a sequence; None: no limit beyond masked_lm_prob.
        per_device_batch: sequences per device and forward pass; None: the run's setting.
    """

    max_seq_length: int
    steps: int
    batch: int
    max_predictions_per_seq: int | None = None
    per_device_batch: int | None = None

    def __post_init__(self) -> None:
        optional = ("max_predictions_per_seq", "per_device_batch")
        for name, value in vars(self).items():
            if value is None and name in optional:
                continue
            smallest = SHORTEST_SEQUENCE if name == "max_seq_length" else 1
            # True and False are integers in Python.
            is_whole_number = type(value) is int
            if not is_whole_number or value < smallest:
                raise UserError(
                    f"phases: {name} is {value!r}. It must be a whole number of at least {smallest}.", setting="phases"
                )


@dataclass(frozen=True)
class ExampleConfig(Config):
    """Pre-training examples: how they are made from documents (paper 3.1, A.1, A.2).

        import bert_repro

        roberta_like = bert_repro.ExampleConfig(next_sentence_prediction=False, no_nsp_input="contiguous")
        print(roberta_like.masked_lm_prob, roberta_like.mask_replace_prob)  # 0.15 and 0.8, the paper's

    The defaults are the paper's; what another choice means: docs/DEVIATIONS.md.
    """

    next_sentence_prediction: bool = setting(True, "Train with the NSP loss (False: Table 5's no NSP).")
    left_to_right: bool = setting(
        False, "Left-to-right language model (Table 5's LTR); needs next_sentence_prediction false."
    )
    nsp_sampling: Literal["paper", "original"] = setting(
        "paper", "paper: the label is drawn first, 50/50. original: a chunk of one sentence is always NotNext."
    )
    no_nsp_input: Literal["pairs", "contiguous"] = setting(
        "pairs", "Without NSP: the same pairs with the loss off (pairs), or one contiguous text (contiguous)."
    )
    short_seq_prob: float = setting(0.1, "Probability of a shorter target length.")
    masked_lm_prob: float = setting(0.15, "Fraction of tokens that are predicted.")
    mask_replace_prob: float = setting(0.8, "Of those, the fraction replaced by [MASK].")
    random_replace_prob: float = setting(0.1, "Of those, the fraction replaced by a random token.")
    random_token_source: Literal["vocab", "ordinary"] = setting(
        "vocab",
        "Random tokens from the complete vocabulary (vocab), or without special and [unused] tokens (ordinary).",
    )
    whole_word_masking: bool = setting(
        False, "Mask all pieces of a word together (original implementation of 2019-05)."
    )
    dupe_factor: int | None = setting(
        None,
        "Draw this many passes over the documents once and repeat them (original implementation: 10). Default: never.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_fraction(self, "short_seq_prob", "masked_lm_prob", "mask_replace_prob", "random_replace_prob")
        require_positive(self, "dupe_factor")
        if self.left_to_right and self.next_sentence_prediction:
            raise UserError(
                f"{flag('left_to_right')} requires {flag('next_sentence_prediction', False)}, because [CLS] attends "
                "to no later token that could tell the pairs apart.",
                setting="next_sentence_prediction",
            )
        if self.left_to_right and self.whole_word_masking:
            raise UserError(
                f"{flag('left_to_right')} and {flag('whole_word_masking')} cannot be combined: a left-to-right model "
                "masks nothing. Leave one of them out.",
                setting="whole_word_masking",
            )
        total = self.mask_replace_prob + self.random_replace_prob
        # Tolerates the rounding of sums such as 0.8 + 0.1 + 0.1.
        if total > 1 + 1e-9:
            raise UserError(
                f"{flag('mask_replace_prob')} + {flag('random_replace_prob')} is {total}. It must be at most 1.",
                setting="random_replace_prob",
            )


@dataclass(frozen=True)
class PretrainingConfig(ExampleConfig, OptimizerConfig, DryRunConfig, RunConfig):
    """Pre-trains BERT, from scratch or from a checkpoint (paper 3.1, A.2).

      bert-repro run_pretraining --preset cpu-trial --corpus runs/corpus --output_dir runs/trial

      accelerate launch -m bert_repro run_pretraining --preset paper-base --corpus runs/corpus \\
        --mixed_precision bf16 --save_steps 10000 --output_dir runs/base

    From Python:

        import bert_repro

        phases = (bert_repro.Phase(128, 900, 256, 20), bert_repro.Phase(512, 100, 256, 80))
        config = bert_repro.PretrainingConfig(corpus="corpus", phases=phases, output_dir="runs/bert")
        print(sum(phase.steps for phase in config.phases))  # for `bert_repro.pretrain(config)`

    --model_name_or_path continues from a checkpoint, in your domain or language. After an interruption
    --resume_from_checkpoint latest continues exactly as if there had been none. --dry_run estimates the time.
    The paper reports a perplexity of 3.99 for BERT-base and NSP accuracy of 97-98%; it took 4 days on 16 TPU chips.
    --preset cpu-trial takes less than an hour on two free cores in bf16, which it uses if the device supports it.
    """

    corpus: str = setting("", "Prepared corpus (required): a folder of prepare_corpus, or a Hub dataset (push_corpus).")
    model_name_or_path: str | None = setting(
        None, "Continue from this BERT checkpoint, a folder or a Hub id; default: from scratch."
    )
    num_hidden_layers: int = setting(12, "Layers (the paper's L).")
    hidden_size: int = setting(768, "Hidden size (H); the feed-forward size is 4H.")
    num_attention_heads: int = setting(12, "Attention heads (A).")
    max_position_embeddings: int = setting(512, "Longest sequence that a model from scratch can read.")
    extend_positions: Literal["rotation", "tile", "none"] = setting(
        "rotation",
        "Position embeddings beyond those that the checkpoint was trained on: continue the trained ones by a rotation, "
        "repeat them (tile), or leave them as they are (none).",
    )
    hidden_act: Literal["gelu", "gelu_new"] = setting("gelu", "gelu (erf) or gelu_new (tanh).")
    initializer_range: float = setting(
        0.02, "Standard deviation of the initial weights, which are truncated at two standard deviations."
    )
    hidden_dropout_prob: float | None = setting(
        None, "Dropout after every layer; default: the checkpoint's, or 0.1 from scratch."
    )
    attention_probs_dropout_prob: float | None = setting(
        None, "Dropout of attention weights; default: the checkpoint's, or 0.1 from scratch."
    )
    max_seq_length: int = setting(128, "Tokens per sequence, unless `phases` is set.")
    max_predictions_per_seq: int | None = setting(None, "Most predicted tokens of a sequence, unless `phases` is set.")
    phases: tuple[Phase, ...] = setting((), "Phases as a YAML list of {max_seq_length, steps, batch}.")
    max_train_hours: float | None = setting(
        None, "Hours of training: phases keep their shares, and the learning rate is zero when the time is over."
    )
    heldout_fraction: float = setting(0.01, "Fraction of documents that training never sees.")
    static_shapes: bool | None = setting(
        None,
        "Pad every forward pass of a phase to one shape, so that one graph is compiled; default: only if that is "
        "needed.",
        decides_result=False,
    )
    pooling: Literal["mean", "cls"] = setting(
        "mean",
        "Vector of a text in sentence-transformers: the mean of its tokens, or the first one (cls; not meaningful "
        "without fine-tuning, the paper's footnote 6).",
        decides_result=False,
    )
    max_eval_sequences: int = setting(1024, "Held-out sequences in an evaluation.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "num_hidden_layers", "hidden_size", "num_attention_heads", "initializer_range")
        require_positive(self, "max_position_embeddings", "max_train_hours")
        require_positive(self, "max_seq_length", "max_predictions_per_seq", "heldout_fraction", "max_eval_sequences")
        require_fraction(
            self, "heldout_fraction", "hidden_dropout_prob", "attention_probs_dropout_prob", below_one=True
        )
        if self.max_seq_length < SHORTEST_SEQUENCE:
            raise UserError(
                f"{flag('max_seq_length', self.max_seq_length)} is too short. It must be at least {SHORTEST_SEQUENCE}.",
                setting="max_seq_length",
            )
        if self.hidden_size % self.num_attention_heads != 0:
            raise UserError(
                f"{flag('hidden_size', self.hidden_size)} is not a multiple of "
                f"{flag('num_attention_heads', self.num_attention_heads)}.",
                setting="hidden_size",
            )
        if self.peft is not None and self.model_name_or_path is None:
            raise UserError(
                f"{flag('peft', self.peft)} requires {flag('model_name_or_path')}, because an adapter is added to "
                "trained weights.",
                setting="model_name_or_path",
            )


@dataclass(frozen=True)
class AuditConfig(ExampleConfig):
    """Checks the examples of a pre-training before compute is spent on them.

      bert-repro audit_pretraining_data --corpus runs/corpus --output_dir runs/audit

    Give it the example settings of the pre-training to come, such as --max_seq_length or --whole_word_masking.
    """

    REQUIRED = ("corpus", "output_dir")

    corpus: str = setting("", "Prepared corpus: a folder of prepare_corpus, or a dataset of the Hub (push_corpus).")
    output_dir: str = setting("runs/audit", "Folder for audit.json and audit.txt.")
    overwrite_output_dir: bool = setting(False, "Replace what the output folder holds.")
    seed: int = setting(42, "Seed of pairs and masks, as in pre-training.")
    max_seq_length: int = setting(128, "Tokens per sequence.")
    max_predictions_per_seq: int | None = setting(None, "Most predicted tokens of a sequence.")
    num_sequences: int = setting(200_000, "Sequences to audit, drawn from the first epoch.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "max_seq_length", "max_predictions_per_seq", "num_sequences")
        if self.left_to_right:
            raise UserError(f"{flag('left_to_right')} has no masks to audit. Leave it out.", setting="left_to_right")


@dataclass(frozen=True)
class CurveComparisonConfig(Config):
    """Says whether a pre-training run is on track: its log next to a reference curve.

      bert-repro compare_curve --run runs/mini --reference docs/reference_curves/bert-repro-mini.jsonl

    Losses compare only between runs with the same vocabulary, held-out documents and masking; settings that differ are
    listed. Exit codes: 0 on track; 4 worse by more than 2% and behind by more than a tenth of the run's tokens; 5
    diverged.
    """

    REQUIRED = ("run", "reference")

    run: str = setting("", "Output folder of a pre-training run, finished or not, or its train_log.jsonl.")
    reference: str = setting("", "The curve to compare with: a file of docs/reference_curves/, or another run.")
    output_file: str | None = setting(None, "Plot to write; default: curve_comparison.png in the folder of the log.")
