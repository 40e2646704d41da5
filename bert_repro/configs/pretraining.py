"""Pre-training: its phases, the examples made from documents, the run, the audit of the examples."""

from dataclasses import dataclass

from bert_repro.configs.base import Config, require, setting
from bert_repro.configs.training import DryRunConfig, OptimizerConfig, RunConfig


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


@dataclass(frozen=True)
class ExampleConfig(Config):
    """How pre-training examples are made from documents (paper 3.1, A.1, A.2; original create_pretraining_data.py).

        import bert_repro

        roberta_like = bert_repro.ExampleConfig(next_sentence_prediction=False, no_nsp_input="contiguous")
        print(roberta_like.masked_lm_prob, roberta_like.mask_replace_prob)  # 0.15 and 0.8, the paper's

    All settings with their units: docs/CONFIGURATION.md.
    """

    next_sentence_prediction: bool = setting(
        True, "Train with the NSP loss (False: Table 5's no NSP).", source="paper", group="examples"
    )
    left_to_right: bool = setting(
        False,
        "Left-to-right language model (Table 5's LTR): causal attention, every next token is predicted and none is "
        "masked; needs next_sentence_prediction false.",
        source="paper",
        deviation="The paper's left-to-right model sees left context only, in fine-tuning too (5.1). It does not say "
        "which token its classifier reads: ours reads the last one, since under causal attention [CLS] sees only "
        "itself. [CLS] and [SEP] are read and [SEP] is predicted like any token.",
        group="examples",
    )
    nsp_sampling: str = setting(
        "paper",
        "paper: the label is drawn first, 50/50. original: a chunk of one sentence is always NotNext.",
        source="paper",
        choices=("paper", "original"),
        choice_aliases={"released": "original"},
        deviation="The paper states 50% IsNext; the original implementation gives more NotNext (55-60% on usual text) "
        "because a chunk of one sentence can only be NotNext. Where the two disagree about a stated fact, the paper.",
        group="examples",
    )
    no_nsp_input: str = setting(
        "pairs",
        "Without NSP: the same pairs with the loss off (pairs), or one contiguous text (contiguous).",
        choices=("pairs", "contiguous"),
        deviation="The paper does not say what the no-NSP model reads (Table 5).",
        group="examples",
    )
    short_seq_prob: float = setting(
        0.1,
        "Probability of a shorter target length.",
        source="original implementation",
        unit="fraction",
        deviation="Not in the paper. In the original implementation, and ours, a document's pass gets with this "
        "probability a target length uniform from 2 to the full one.",
        group="examples",
        at_least=0,
        at_most=1,
    )
    masked_lm_prob: float = setting(
        0.15,
        "Fraction of tokens that are predicted.",
        source="paper",
        unit="fraction",
        group="examples",
        at_least=0,
        at_most=1,
    )
    mask_replace_prob: float = setting(
        0.8,
        "Of those, the fraction replaced by [MASK].",
        source="paper",
        unit="fraction",
        aliases=("mask_share",),
        group="examples",
        at_least=0,
        at_most=1,
    )
    random_replace_prob: float = setting(
        0.1,
        "Of those, the fraction replaced by a random token.",
        source="paper",
        unit="fraction",
        aliases=("random_share",),
        group="examples",
        at_least=0,
        at_most=1,
    )
    random_token_source: str = setting(
        "vocab",
        "Random tokens from the complete vocabulary (vocab), or without special and [unused] tokens (ordinary).",
        source="original implementation",
        choices=("vocab", "ordinary"),
        deviation="The paper says a random token; the original implementation draws from all ids, specials included "
        "(ours).",
        group="examples",
    )
    whole_word_masking: bool = setting(
        False,
        "Mask all pieces of a word together (original implementation of 2019-05).",
        source="original implementation",
        deviation="Not in the paper. In the original implementation a segment B that starts with ## joins A's last "
        "word across [SEP]; ours starts a new group after [SEP].",
        group="examples",
    )
    dupe_factor: int | None = setting(
        None,
        "Static examples: this many passes over the documents are drawn once, shuffled together, and repeated with "
        "the same pairs and masks; 10 in the original implementation. Default: every pass is drawn afresh.",
        unit="passes",
        deviation="The paper is silent. The original implementation writes examples to disk with their masks, ten "
        "passes shuffled together, and repeats them. Ours draws new pairs and masks in every pass; with "
        "dupe_factor=10 the examples have its distribution, and each repetition comes in a new order.",
        group="examples",
        above=0,
        at_most=10_000,
    )

    def validate(self) -> None:
        """Checks what the left-to-right model excludes, and that fractions add up to one at most."""
        super().validate()
        require(
            not (self.left_to_right and self.next_sentence_prediction),
            "--left_to_right needs --next_sentence_prediction false: [CLS] sees no later token to judge by",
        )
        require(
            not (self.left_to_right and self.whole_word_masking),
            "--left_to_right and --whole_word_masking exclude each other: nothing is masked",
        )
        total = self.mask_replace_prob + self.random_replace_prob
        require(total <= 1 + 1e-9, f"--mask_replace_prob + --random_replace_prob is {total}; it must not exceed 1")


