"""Files of benchmarks: scoring SQuAD predictions, the zip of the GLUE leaderboard, TriviaQA in SQuAD's format."""

from dataclasses import dataclass

from bert_repro.configs.base import Config, require, setting


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
        """The output is a zip."""
        super().validate()
        require(
            self.output_file.endswith(".zip"), f"--output_file is {self.output_file!r}; name a file that ends in .zip"
        )


@dataclass(frozen=True)
class GlueZipCheckConfig(Config):
    """Checks a zip for the GLUE leaderboard (recipes/check_glue_zip.py)."""

    zip_file: str = setting("", "The zip to check.", group="data", required="name the zip to check")


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
