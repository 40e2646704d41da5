"""Predictions of a fine-tuned model for custom texts; files of predictions, scored or gathered for a leaderboard."""

from dataclasses import dataclass

from bert_repro.configs.base import Config, require, setting, tokenizer_setting
from bert_repro.utils.readers import shown


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
        (),
        "Columns of the texts; default: as in training, else text, text_a and text_b, or those of a GLUE task.",
        group="data",
    )
    label_column: str | None = setting(
        None, "Column of the right answers, carried along where it is there; default: as in training.", group="data"
    )
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


@dataclass(frozen=True)
class SquadScoringConfig(Config):
    """Scores a file of predictions as the official SQuAD scripts do (recipes/score_squad.py)."""

    task_name: str = setting(
        "squad", "squad or squad_v2.", source="transformers", choices=("squad", "squad_v2"), group="data"
    )
    data_file: str = setting(
        "", "Questions with their answers: dev-v1.1.json, dev-v2.0.json.", group="data", required="name a JSON file"
    )
    predictions_file: str = setting(
        "", "JSON: question id -> answer text, empty for no answer.", group="data", required="name a JSON file"
    )
    null_odds_file: str | None = setting(
        None, "JSON: question id -> null score less best score; v2.0 then also finds the best threshold.", group="data"
    )


@dataclass(frozen=True)
class GlueZipConfig(Config):
    """Gathers test predictions of finished runs into the zip of the GLUE leaderboard (recipes/make_glue_zip.py)."""

    runs: tuple[str, ...] = setting(
        (),
        "Folders of finished runs, or folders that hold such folders at any depth.",
        group="data",
        required="name at least one folder of finished runs",
    )
    output_file: str = setting("", "The zip to write.", group="output")
    overwrite_output_file: bool = setting(False, "Replace the output file.", group="output")

    def validate(self) -> None:
        """Refuses an output that is no zip."""
        super().validate()
        require(self.output_file.endswith(".zip"), f"--output_file is {shown(self.output_file)}; name a .zip file")