@dataclass(frozen=True)
class PretrainingConfig(ExampleConfig, OptimizerConfig, DryRunConfig, RunConfig):
    """Pre-training with MLM and NSP (recipes/run_pretraining.py).

        import bert_repro

        phases = (bert_repro.Phase(128, 900, 256, 20), bert_repro.Phase(512, 100, 256, 80))
        config = bert_repro.PretrainingConfig(corpus="corpus", phases=phases, output_dir="runs/bert")
        print(sum(phase.steps for phase in config.phases))  # for `bert_repro.pretrain(config)`

    All settings with their units: docs/CONFIGURATION.md.
    """

    corpus: str = setting(
        "",
        "Prepared corpus: a folder that prepare_corpus made, or a dataset of the Hub (push_corpus).",
        group="data",
    )
    model_name_or_path: str | None = setting(
        None,
        "Continue from this BERT checkpoint, a folder or a Hub id; default: from scratch.",
        source="transformers",
        group="model",
        checkpoint=True,
    )
    num_hidden_layers: int = setting(
        12, "Layers (the paper's L).", source="paper", group="model", above=0, at_most=1000
    )
    hidden_size: int = setting(
        768, "Hidden size (H); the feed-forward size is 4H.", source="paper", group="model", above=0, at_most=65_536
    )
    num_attention_heads: int = setting(
        12, "Attention heads (A).", source="paper", group="model", above=0, at_most=65_536
    )
    hidden_act: str = setting(
        "gelu",
        "gelu (erf) or gelu_new (tanh).",
        source="original implementation",
        choices=("gelu", "gelu_new"),
        deviation="The paper says gelu. The original implementation computed erf in 2018 (ours), from 2019-02 the "
        "tanh approximation.",
        group="model",
    )
    initializer_range: float = setting(
        0.02,
        "Standard deviation of the initial weights, truncated at two of it.",
        source="original implementation",
        group="model",
        above=0,
    )
    hidden_dropout_prob: float = setting(
        0.1, "Dropout after every layer.", unit="fraction", source="paper", group="model", at_least=0, below=1
    )
    attention_probs_dropout_prob: float = setting(
        0.1, "Dropout of attention weights.", unit="fraction", source="paper", group="model", at_least=0, below=1
    )
    max_seq_length: int = setting(
        128, "Tokens per sequence, where `phases` is not set.", unit="tokens", group="data", at_least=8, at_most=65_536
    )
    max_predictions_per_seq: int | None = setting(
        None,
        "Most predicted tokens of a sequence, where `phases` is not set.",
        unit="tokens",
        group="data",
        above=0,
        at_most=65_536,
    )
    phases: tuple[Phase, ...] = setting(
        (), "Phases as a YAML list of {max_seq_length, steps, batch}.", source="paper", group="data"
    )
    heldout_fraction: float = setting(
        0.01,
        "Fraction of documents that training never sees.",
        unit="fraction",
        deviation="The paper does not describe its held-out data.",
        group="data",
        above=0,
        below=1,
    )
    decode_predicted_only: bool = setting(
        True,
        "Compute the MLM head at predicted positions only; the results are equal (not of the left-to-right model, "
        "which predicts at every position).",
        group="speed",
    )
    static_shapes: bool | None = setting(
        None,
        "Pad every forward pass of a phase to one shape with sequences that change no loss, so that one graph is "
        "compiled: as many tokens as nearly every step needs, or with padded batches their full length. Default: "
        "where the model is compiled but for packed batches on a GPU, whose graph takes any number of tokens, and on "
        "XLA.",
        aliases=("fixed_shapes",),
        group="speed",
    )
    hub_strategy: str = setting(
        "end",
        "With push_to_hub: upload the finished model (end), or every checkpoint of save_steps and the weights before "
        "the first step too, as the revisions step-0, step-N ... (every_save).",
        source="transformers",
        choices=("end", "every_save"),
        group="hub",
    )
    pooling: str = setting(
        "mean",
        "One vector of a text, for sentence-transformers and embedding servers that load the published folder: the "
        "mean of its tokens, or the first one (cls).",
        deviation="The paper makes no sentence vectors. Without a file that says so, libraries take one or the other.",
        choices=("mean", "cls"),
        group="output",
    )
    max_eval_sequences: int = setting(
        1024, "Held-out sequences in an evaluation.", unit="sequences", group="data", above=0
    )

    def validate(self) -> None:
        """Checks the shape of the model and of the phases."""
        super().validate()
        require(
            self.hidden_size % self.num_attention_heads == 0,
            f"--hidden_size is {self.hidden_size}; it must be a multiple of --num_attention_heads "
            f"({self.num_attention_heads})",
        )
        require(
            self.peft is None or self.model_name_or_path is not None,
            f"--peft {self.peft} needs --model_name_or_path: an adapter is added to trained weights",
        )
        require(
            self.hub_strategy == "end" or (self.push_to_hub and self.peft is None and self.save_steps is not None),
            "--hub_strategy every_save needs --push_to_hub and --save_steps, and no --peft",
        )
        for phase in self.phases:
            require(
                phase.max_seq_length >= 8 and phase.steps > 0 and phase.batch > 0,
                f"phases: {phase}; max_seq_length must be at least 8, steps and batch positive",
            )


