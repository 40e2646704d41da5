"""What is made of a finished model: features, its card, an upload, an ONNX file."""

from dataclasses import dataclass

from bert_repro.configs.base import Config, require, setting


@dataclass(frozen=True)
class ExtractionConfig(Config):
    """Features of a frozen encoder for every text of a file (recipes/extract_features.py)."""

    model_name_or_path: str = setting("", "Any BERT checkpoint: a folder or a Hub id.", source="transformers")
    tokenizer_name: str | None = setting(None, "Tokenizer, where it is not with the model.", source="transformers")
    input_file: str = setting("", "A text on each line, or .jsonl (.json) with an object on each line that holds one.")
    text_column: str = setting("text", "Field of a JSON line that holds the text.")
    output_file: str = setting("", "Parquet file to write, with a row for each text.")
    overwrite_output_file: bool = setting(False, "Replace the output file.")
    layers: tuple[str, ...] = setting(
        ("last",),
        "embeddings, last, second_to_last, last_four, all, or indices: 0 for the embeddings, 1 for the first layer, -1 "
        "for the last (Table 7).",
        source="paper",
    )
    combine: str = setting("concat", "How several layers become one vector.", choices=("concat", "sum"))
    pooling: str = setting(
        "none",
        "A vector for every token, special tokens included (none); or one for the text: of [CLS] (cls), or their mean "
        "over all tokens (mean).",
        choices=("none", "cls", "mean"),
    )
    max_seq_length: int = setting(512, "Tokens per text; longer ones are truncated.", unit="tokens")
    per_device_eval_batch_size: int = setting(64, "Texts per forward pass.", source="transformers", unit="sequences")
    mixed_precision: str = setting("no", "Autocast precision.", source="transformers", choices=("no", "bf16"))
    attn_implementation: str = setting("sdpa", "Attention of transformers' interface.", source="transformers")

    def validate(self) -> None:
        """A model, an input, an output and at least one layer."""
        super().validate()
        for name in ("model_name_or_path", "input_file", "output_file"):
            require(bool(getattr(self, name)), f"--{name} is missing")
        require(len(self.layers) > 0, "--layers is empty; name at least one, for example last")
        size = self.per_device_eval_batch_size
        require(size > 0, f"--per_device_eval_batch_size is {size}; it must be positive")


@dataclass(frozen=True)
class SentenceScoringConfig(Config):
    """Pseudo-log-likelihoods of sentences, and minimal pairs (recipes/score_sentences.py)."""

    model_name_or_path: str = setting(
        "", "A BERT checkpoint with its masked language model: a folder or a Hub id.", source="transformers"
    )
    tokenizer_name: str | None = setting(None, "Tokenizer, where it is not with the model.", source="transformers")
    input_file: str | None = setting(
        None, "A text on each line, or .jsonl (.json) with an object on each line that holds one."
    )
    text_column: str = setting("text", "Field of a JSON line that holds the text.")
    minimal_pairs: tuple[str, ...] = setting(
        (), "In place of --input_file: files or folders of minimal pairs in BLiMP's form (.jsonl, also .gz and .xz)."
    )
    output_dir: str = setting(
        "", "Folder for scores.jsonl, or of pairs results.json and minimal_pairs.txt.", source="transformers"
    )
    overwrite_output_dir: bool = setting(False, "Replace what the output folder holds.", source="transformers")
    method: str = setting(
        "within_word_l2r",
        "within_word_l2r masks a token and the later pieces of its word (Kauf and Ivanova, 2023); original masks the "
        "token alone (Salazar et al., 2020).",
        choices=("within_word_l2r", "original"),
    )
    batch_tokens: int = setting(8192, "Most tokens of a forward pass.", unit="tokens")
    mixed_precision: str = setting("no", "Autocast precision.", source="transformers", choices=("no", "bf16"))

    def validate(self) -> None:
        """A model, one input, an output folder."""
        super().validate()
        for name in ("model_name_or_path", "output_dir"):
            require(bool(getattr(self, name)), f"--{name} is missing")
        require(
            bool(self.input_file) != bool(self.minimal_pairs),
            "give --input_file or --minimal_pairs: a file of texts, or pairs of sentences to compare",
        )
        require(self.batch_tokens > 0, f"--batch_tokens is {self.batch_tokens}; it must be positive")


@dataclass(frozen=True)
class CardConfig(Config):
    """Makes the card of a finished run anew, with facts that its record cannot know (recipes/make_card.py)."""

    folder: str = setting("", "Output folder of a finished run.")
    output_file: str | None = setting(None, "File to write; default: README.md in the folder.")
    same_runs: tuple[str, ...] = setting(
        (), "Folders of the same run with other seeds: the card shows mean and deviation over all of them."
    )
    hub_model_id: str | None = setting(
        None, "The model's name on the card; default: as in the run, else the folder's name.", source="transformers"
    )
    base_model: str | None = setting(None, "Id on the Hub of the weights that the run started from.")
    dataset: str | None = setting(
        None, "Id on the Hub of the data, where --data_dir held other data than the task's; none: it has no id there."
    )
    language: tuple[str, ...] = setting((), "Languages of the text, as ISO 639 codes.")
    license: str | None = setting(None, "Licence of the weights, as the Hub spells it, for example apache-2.0.")
    data_license: str | None = setting(None, "Licence of the training data, in words.")
    note: str | None = setting(None, "A sentence about the data or the scores.")

    def validate(self) -> None:
        """A folder."""
        super().validate()
        require(bool(self.folder), "--folder is missing; name the output folder of a finished run")


@dataclass(frozen=True)
class PushConfig(Config):
    """Uploads a published folder to the Hub (recipes/push_to_hub.py)."""

    folder: str = setting("", "Output folder of a finished run, or one of its checkpoints.")
    hub_model_id: str = setting(
        "", "Repository on the Hub, for example org/name; made if need be.", source="transformers"
    )
    hub_private_repo: bool | None = setting(
        None,
        "Make a new repository private; default: public, unless its organisation decides otherwise.",
        source="transformers",
    )
    hub_revision: str | None = setting(
        None, "Branch to upload to; default: main, for a checkpoint step-N.", source="transformers"
    )
    checkpoints: bool = setting(False, "Upload the run's checkpoints too, each as the revision step-N.")
    dry_run: bool = setting(False, "List files and sizes, check the card's metadata, and stop.")

    def validate(self) -> None:
        """A folder and a repository."""
        super().validate()
        require(bool(self.folder), "--folder is missing; name the output folder of a finished run")
        require(bool(self.hub_model_id), "--hub_model_id is missing; name a repository such as org/name")


@dataclass(frozen=True)
class OnnxConfig(Config):
    """Writes a published folder's model as ONNX (recipes/export_onnx.py)."""

    folder: str = setting("", "Published folder: the output folder of a finished run, or one of its checkpoints.")
    output_file: str | None = setting(None, "File to write; default: onnx/model.onnx in the folder.")
    overwrite_output_file: bool = setting(False, "Replace the output file.")

    def validate(self) -> None:
        """A folder."""
        super().validate()
        require(bool(self.folder), "--folder is missing; name the output folder of a finished run")
