"""The paper's tasks: GLUE, SWAG, CoNLL-2003, SQuAD."""

from dataclasses import dataclass

from bert_repro.configs.base import Config, require, setting
from bert_repro.configs.finetuning import CustomDataConfig

GLUE_NAMES = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "ax")


@dataclass(frozen=True)
class GlueConfig(CustomDataConfig):
    """GLUE, or custom texts and labels in .csv, .tsv or .jsonl files (recipes/run_glue.py).

        import bert_repro

        config = bert_repro.GlueConfig(
            model_name_or_path="google-bert/bert-base-uncased", task_name="mrpc", do_train=True, do_eval=True
        )
        print(config.learning_rate)  # for `bert_repro.finetune(config)`

    All settings with their units: docs/CONFIGURATION.md.
    """

    task_name: str = setting("", "Name of the task.", source="transformers", choices=GLUE_NAMES, group="data")
    text_columns: tuple[str, ...] = setting(
        (),
        "Custom data: the column, or two columns, of text; default: text, text_a and text_b, or those of a GLUE task.",
        group="data",
    )
    label_column: str = setting("label", "Custom data: the column of labels.", group="data")
    regression: bool = setting(
        False, "Custom data: labels are numbers to predict; a finished model knows.", group="data"
    )
    multi_label: bool = setting(
        False,
        "Custom data: a row may have several labels, or none: a list in JSON lines, elsewhere a text such as `a|b`. "
        "The threshold of each label is chosen on dev and stored with the model.",
        group="data",
    )
    label_separator: str = setting("|", "Custom data with several labels: the separator between them.", group="data")
    class_weights: tuple[str, ...] = setting(
        (),
        "Custom data: weights of the labels in the loss, `balanced` (rarer ones weigh more) or label=weight for each.",
        group="training",
    )
    label_smoothing: float = setting(
        0.0,
        "Custom data: share of the target that is spread evenly over all labels.",
        unit="fraction",
        group="training",
        at_least=0,
        below=1,
    )

    def validate(self) -> None:
        """Checks that a task of GLUE or custom data is named, not both."""
        super().validate()
        if self.data_files:
            require(
                not self.task_name,
                f"--task_name {self.task_name} excludes --train_file, --validation_file and --test_file; leave one out",
            )
        kind = "--regression" if self.regression else "--multi_label" if self.multi_label else None
        for name in ("multi_label", "class_weights", "label_smoothing"):
            if not getattr(self, name):
                continue
            require(bool(self.data_files), f"--{name} is for custom data; give --train_file, or leave it out")
            require(kind in (None, f"--{name}"), f"--{name} and {kind} exclude each other; leave one out")
        require(bool(self.label_separator), "--label_separator is empty; give a separator such as |")
        require(len(self.text_columns) <= 2, f"--text_columns names {len(self.text_columns)}; one or two are needed")


@dataclass(frozen=True)
class SwagConfig(CustomDataConfig):
    """SWAG, or custom rows of two or more endings in .csv, .tsv, .jsonl (recipes/run_swag.py); batch 16 by default.

        import bert_repro

        config = bert_repro.SwagConfig(model_name_or_path="org/bert", train_file="train.csv", do_train=True)
        print(config.max_seq_length)  # for `bert_repro.finetune(config)`

    All settings with their units: docs/CONFIGURATION.md.
    """

    task_name: str = setting("swag", "Name of the task.", source="transformers", choices=("swag",), group="data")
    learning_rate: float = setting(2e-5, "Peak learning rate.", source="paper", group="training", at_least=0)
    max_seq_length: int = setting(
        128,
        "Tokens per sequence, of which an example has one for each ending; longer ones are truncated.",
        unit="tokens",
        deviation="SWAG: the paper states no length, and the code was not published. Ours is GLUE's; how many "
        "examples it cuts is in results.json (`truncated`).",
        group="data",
        at_least=8,
        at_most=65_536,
    )
    start_segment: str = setting(
        "B",
        "Segment that holds the start of the second sentence: B, before the ending, or A, after the first sentence.",
        choices=("A", "B"),
        deviation="SWAG gives a sentence and the start of the next one; the paper pairs the given sentence (A) with a "
        "possible continuation (B) and does not say where the start belongs. Ours is `B`: only the first is a "
        "complete sentence, and segments then meet between two sentences, as in pre-training. `A` counts both as "
        "given.",
        group="task",
    )