@dataclass(frozen=True)
class AuditConfig(ExampleConfig):
    """Measures the examples that a corpus and settings give (recipes/audit_pretraining_data.py)."""

    corpus: str = setting(
        "",
        "Prepared corpus: a folder that prepare_corpus made, or a dataset of the Hub (push_corpus).",
        group="data",
        required="name a prepared corpus",
    )
    output_dir: str = setting(
        "runs/audit", "Folder for audit.json, audit.txt and audit.png.", source="transformers", group="output"
    )
    overwrite_output_dir: bool = setting(
        False, "Replace what the output folder holds.", source="transformers", group="output"
    )
    seed: int = setting(
        42,
        "Seed of pairs and masks, as in pre-training.",
        source="transformers",
        group="training",
        at_least=0,
        at_most=4_294_967_295,
    )
    max_seq_length: int = setting(128, "Tokens per sequence.", unit="tokens", group="data", at_least=8, at_most=65_536)
    max_predictions_per_seq: int | None = setting(
        None, "Most predicted tokens of a sequence.", unit="tokens", group="data", above=0, at_most=65_536
    )
    num_sequences: int = setting(
        200_000, "Sequences to audit, drawn from the first epoch.", unit="sequences", group="data", above=0
    )

    def validate(self) -> None:
        """Refuses examples that are not masked."""
        super().validate()
        require(not self.left_to_right, "--left_to_right has no masks to audit; leave it out")


@dataclass(frozen=True)
class CurveComparisonConfig(Config):
    """Compares a pre-training run with a reference curve (recipes/compare_curve.py)."""

    run: str = setting(
        "",
        "Output folder of a pre-training run, finished or not, or its train_log.jsonl.",
        group="data",
        required="name the output folder of a pre-training run",
    )
    reference: str = setting(
        "",
        "The curve to compare with: a file of docs/reference_curves/, or another run.",
        group="data",
        required="name a reference curve or the folder of another run",
    )
    metric: str | None = setting(
        None,
        "What to compare, as the log calls it. Default: eval_mlm_loss where both have it, else mlm_loss.",
        group="data",
    )
    tolerance: float = setting(
        0.1,
        "Fraction of its tokens that a run may lag behind and still be on track.",
        unit="fraction",
        group="data",
        at_least=0,
    )
    output_file: str | None = setting(
        None, "Plot to write; default: curve_comparison.png beside the log.", group="output"
    )
