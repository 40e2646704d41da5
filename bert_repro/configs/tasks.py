"""The paper's tasks: GLUE, SWAG, CoNLL-2003, SQuAD."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from bert_repro.configs.base import Config, require_fraction, require_positive, setting
from bert_repro.configs.finetuning import CustomDataConfig, DefaultRate
from bert_repro.configs.task_names import task_choices, task_help
from bert_repro.errors import UserError, flag


@dataclass(frozen=True)
class GlueConfig(CustomDataConfig):
    """Fine-tunes a classifier of texts: a task of GLUE (4.1), or your own files.

      bert-repro run_glue --model_name_or_path google-bert/bert-base-uncased \\
        --train_file train.csv --validation_file dev.csv --output_dir runs/my-classifier

      accelerate launch -m bert_repro run_glue --model_name_or_path google-bert/bert-base-uncased \\
        --task_name mrpc --do_train --do_eval --do_predict --output_dir runs/mrpc

    From Python:

        import bert_repro

        config = bert_repro.GlueConfig(
            model_name_or_path="google-bert/bert-base-uncased", task_name="mrpc", do_train=True, do_eval=True
        )
        print(config.learning_rate)  # for `bert_repro.finetune(config)`

    Your files (.csv, .tsv, .xlsx, .jsonl, .parquet) need a column text (or text_a and text_b) and a column label. GLUE
    comes from the Hub, or with --data_dir from the folder of the official CoLA/, SST-2/, MRPC/ ... --preset glue-sweep
    uses the best of the paper's four learning rates on dev, --num_restarts 5 of five seeds. BERT-base on dev: accuracy
    84.4 MNLI-m, 86.7 MRPC, 92.7 SST-2. Estimated for one modern GPU: a minute for MRPC, under an hour for MNLI.
    """

    task_name: str = setting("", partial(task_help, "GlueConfig"), choices=partial(task_choices, "GlueConfig"))
    text_columns: tuple[str, ...] = setting(
        (), "Custom data: one or two columns of text; default: text, or text_a and text_b."
    )
    label_column: str = setting("label", "Custom data: the column of labels.")
    regression: bool = setting(False, "Custom data: labels are numbers to predict.")
    multi_label: bool = setting(
        False,
        "Custom data: a row may have several labels, or none. Write a list in JSON lines, elsewhere a text such as "
        "`a|b`.",
    )
    class_weights: tuple[Literal["balanced"], ...] = setting(
        (), "Custom data: rare labels weigh more in the loss (balanced), as in scikit-learn."
    )
    label_smoothing: float = setting(0.0, "Custom data: share of the target that is spread evenly over all labels.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_fraction(self, "label_smoothing", below_one=True)
        if len(self.text_columns) > 2:
            raise UserError(
                f"{flag('text_columns', self.text_columns)} names {len(self.text_columns)} columns. Name one, or two "
                "for pairs of texts.",
                setting="text_columns",
            )
        self._check_kind_of_labels()

    def _check_kind_of_labels(self) -> None:
        """Refuses settings for custom data without such data, and settings for different kinds of labels together."""
        kind = "multi_label" if self.multi_label else None
        if self.regression:
            kind = "regression"
        for name in ("multi_label", "class_weights", "label_smoothing"):
            if not getattr(self, name):
                continue
            if not self.has_own_data:
                raise UserError(
                    f"{flag(name)} requires your own data. Pass it with {flag('train_file')}, or leave {flag(name)} "
                    "out.",
                    setting=name,
                )
            # Weights and smoothing are for one label per row.
            if kind is not None and kind != name:
                raise UserError(
                    f"{flag(name)} and {flag(kind)} exclude each other. Leave one of them out.", setting=name
                )

    def _check_files(self) -> None:
        super()._check_files()
        if self.task_name:
            files = f"{flag('train_file')}, {flag('validation_file')} and {flag('test_file')}"
            raise UserError(
                f"{flag('task_name', self.task_name)} excludes {files}. Leave one of them out.", setting="task_name"
            )

    def _check_dataset_name(self) -> None:
        super()._check_dataset_name()
        if self.dataset_name is not None and self.task_name:
            raise UserError(
                f"{flag('task_name', self.task_name)} and {flag('dataset_name', self.dataset_name)} exclude each "
                "other. Leave one out.",
                setting="dataset_name",
            )


@dataclass(frozen=True)
class SwagConfig(CustomDataConfig):
    """Fine-tunes a model that chooses one of several: SWAG, or your own rows (paper 4.4).

      bert-repro run_swag --model_name_or_path google-bert/bert-base-uncased \\
        --train_file train.jsonl --validation_file dev.jsonl --output_dir runs/my-choices

    From Python:

        import bert_repro

        config = bert_repro.SwagConfig(model_name_or_path="org/bert", train_file="train.csv", do_train=True)
        print(config.max_seq_length)  # for `bert_repro.finetune(config)`

    Your files (.csv, .tsv, .xlsx, .jsonl, .parquet) need the columns sent1, sent2 (the beginning of the next sentence,
    may be empty), ending0, ending1, further endings if there are any, and label (the number of the right ending, from
    0). SWAG is downloaded from the Hub, or read from --data_dir with its train.csv and val.csv. Dev accuracy: 81.6
    (BERT-base), 86.6 (BERT-large); chance is 25.
    """

    task_name: str = setting("swag", partial(task_help, "SwagConfig"), choices=partial(task_choices, "SwagConfig"))
    learning_rate: float = setting(
        DefaultRate(2e-5),
        "Peak learning rate. Default: 2e-5; small models 1e-4 (hidden size up to 512) or 3e-4 (up to 256).",
    )
    max_seq_length: int = setting(
        128, "Tokens per sequence; an example has one sequence for each ending. Longer ones are truncated."
    )


@dataclass(frozen=True)
class NerConfig(CustomDataConfig):
    """Fine-tunes a model that tags words: CoNLL-2003, or your own tagged text (paper 5.3).

      bert-repro run_ner --model_name_or_path google-bert/bert-base-cased \\
        --train_file my_train.txt --validation_file my_dev.txt --output_dir runs/my-tagger

      accelerate launch -m bert_repro run_ner --model_name_or_path google-bert/bert-base-cased \\
        --data_dir conll2003 --do_train --do_eval --do_predict --output_dir runs/ner

    From Python:

        import bert_repro

        config = bert_repro.NerConfig(model_name_or_path="org/bert-cased", train_file="train.txt", do_train=True)
        print(config.max_seq_length)  # for `bert_repro.finetune(config)`

    A file has a word and its tag on each line, an empty line after each sentence, and -DOCSTART- lines between
    documents. A .jsonl, .parquet, .csv or .xlsx file has the columns words and tags. Entities may be tagged as BIO,
    IOB1, BIOES, BILOU, BMES and similar schemes.
    --data_dir is the folder of the official eng.train, eng.testa and eng.testb. Without it the Hub's copy is used, and
    its document boundaries are part of this package. --feature_based concat_last_four, or another row of Table 7,
    trains a BiLSTM on hidden states of the frozen encoder. Entity F1: 96.4 dev, 92.4 test (BERT-base).
    """

    task_name: Literal["conll2003"] = setting("conll2003", "Name of the task.")
    max_seq_length: int = setting(512, "Tokens per window, including special tokens.")
    ner_context: Literal["tile", "sliding", "sentence"] = setting(
        "tile",
        "What the model reads at once: as many sentences of a document as fit (tile); windows that overlap by half, in "
        "which each word is tagged where it has most context (sliding, twice the time); or one sentence (sentence).",
    )
    feature_based: (
        Literal["embeddings", "second_to_last", "last", "weighted_last_four", "concat_last_four", "weighted_all"] | None
    ) = setting(None, "Train a two-layer BiLSTM on hidden states of the frozen encoder (Table 7).")
    feature_cache_dir: str = setting(
        "runs/features",
        "Folder for the hidden states. They are used again by runs with the same encoder weights and token ids.",
        decides_result=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.feature_based is None:
            return
        feature_based = flag("feature_based", self.feature_based)
        if not self.do_train:
            raise UserError(
                f"{feature_based} requires {flag('do_train')}. A fine-tuned model already contains this setting.",
                setting="feature_based",
            )
        if not self.packing:
            raise UserError(
                f"{feature_based} requires packing. Leave out {flag('packing', False)}.", setting="feature_based"
            )
        if self.peft is not None:
            raise UserError(
                f"{feature_based} keeps the encoder frozen, but {flag('peft', self.peft)} trains a part of it. Leave "
                "out one of the two.",
                setting="feature_based",
            )


@dataclass(frozen=True)
class SquadConfig(CustomDataConfig):
    """Fine-tunes a model that answers questions: SQuAD, or your own (paper 4.2, 4.3).

      bert-repro run_squad --model_name_or_path google-bert/bert-base-uncased \\
        --train_file train.csv --validation_file dev.csv --output_dir runs/faq

      accelerate launch -m bert_repro run_squad --model_name_or_path google-bert/bert-base-uncased \\
        --task_name squad --do_train --do_eval --output_dir runs/squad

    From Python:

        import bert_repro

        config = bert_repro.SquadConfig(model_name_or_path="org/bert", task_name="squad_v2", do_train=True)
        print(config.doc_stride)  # for `bert_repro.finetune(config)`

    Files are SQuAD's .json, or .csv, .tsv, .xlsx, .jsonl and .parquet with the columns question, context and answer
    (empty for none).
    SQuAD comes from the Hub, or with --data_dir from the folder of train-v1.1.json, dev-v1.1.json ... For v2.0 the
    threshold for no answer is chosen on the dev set, as in the paper. --ensemble_with answers with several fine-tuned
    models. BERT-base on dev: EM 80.8, F1 88.5 (v1.1). Estimated for one modern GPU: half an hour.
    """

    task_name: Literal["", "squad", "squad_v2"] = setting(
        "", "Name of the task. By default your files or the fine-tuned model decide."
    )
    num_train_epochs: float | None = setting(
        None, "Passes over the training set; default: 3 for squad, 2 for squad_v2."
    )
    max_seq_length: int = setting(384, "Tokens per window: [CLS] question [SEP] passage [SEP].")
    max_query_length: int = setting(64, "Tokens of a question; longer ones are truncated.")
    doc_stride: int = setting(128, "Tokens by which the window moves over a passage that does not fit.")
    train_file: str | None = setting(None, "Training questions; default: the official file in data_dir, or the Hub's.")
    validation_file: str | None = setting(None, "Questions to score; default as for train_file.")
    test_file: str | None = setting(
        None, "Questions to predict, with or without answers; default as for train_file.", decides_result=False
    )
    qa_loss: Literal["mean", "sum"] = setting("mean", "Mean or sum of the cross-entropies of start and end.")
    qa_softmax: Literal["sequence", "padded", "paragraph"] = setting(
        "sequence",
        "Positions over which the softmax of start and end is taken: the window (sequence), its padding too (padded; "
        "requires --packing false), or only the passage (paragraph).",
    )
    decoding: Literal["original", "exact"] = setting(
        "original",
        "Which spans are considered: the n_best_size best starts with the n_best_size best ends (original), or all "
        "(exact).",
    )
    n_best_size: int = setting(20, "Number of starts and of ends that are considered, and of answers that are written.")
    max_answer_length: int = setting(30, "Longest answer in tokens; 0 for no limit.")
    answer_text: Literal["original", "offsets"] = setting(
        "original",
        "Text of an answer: complete words, trimmed by aligning them with their tokens (original), or the characters "
        "of the tokens (offsets).",
    )
    null_score_diff_threshold: float | None = setting(
        None,
        "For v2.0, a question has no answer if the score of no answer exceeds that of the best answer by more than "
        "this (logits; the paper's -tau). Default: after training the best threshold for F1 on dev, otherwise the "
        "model's, otherwise 0.",
    )

    def _check_files(self) -> None:
        """Allows your own and official files together, for example TriviaQA for training and SQuAD's dev set."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "max_query_length", "doc_stride", "n_best_size")
        if self.max_answer_length < 0:
            raise UserError(
                f"{flag('max_answer_length', self.max_answer_length)}: the length must not be negative. Use 0 for no "
                "limit.",
                setting="max_answer_length",
            )
        # [CLS], two [SEP], and at least five tokens of the passage.
        shortest = self.max_query_length + 8
        if self.max_seq_length < shortest:
            raise UserError(
                f"{flag('max_seq_length', self.max_seq_length)} leaves no room for a passage after questions of "
                f"{self.max_query_length} tokens. It must be at least {shortest}, or "
                f"{flag('max_query_length')} must be smaller.",
                setting="max_seq_length",
            )
        if self.qa_softmax == "padded" and self.packing:
            raise UserError(
                f"{flag('qa_softmax', 'padded')} requires {flag('packing', False)}, because packed sequences have no "
                "padding.",
                setting="qa_softmax",
            )


