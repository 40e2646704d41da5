"""Predictions of a fine-tuned model for texts that somebody has."""

from dataclasses import dataclass

from bert_repro.configs.base import Config, setting, tokenizer_setting


@dataclass(frozen=True)
class PredictConfig(Config):
    """What a fine-tuned model says about texts of a file or of the standard input (recipes/predict.py)."""

    model_name_or_path: str = setting(
        "",
        "A fine-tuned model: the output folder of its run, or a Hub id.",
        source="transformers",
        group="model",
        checkpoint=True,
        required="name the output folder of a fine-tuning run, or a Hub id",
    )
    tokenizer_name: str | None = tokenizer_setting()
    input_file: str | None = setting(
        None,
        "Texts to read: one on each line, or .csv, .tsv, .jsonl; SQuAD's .json for questions. Default: the standard "
        "input.",
        group="data",
    )
    input_format: str | None = setting(
        None,
        "Format of the input; default: by the ending of input_file, else text. conll: a word on each line, an empty "
        "line after each sentence.",
        choices=("text", "csv", "tsv", "jsonl", "json", "conll"),
        group="data",
    )
    text_columns: tuple[str, ...] = setting(
        (), "Columns of the texts; default: text, text_a and text_b, or those of a GLUE task.", group="data"
    )
    label_column: str = setting("label", "Column of the right answers, carried along where it is there.", group="data")
    id_column: str | None = setting(None, "A column to carry along as id.", group="data")
    context_file: str | None = setting(
        None, "Questions in plain text: the file of the passage that they are about.", group="data"
    )
    output_file: str | None = setting(None, "File to write; default: the standard output.", group="output")
    output_format: str | None = setting(
        None,
        "Format of the answers; default: by the ending of output_file, else csv.",
        choices=("csv", "jsonl"),
        group="output",
    )
    overwrite_output_file: bool = setting(False, "Replace the output file.", group="output")
    max_seq_length: int | None = setting(
        None,
        "Tokens per sequence; longer texts are cut. Default: that of the model's training, else all its positions.",
        source="transformers",
        unit="tokens",
        group="data",
        at_least=8,
        at_most=65_536,
    )
    per_device_eval_batch_size: int = setting(
        64,
        "Sequences per forward pass.",
        source="transformers",
        unit="sequences",
        group="speed",
        above=0,
        at_most=1_000_000,
    )
    mixed_precision: str = setting(
        "no", "Autocast precision.", source="transformers", choices=("no", "bf16", "fp16"), group="speed"
    )
    attn_implementation: str = setting(
        "sdpa", "Attention of transformers' interface.", source="transformers", group="speed"
    )