@dataclass(frozen=True)
class NerConfig(CustomDataConfig):
    """CoNLL-2003, or custom tagged text (recipes/run_ner.py).

        import bert_repro

        config = bert_repro.NerConfig(model_name_or_path="org/bert-cased", train_file="train.txt", do_train=True)
        print(config.max_seq_length)  # for `bert_repro.finetune(config)`

    All settings with their units: docs/CONFIGURATION.md.
    """

    task_name: str = setting(
        "conll2003", "Name of the task.", source="transformers", choices=("conll2003",), group="data"
    )
    learning_rate: float = setting(
        5e-5,
        "Peak learning rate.",
        source="paper",
        deviation="CoNLL-2003: the paper names no hyper-parameters beyond the general ones (A.3): batch 16 or 32, "
        "learning rate 5e-5, 3e-5 or 2e-5, 2 to 4 epochs. Ours is 32, 5e-5 and 3.",
        group="training",
        at_least=0,
    )
    max_seq_length: int = setting(
        512,
        "Tokens per window.",
        unit="tokens",
        deviation="CoNLL-2003: the paper takes the maximal document context (5.3) and states no length. Ours is all "
        "the positions that BERT has, as no shorter window holds more of a document, and `tile` reads no word twice. "
        "A model with fewer positions is refused: give its number.",
        group="data",
        at_least=8,
        at_most=65_536,
    )
    ner_context: str = setting(
        "tile",
        "What is read at once: as many complete sentences of a document as fit, each word once (tile); each sentence "
        "amid its document's text, about 17 times the cost (centred); each sentence alone (sentence).",
        choices=("tile", "centred", "sentence"),
        deviation="The paper includes the maximal document context (5.3) and does not say how. `tile` (ours) reads "
        "each word once, so words at a window's border see less on one side; `centred` gives every sentence as much "
        "as fits. A sentence longer than a window is cut between words; no word is dropped.",
        group="task",
    )
    feature_based: str | None = setting(
        None,
        "Train a two-layer BiLSTM on hidden states of the frozen encoder, which are computed once (Table 7): of the "
        "embeddings, the second-to-last or last layer, the last four added with learned weights or concatenated, or "
        "all layers added (not the embeddings).",
        source="paper",
        choices=("embeddings", "second_to_last", "last", "weighted_last_four", "concat_last_four", "weighted_all"),
        deviation="The paper's BiLSTM has two layers and 768 dimensions (5.3); whether per direction or in total it "
        "does not say, nor learning rate, epochs and what the BiLSTM reads. Ours has `bilstm_size` per direction, 768 "
        "by default (384 is the other reading), reads every token of a window, and the first piece of each word is "
        "classified.",
        group="model",
    )
    feature_weights: str = setting(
        "softmax",
        "Weights of added layers: softmax (positive, sum 1) or free.",
        choices=("softmax", "free"),
        deviation="The paper does not say whether the weights of its weighted sums are normalized. Ours pass through "
        "a softmax and start equal; `free` ones start at 1.",
        group="model",
    )
    feature_cache_dir: str = setting(
        "runs/features",
        "Folder of the hidden states, which are reused where encoder weights and token ids are equal.",
        group="model",
    )

    def validate(self) -> None:
        """Checks that a frozen encoder is read packed and has something to train above it."""
        super().validate()
        if self.feature_based is not None:
            require(
                self.do_train,
                "--feature_based needs --do_train; a finished model knows what it reads",
            )
            require(self.packing, "--feature_based needs packing; leave --packing false out")
            require(self.peft is None, "--feature_based and --peft exclude each other: the encoder stays as it is")