FAMILIES: Mapping[str, type[CustomDataConfig]] = {
    "ForSequenceClassification": GlueConfig,
    "ForTokenClassification": NerConfig,
    "ForQuestionAnswering": SquadConfig,
    "ForMultipleChoice": SwagConfig,
}
"""Ending of a model's class -> the settings of the runs that make such models."""


@dataclass(frozen=True)
class SquadScoringConfig(Config):
    """Scores SQuAD predictions as the official scripts do.

      bert-repro score_squad --data_file dev-v1.1.json --predictions_file predictions.json

      bert-repro score_squad --task_name squad_v2 --data_file dev-v2.0.json \\
        --predictions_file predictions.json --null_odds_file null_odds.json

    Scores are fractions. The official scripts print percentages.
    """

    REQUIRED = ("data_file", "predictions_file")

    task_name: Literal["squad", "squad_v2"] = setting("squad", "Which script's rules to use: squad or squad_v2.")
    data_file: str = setting("", "Questions with their answers: dev-v1.1.json, dev-v2.0.json.")
    predictions_file: str = setting("", "JSON: question id -> answer text, empty for no answer.")
    null_odds_file: str | None = setting(
        None,
        "JSON: question id -> score of no answer minus score of the best answer. With it, squad_v2 also reports the "
        "best thresholds.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        # In v1.1 every question has an answer, so a threshold for no answer would be a meaningless number.
        if self.null_odds_file and self.task_name == "squad":
            raise UserError(
                f"{flag('null_odds_file', self.null_odds_file)} is for SQuAD v2.0. Add "
                f"{flag('task_name', 'squad_v2')}, or leave it out.",
                setting="null_odds_file",
            )


@dataclass(frozen=True)
class GlueZipConfig(Config):
    """Makes the zip that the GLUE leaderboard accepts from finished runs.

      bert-repro make_glue_zip --runs runs/glue --output_file glue.zip

    It requires one run made with --do_predict for each of cola sst2 mrpc stsb qqp mnli qnli rte, and one for ax, which
    the MNLI model predicts. WNLI is the majority class, as in the paper.
    """

    REQUIRED = ("runs", "output_file")

    runs: tuple[str, ...] = setting((), "Folders of finished runs, or folders that contain such folders at any depth.")
    output_file: str = setting("", "The zip to write.")
    overwrite_output_file: bool = setting(False, "Replace the output file.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.output_file.endswith(".zip"):
            raise UserError(
                f"{flag('output_file', self.output_file)} is not a .zip file. Choose a name that ends with .zip.",
                setting="output_file",
            )


@dataclass(frozen=True)
class TriviaqaConfig(Config):
    """Converts TriviaQA to SQuAD's JSON, to train on before SQuAD (paper 4.2, Table 2).

      bert-repro convert_triviaqa --qa_file triviaqa-rc/qa/wikipedia-train.json \\
        --evidence_dir triviaqa-rc/evidence --output_file runs/triviaqa.json

    Then run run_squad --train_file runs/triviaqa.json, and fine-tune the model that it makes on SQuAD. A passage is the
    first 400 tokens of a document (footnote 12).
    """

    REQUIRED = ("qa_file", "evidence_dir", "output_file")

    qa_file: str = setting("", "Questions with answers: TriviaQA's qa/wikipedia-train.json, or another of its files.")
    evidence_dir: str = setting(
        "", "Folder of the documents: TriviaQA's `evidence`, which contains wikipedia/ and web/."
    )
    output_file: str = setting("", "JSON file to write, for run_squad's --train_file.")
    overwrite_output_file: bool = setting(False, "Replace the output file.")
    max_tokens: int = setting(400, "Tokens of a passage, which is the beginning of a document.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "max_tokens")
