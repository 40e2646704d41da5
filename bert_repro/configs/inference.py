"""Settings of the recipes that use a finished model: predictions, features, sentence scores, ONNX."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bert_repro.configs.base import Config, encoding_setting, require_positive, setting
from bert_repro.configs.named_data import refuse_other_data
from bert_repro.errors import UserError, flag
from bert_repro.utils.text_encodings import require_encoding

ONNX_FILES = {"fp32": "model.onnx", "fp16": "model_fp16.onnx", "q8": "model_quantized.onnx"}
"""Type of the weights -> the file name that transformers.js looks for in onnx/."""

_FEATURE_SUFFIXES = (".parquet", ".jsonl")
_TABLE_SUFFIXES = (".csv", ".tsv", ".xlsx")
_PREDICTION_SUFFIXES = ("", ".csv", ".tsv", ".jsonl", ".parquet", ".xlsx", ".conll")


@dataclass(frozen=True)
class PredictConfig(Config):
    """Predicts with a fine-tuned model: labels, numbers, tags, answers or choices.

      echo "Where is my parcel?" | bert-repro predict --model_name_or_path runs/my-classifier

      bert-repro predict --model_name_or_path runs/my-classifier --input_file new.csv --output_file answers.csv

      bert-repro predict --model_name_or_path runs/my-classifier --dataset_name org/name --output_file answers.parquet

      bert-repro predict --model_name_or_path runs/my-answers --input_file questions.txt --context_file handbook.txt

    The model knows which task it is for. The input is a text on each line, or a .csv, .tsv, .xlsx, .jsonl or .parquet
    file with the columns that the model was trained on. The output has all columns of the input, the prediction and its
    probability. Large files are answered in parts; after an interruption the same command continues.
    """

    REQUIRED = ("model_name_or_path",)

    model_name_or_path: str = setting("", "A fine-tuned model: the output folder of its run, or an id of the Hub.")
    input_file: str | None = setting(
        None,
        "A text on each line, or a .csv, .tsv, .xlsx, .jsonl or .parquet file; SQuAD's .json for questions. Default: "
        "the standard input.",
    )
    input_format: Literal["text", "csv", "tsv", "jsonl", "json", "conll"] | None = setting(
        None,
        "Format of the input. Default: by the ending of input_file, else text. conll: a word on each line, an empty "
        "line after each sentence.",
    )
    encoding: str = encoding_setting()
    text_columns: tuple[str, ...] = setting(
        (), "Columns of the texts. Default: as in training, else text, text_a and text_b, or those of a GLUE task."
    )
    label_column: str | None = setting(None, "Column of the right answers, for the score. Default: as in training.")
    dataset_name: str | None = setting(
        None,
        "A dataset instead of input_file: a Hub id such as org/name, a folder of data files, or a folder written by "
        "save_to_disk.",
    )
    dataset_config_name: str | None = setting(None, "Configuration (subset) of the dataset, if it has several.")
    dataset_split: str = setting("test", "Split of the dataset to predict.")
    streaming: bool = setting(False, "Read a dataset of the Hub while predicting, without downloading all of it first.")
    context_file: str | None = setting(
        None, "For questions in plain text: the file with the passage that they are about."
    )
    output_file: str | None = setting(
        None, "A .csv, .tsv, .xlsx, .jsonl, .parquet or .conll (tags) file. Default: CSV to the standard output."
    )
    overwrite_output_file: bool = setting(False, "Replace the output file if it exists.")
    escape_formulas: bool = setting(
        False,
        "Write an apostrophe before texts that a spreadsheet would run as formulas. Use it for tables of strangers' "
        "texts that are opened in a spreadsheet.",
    )
    max_seq_length: int | None = setting(
        None,
        "Longest input in tokens. Longer texts are truncated. Default: as in the model's training, else all its "
        "positions.",
    )
    per_device_eval_batch_size: int = setting(64, "Sequences per forward pass.")
    mixed_precision: Literal["no", "bf16", "fp16", "auto"] = setting(
        "no", "Autocast precision. auto: bf16 if the device supports it."
    )
    attn_implementation: str = setting("sdpa", "Attention implementation, as in transformers.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "max_seq_length", "per_device_eval_batch_size")
        require_encoding(self.encoding)
        self._check_dataset()
        if Path(self.output_file or "").suffix not in _PREDICTION_SUFFIXES:
            raise UserError(
                f"{flag('output_file', self.output_file)} has an unknown ending. Use .csv, .tsv, .xlsx, .jsonl, "
                ".parquet or .conll.",
                setting="output_file",
            )

    def _check_dataset(self) -> None:
        """Refuses two inputs, and settings of a dataset that is not named."""
        if self.dataset_name is not None:
            refuse_other_data(self, self.dataset_name, ("input_file", "input_format", "context_file"))
            return
        if self.dataset_config_name is not None or self.streaming:
            name = "streaming" if self.streaming else "dataset_config_name"
            raise UserError(
                f"{flag(name, getattr(self, name))} requires {flag('dataset_name')}, the dataset that it is about.",
                setting=name,
            )


@dataclass(frozen=True)
class ExtractionConfig(Config):
    """Writes vectors of a frozen BERT for the texts of a file (paper 5.3, Table 7).

      bert-repro extract_features --model_name_or_path google-bert/bert-base-cased --input_file texts.txt \\
        --layers last_four --output_file features.parquet

    Without --pooling each token has a vector; cls and mean make one vector for each text.
    """

    REQUIRED = ("model_name_or_path", "input_file", "output_file", "layers")

    model_name_or_path: str = setting("", "Any BERT checkpoint: a folder or an id of the Hub.")
    input_file: str = setting(
        "", "A text on each line, or a .csv, .tsv, .xlsx, .jsonl or .parquet with a column of texts."
    )
    text_column: str = setting("text", "Column, or field of a JSON line, with the text.")
    encoding: str = encoding_setting()
    output_file: str = setting(
        "",
        "File to write, with a row for each text: .parquet or .jsonl; with pooling also .csv, .tsv or .xlsx, with a "
        "column for each number.",
    )
    overwrite_output_file: bool = setting(False, "Replace the output file if it exists.")
    layers: tuple[str, ...] = setting(
        ("last",),
        "embeddings, last, second_to_last, last_four, all, or indices: 0 for the embeddings, 1 for the first layer, -1 "
        "for the last one. Several layers are concatenated.",
    )
    pooling: Literal["none", "cls", "mean"] = setting(
        "none", "A vector for every token (none), or one for each text: that of [CLS] (cls) or the mean of all (mean)."
    )
    max_seq_length: int = setting(512, "Longest input in tokens. Longer texts are truncated.")
    per_device_eval_batch_size: int = setting(64, "Texts per forward pass.")
    mixed_precision: Literal["no", "bf16"] = setting("no", "Autocast precision.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "max_seq_length", "per_device_eval_batch_size")
        require_encoding(self.encoding)
        suffix = Path(self.output_file).suffix
        if suffix in _FEATURE_SUFFIXES or (suffix in _TABLE_SUFFIXES and self.pooling != "none"):
            return
        if suffix in _TABLE_SUFFIXES:
            raise UserError(
                f"{flag('output_file', self.output_file)}: a vector for every token does not fit into a table. Use "
                f".parquet or .jsonl, or add {flag('pooling', 'mean')}.",
                setting="output_file",
            )
        raise UserError(
            f"{flag('output_file', self.output_file)} has an unknown ending. Use .parquet or .jsonl; with "
            f"{flag('pooling')} also .csv, .tsv or .xlsx.",
            setting="output_file",
        )


@dataclass(frozen=True)
class SentenceScoringConfig(Config):
    """Scores sentences with a masked language model, or compares minimal pairs (BLiMP).

      bert-repro score_sentences --model_name_or_path google-bert/bert-base-uncased --input_file texts.txt \\
        --output_dir runs/scores

      bert-repro score_sentences --model_name_or_path google-bert/bert-base-uncased --minimal_pairs blimp/ \\
        --output_dir runs/blimp

    The score is the pseudo-log-likelihood: every token is masked, one at a time, and the logarithms of the tokens'
    probabilities are added up (Salazar et al., 2020). A sentence needs one forward pass for each of its tokens.
    """

    REQUIRED = ("model_name_or_path", "output_dir")

    model_name_or_path: str = setting(
        "", "A BERT checkpoint with its masked language model: a folder or an id of the Hub."
    )
    input_file: str | None = setting(
        None, "A text on each line, or a .csv, .tsv, .xlsx, .jsonl or .parquet with a column of texts."
    )
    text_column: str = setting("text", "Column, or field of a JSON line, with the text.")
    encoding: str = encoding_setting()
    minimal_pairs: tuple[str, ...] = setting(
        (),
        "In place of input_file: files or folders of minimal pairs in BLiMP's form (.jsonl, also .gz and .xz, or a "
        "table).",
    )
    output_dir: str = setting("", "Folder for scores.jsonl, or for results.json of minimal pairs.")
    output_format: Literal["jsonl", "csv", "tsv", "xlsx", "parquet"] = setting(
        "jsonl", "Format of the scores. The tables csv, tsv and xlsx have a row for each text, without its tokens."
    )
    overwrite_output_dir: bool = setting(False, "Replace the content of the output folder.")
    method: Literal["within_word_l2r", "original"] = setting(
        "within_word_l2r",
        "Mask a token with the later pieces of its word (Kauf and Ivanova, 2023), or the token alone (original).",
    )
    batch_tokens: int = setting(8192, "Largest number of tokens in a forward pass.")
    mixed_precision: Literal["no", "bf16"] = setting("no", "Autocast precision.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "batch_tokens")
        require_encoding(self.encoding)
        if bool(self.input_file) == bool(self.minimal_pairs):
            raise UserError(
                f"Set either {flag('input_file')} (a file of texts) or {flag('minimal_pairs')} (pairs of sentences to "
                "compare).",
                setting="input_file",
            )


@dataclass(frozen=True)
class OnnxConfig(Config):
    """Exports a finished model to ONNX, so that it runs without PyTorch.

      pip install onnx onnxruntime onnxscript
      bert-repro export_onnx --folder runs/mrpc --dtypes fp32 q8

    The files are written to onnx/ in the folder, where the Hub and transformers.js look for them. The outputs of each
    file are compared with PyTorch's. It takes a minute, and as much disk space as the weights for each type.
    """

    REQUIRED = ("folder", "dtypes")

    folder: str = setting("", "Folder of the model: the output folder of a finished run, or one of its checkpoints.")
    dtypes: tuple[Literal["fp32", "fp16", "q8"], ...] = setting(
        ("fp32",),
        "Types to write: fp32 (model.onnx), fp16 (model_fp16.onnx), q8 (model_quantized.onnx, 8-bit weights).",
    )
    overwrite_output_file: bool = setting(False, "Replace files that already exist.")
