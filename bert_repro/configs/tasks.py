"""The paper's tasks: GLUE, SWAG, CoNLL-2003, SQuAD."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from bert_repro.configs.base import Config, require, require_fraction, require_positive, setting
from bert_repro.configs.finetuning import CustomDataConfig
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

    Your files (.csv, .tsv, .jsonl) need a column text (or text_a and text_b) and a column label. GLUE comes from the
    Hub, or with --data_dir from the folder of the official CoLA/, SST-2/, MRPC/ ... --preset glue-sweep uses the best
    of the paper's four learning rates on dev, --num_restarts 5 of five seeds. BERT-base on dev: accuracy 84.4 MNLI-m,
    86.7 MRPC, 92.7 SST-2. Estimated for one modern GPU: a minute for MRPC, under an hour for MNLI.
    """

    task_name: str = setting("", partial(task_help, "GlueConfig"), choices=partial(task_choices, "GlueConfig"))
    text_columns: tuple[str, ...] = setting(
        (), "Custom data: one or two columns of text; default: text, or text_a and text_b."
    )
    label_column: str = setting("label", "Custom data: the column of labels.")
    regression: bool = setting(False, "Custom data: labels are numbers to predict.")
    multi_label: bool = setting(
        False,
        "Custom data: a row may have several labels, or none: a list in JSON lines, elsewhere a text such as `a|b`.",
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
            if not self.data_files:
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


@dataclass(frozen=True)
class SwagConfig(CustomDataConfig):
    """Fine-tunes a model that chooses one of several: SWAG, or your own rows (paper 4.4).

      bert-repro run_swag --model_name_or_path google-bert/bert-base-uncased \\
        --train_file train.jsonl --validation_file dev.jsonl --output_dir runs/my-choices

    From Python:

        import bert_repro

        config = bert_repro.SwagConfig(model_name_or_path="org/bert", train_file="train.csv", do_train=True)
        print(config.max_seq_length)  # for `bert_repro.finetune(config)`

    Your files (.csv, .tsv, .jsonl) need the columns sent1, sent2 (the beginning of the next sentence, may be empty),
    ending0, ending1, further endings if there are any, and label (the number of the right ending, from 0). SWAG is
    downloaded from the Hub, or read from --data_dir with its train.csv and val.csv. Dev accuracy: 81.6 (BERT-base),
    86.6 (BERT-large); chance is 25.
    """

    task_name: str = setting("swag", partial(task_help, "SwagConfig"), choices=partial(task_choices, "SwagConfig"))
    learning_rate: float = setting(2e-5, "Peak learning rate.")
    max_seq_length: int = setting(
        128, "Tokens per sequence; an example has one sequence for each ending. Longer ones are truncated."
    )


@dataclass(frozen=True)
class NerConfig(CustomDataConfig):
    """Fine-tunes a tagger of words: CoNLL-2003, or your own tagged text (paper 5.3).

      bert-repro run_ner --model_name_or_path google-bert/bert-base-cased \\
        --train_file my_train.txt --validation_file my_dev.txt --output_dir runs/my-tagger

      accelerate launch -m bert_repro run_ner --model_name_or_path google-bert/bert-base-cased \\
        --data_dir conll2003 --do_train --do_eval --do_predict --output_dir runs/ner

    From Python:

        import bert_repro

        config = bert_repro.NerConfig(model_name_or_path="org/bert-cased", train_file="train.txt", do_train=True)
        print(config.max_seq_length)  # for `bert_repro.finetune(config)`

    A file has a word and its tag on each line, an empty line after a sentence and -DOCSTART- lines between documents.
    --data_dir holds the official eng.train, eng.testa, eng.testb. Without it the Hub's copy is used, whose
    document boundaries come with this package. --feature_based concat_last_four, or another row of Table 7, trains a
    BiLSTM on hidden states of the frozen encoder. Entity F1: 96.4 dev, 92.4 test (BERT-base).
    """

    task_name: Literal["conll2003"] = setting("conll2003", "Name of the task.")
    learning_rate: float = setting(5e-5, "Peak learning rate.")
    max_seq_length: int = setting(512, "Tokens per window.")
    ner_context: Literal["tile", "sentence"] = setting(
        "tile", "What is read at once: as many sentences of a document as fit (tile), or each alone (sentence)."
    )
    feature_based: (
        Literal["embeddings", "second_to_last", "last", "weighted_last_four", "concat_last_four", "weighted_all"] | None
    ) = setting(None, "Train a two-layer BiLSTM on hidden states of the frozen encoder (Table 7).")
    feature_cache_dir: str = setting(
        "runs/features",
        "Folder of the hidden states, which are reused where encoder weights and token ids are equal.",
        decides_result=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.feature_based is not None:
            require(self.do_train, "--feature_based needs --do_train; a finished model knows what it reads")
            require(self.packing, "--feature_based needs packing; leave --packing false out")
            require(self.peft is None, "--feature_based and --peft exclude each other: the encoder stays as it is")


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

    Files are SQuAD's .json, or .csv, .tsv, .jsonl with question, context and answer (empty for none). SQuAD comes from
    the Hub, or with --data_dir from the folder of train-v1.1.json, dev-v1.1.json ... For v2.0 the threshold on the
    null score is chosen on dev, as in the paper. --ensemble_with answers with several finished models. Dev, BERT-base:
    EM 80.8, F1 88.5 (v1.1). Estimated for one modern GPU: half an hour.
    """

    task_name: Literal["", "squad", "squad_v2"] = setting(
        "", "Name of the task; default: what files or the finished model say."
    )
    num_train_epochs: float | None = setting(
        None, "Passes over the training set; default: 3 for squad, 2 for squad_v2."
    )
    max_seq_length: int = setting(384, "Tokens per window: [CLS] question [SEP] passage [SEP].")
    max_query_length: int = setting(64, "Tokens of a question; longer ones are cut.")
    doc_stride: int = setting(128, "Tokens by which the window moves over a passage that does not fit.")
    train_file: str | None = setting(None, "Training questions; default: the official file in data_dir, or the Hub's.")
    validation_file: str | None = setting(None, "Questions to score; default as for train_file.")
    test_file: str | None = setting(
        None, "Questions to predict, with or without answers; default as for train_file.", decides_result=False
    )
    qa_loss: Literal["mean", "sum"] = setting("mean", "Mean or sum of the cross-entropies of start and end.")
    qa_softmax: Literal["sequence", "padded", "paragraph"] = setting(
        "sequence",
        "Where start and end may lie in the loss: in the window (sequence), its padding too (padded; needs "
        "--packing false), or the passage only (paragraph).",
    )
    decoding: Literal["original", "exact"] = setting(
        "original", "Search the n_best_size best starts and ends, then filter (original), or all spans (exact)."
    )
    n_best_size: int = setting(20, "Starts and ends considered, and answers kept.")
    max_answer_length: int = setting(30, "Longest answer in tokens; 0: no limit.")
    answer_text: Literal["original", "offsets"] = setting(
        "original",
        "Complete words, trimmed by aligning them with their tokens (original), or the characters of the tokens "
        "(offsets).",
    )
    null_score_diff_threshold: float | None = setting(
        None,
        "v2.0: no answer where the null score exceeds the best answer's by more than this (logits; the paper's "
        "-tau). Default: the best for F1 on dev after training, else what the model stores, else 0.",
    )

    def _check_files(self) -> None:
        """Allows custom and official files together: TriviaQA to train on, SQuAD's dev set to score."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "max_query_length", "doc_stride", "n_best_size")
        require(self.max_answer_length >= 0, f"--max_answer_length is {self.max_answer_length}; give 0 for no limit")
        require(
            self.max_seq_length >= self.max_query_length + 8,
            f"--max_seq_length is {self.max_seq_length}; it must be at least --max_query_length + 8 "
            f"({self.max_query_length + 8}) to leave room for a passage",
        )
        require(
            self.qa_softmax != "padded" or not self.packing,
            "--qa_softmax padded needs --packing false: packed sequences have no padding",
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

    Scores are fractions; the official scripts print them times 100.
    """

    REQUIRED = ("data_file", "predictions_file")

    task_name: Literal["squad", "squad_v2"] = setting("squad", "squad or squad_v2.")
    data_file: str = setting("", "Questions with their answers: dev-v1.1.json, dev-v2.0.json.")
    predictions_file: str = setting("", "JSON: question id -> answer text, empty for no answer.")
    null_odds_file: str | None = setting(
        None, "JSON: question id -> null score less best score; v2.0 then also finds the best threshold."
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
    """Converts TriviaQA to SQuAD's JSON, for the step before SQuAD (paper 4.2, Table 2).

      bert-repro convert_triviaqa --qa_file triviaqa-rc/qa/wikipedia-train.json \\
        --evidence_dir triviaqa-rc/evidence --output_file runs/triviaqa.json

    Then run_squad --train_file runs/triviaqa.json, and SQuAD itself from the model that this makes. A passage is the
    first 400 tokens of a document (footnote 12).
    """

    REQUIRED = ("qa_file", "evidence_dir", "output_file")

    qa_file: str = setting("", "Questions with answers: TriviaQA's qa/wikipedia-train.json, or another of its files.")
    evidence_dir: str = setting("", "Folder of the documents: TriviaQA's `evidence`, with wikipedia/ and web/ in it.")
    output_file: str = setting("", "JSON file to write, for run_squad's --train_file.")
    overwrite_output_file: bool = setting(False, "Replace the output file.")
    max_tokens: int = setting(400, "Tokens of a passage: the beginning of a document.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "max_tokens")
