"""The paper's tasks, and the files they read and leave: GLUE, SWAG, CoNLL-2003, SQuAD, TriviaQA."""

from dataclasses import dataclass

from bert_repro.configs.base import Config, require, setting
from bert_repro.configs.finetuning import CustomDataConfig, FinetuningConfig

GLUE_NAMES = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "ax")


@dataclass(frozen=True)
class GlueConfig(CustomDataConfig):
    """GLUE, or one's own texts and labels in .csv, .tsv or .jsonl files (recipes/run_glue.py)."""

    task_name: str = setting("", "Name of the task.", source="transformers", choices=GLUE_NAMES)
    text_columns: tuple[str, ...] = setting(
        (), "Own files: the column, or two columns, of text; default: text, else text_a and text_b."
    )
    label_column: str = setting("label", "Own files: the column of labels.")
    regression: bool = setting(False, "Own files: labels are numbers to predict; a finished model says so itself.")

    def validate(self) -> None:
        """Either a task of GLUE or own files."""
        super().validate()
        if self.data_files:
            require(not self.task_name, f"--task_name {self.task_name} and own files exclude each other; leave one out")
        require(len(self.text_columns) <= 2, f"--text_columns names {len(self.text_columns)}; one or two are needed")


@dataclass(frozen=True)
class SwagConfig(CustomDataConfig):
    """SWAG, or one's own four-choice rows in .csv, .tsv or .jsonl files (recipes/run_swag.py); batch 16 by default."""

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
class NerConfig(CustomDataConfig):
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
class SquadConfig(FinetuningConfig):
    """SQuAD v1.1 and v2.0, or questions of one's own in their format (recipes/run_squad.py)."""

    task_name: str = setting("", "Name of the task.", source="transformers", choices=("squad", "squad_v2"))
    num_train_epochs: float | None = setting(
        None, "Passes over the training set; default: 3 for squad, 2 for squad_v2.", source="paper", unit="epochs"
    )
    max_seq_length: int = setting(
        384, "Tokens per window: [CLS] question [SEP] passage [SEP].", source="original implementation", unit="tokens"
    )
    max_query_length: int = setting(
        64, "Longer questions are cut to this.", source="original implementation", unit="tokens"
    )
    doc_stride: int = setting(
        128,
        "How far the window moves over a passage that does not fit. (`stride` of the tokenizers library is the "
        "overlap, another number.)",
        source="original implementation",
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
        source="original implementation",
        choices=("mean", "sum"),
        deviation="The paper maximises the sum of the two log-likelihoods (4.2); the release and transformers take "
        "their mean (ours).",
    )
    qa_softmax: str = setting(
        "sequence",
        "Where start and end may lie in the training loss: all tokens of the window (sequence), those and its padding "
        "up to max_seq_length (padded; needs --packing false), or the passage only, with [CLS] in v2.0 (paragraph).",
        source="original implementation",
        choices=("sequence", "padded", "paragraph"),
        deviation="The paper's softmax is over the words of the paragraph, in v2.0 with [CLS]. The release's is over "
        "the whole window, question and padding included: `padded`. Ours leaves only the padding out, so that nothing "
        "is computed on it and batches of any layout give one result. Under `paragraph` a v1.1 window without the "
        "full answer has no target and is not trained on.",
    )
    decoding: str = setting(
        "original",
        "original: the n_best_size best starts with as many best ends, then filtered. exact: the best of all spans.",
        source="original implementation",
        choices=("original", "exact"),
        choice_aliases={"released": "original"},
        deviation="The paper takes the span with the highest score of all j >= i. The release searches the 20 best "
        "starts and ends only, anywhere in the window, and keeps a span in the window where its start has most context "
        "(ours; `exact` keeps the last rule). Padding, which the release may find among the best, has no scores here.",
    )
    n_best_size: int = setting(
        20, "Starts and ends considered, and answers kept.", source="original implementation", unit="answers"
    )
    max_answer_length: int = setting(
        30,
        "Longest answer in pieces; 0: no limit.",
        source="original implementation",
        unit="tokens",
        deviation="The paper states no limit; the release has 30 (ours).",
    )
    answer_text: str = setting(
        "original",
        "original: whole words, trimmed by aligning them with their tokenised form. offsets: the characters of the "
        "tokens.",
        source="original implementation",
        choices=("original", "offsets"),
        choice_aliases={"released": "original"},
        deviation="The paper does not say how tokens become text. The release aligns (ours) and keeps whole words "
        "where that fails.",
    )
    null_score_diff_threshold: float | None = setting(
        None,
        "v2.0: no answer where the null score exceeds the best answer's by more than this (the paper's -tau). Default: "
        "the best for F1 on the dev set after training and of an ensemble, else what the model stores, else 0.",
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