@dataclass(frozen=True)
class SquadConfig(CustomDataConfig):
    """SQuAD v1.1 and v2.0, or custom questions about passages (recipes/run_squad.py).

        import bert_repro

        config = bert_repro.SquadConfig(model_name_or_path="org/bert", task_name="squad_v2", do_train=True)
        print(config.doc_stride)  # for `bert_repro.finetune(config)`

    All settings with their units: docs/CONFIGURATION.md.
    """

    task_name: str = setting(
        "",
        "Name of the task; default: what files or the finished model say.",
        source="transformers",
        choices=("squad", "squad_v2"),
        group="data",
    )
    num_train_epochs: float | None = setting(
        None,
        "Passes over the training set; default: 3 for squad, 2 for squad_v2.",
        source="paper",
        unit="epochs",
        group="training",
        above=0,
        at_most=10_000,
    )
    max_seq_length: int = setting(
        384,
        "Tokens per window: [CLS] question [SEP] passage [SEP].",
        source="original implementation",
        unit="tokens",
        deviation="SQuAD: the paper states no length. 384 in the original implementation (ours).",
        group="data",
        at_least=8,
        at_most=65_536,
    )
    max_query_length: int = setting(
        64,
        "Longer questions are cut to this.",
        source="original implementation",
        unit="tokens",
        deviation="Not in the paper. 64 in the original implementation (ours).",
        group="task",
        above=0,
        at_most=65_536,
    )
    doc_stride: int = setting(
        128,
        "How far the window moves over a passage that does not fit. (`stride` of the tokenizers library is the "
        "overlap, another number.)",
        source="original implementation",
        unit="tokens",
        deviation="The paper does not say what it does with long passages. The original implementation slides a "
        "window (ours); a window without the full answer has [CLS] as its target, in v1.1 too.",
        group="task",
        above=0,
        at_most=65_536,
    )
    train_file: str | None = setting(
        None,
        "Training questions: SQuAD's .json, or .csv, .tsv, .jsonl with question, context and answer; default: the "
        "official file in data_dir, or the Hub's.",
        group="data",
    )
    validation_file: str | None = setting(None, "Questions to score; default as for train_file.", group="data")
    test_file: str | None = setting(
        None, "Questions to predict, with or without answers; default as for train_file.", group="data"
    )
    qa_loss: str = setting(
        "mean",
        "Mean or sum of the cross-entropies of start and end.",
        source="original implementation",
        choices=("mean", "sum"),
        deviation="The paper maximizes the sum of the two log-likelihoods (4.2); the original implementation and "
        "transformers take their mean (ours).",
        group="task",
    )
    qa_softmax: str = setting(
        "sequence",
        "Where start and end may lie in the training loss: all tokens of the window (sequence), those and its padding "
        "up to max_seq_length (padded; needs --packing false), or the passage only, with [CLS] in v2.0 (paragraph).",
        source="original implementation",
        choices=("sequence", "padded", "paragraph"),
        deviation="The paper's softmax is over the words of the paragraph, in v2.0 with [CLS]. That of the original "
        "implementation is over the complete window, question and padding included: `padded`. Ours leaves only the "
        "padding out, so that nothing is computed on it and batches of any layout give one result. Under `paragraph` "
        "a v1.1 window without the full answer has no target and is not trained on.",
        group="task",
    )
    decoding: str = setting(
        "original",
        "original: the n_best_size best starts with as many best ends, then filtered. exact: the best of all spans.",
        source="original implementation",
        choices=("original", "exact"),
        choice_aliases={"released": "original"},
        deviation="The paper takes the span with the highest score of all j >= i. The original implementation "
        "searches the 20 best starts and ends only, anywhere in the window, and keeps a span in the window where its "
        "start has most context (ours; `exact` keeps the last rule). Padding, which it may find among the best, has "
        "no scores here.",
        group="task",
    )
    n_best_size: int = setting(
        20,
        "Starts and ends considered, and answers kept.",
        source="original implementation",
        unit="answers",
        group="task",
        above=0,
        at_most=10_000,
    )
    max_answer_length: int = setting(
        30,
        "Longest answer in pieces; 0: no limit.",
        source="original implementation",
        unit="tokens",
        deviation="The paper states no limit; the original implementation has 30 (ours).",
        group="task",
        at_least=0,
        at_most=65_536,
    )
    answer_text: str = setting(
        "original",
        "original: complete words, trimmed by aligning them with their tokenized form. offsets: the characters of the "
        "tokens.",
        source="original implementation",
        choices=("original", "offsets"),
        choice_aliases={"released": "original"},
        deviation="The paper does not say how tokens become text. The original implementation aligns (ours) and keeps "
        "complete words where that fails.",
        group="task",
    )
    null_score_diff_threshold: float | None = setting(
        None,
        "v2.0: no answer where the null score exceeds the best answer's by more than this (the paper's -tau). "
        "Default: the best for F1 on the dev set after training and of an ensemble, else what the model stores, else "
        "0.",
        source="paper",
        unit="logits",
        deviation="tau is chosen on the dev set that is then scored (4.3), so F1 at 0 is reported beside it. At "
        "equality the original implementation answers (ours); the paper does not.",
        group="task",
    )

    def _validate_files(self) -> None:
        """Allows custom and official files side by side: TriviaQA to train on, SQuAD's dev set to score."""

    def validate(self) -> None:
        """Checks that there is room for a passage, and padding where padding is asked for."""
        super().validate()
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
class TriviaqaConfig(Config):
    """Converts TriviaQA to SQuAD's JSON (recipes/convert_triviaqa.py)."""

    qa_file: str = setting(
        "",
        "Questions with answers: TriviaQA's qa/wikipedia-train.json, or another of its files.",
        group="data",
        required="name TriviaQA's qa/wikipedia-train.json or another of its files",
    )
    evidence_dir: str = setting(
        "",
        "Folder of the documents: TriviaQA's `evidence`, with wikipedia/ and web/ in it.",
        group="data",
        required="name TriviaQA's folder evidence",
    )
    output_file: str = setting(
        "", "JSON file to write, for run_squad's --train_file.", group="output", required="name the JSON file to write"
    )
    overwrite_output_file: bool = setting(False, "Replace the output file.", group="output")
    max_tokens: int = setting(
        400,
        "Length of a passage: the beginning of a document.",
        source="paper",
        unit="tokens",
        deviation="TriviaQA step (footnote 12): passages are the first 400 tokens of documents that contain an "
        "answer. The paper does not say what a token is (ours: a word or a punctuation mark), which of several places "
        "is the answer (ours: the first, whatever its case), nor batch, learning rate and epochs of the step (ours: "
        "SQuAD v1.1's).",
        group="task",
        above=0,
        at_most=1_000_000_000,
    )
