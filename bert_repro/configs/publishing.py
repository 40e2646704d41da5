"""What is made from a finished model: features, sentence scores, its card, an upload, files of ONNX and TensorFlow."""

from dataclasses import dataclass

from bert_repro.configs.base import Config, require, setting, tokenizer_setting

ONNX_FILES = {"fp32": "model.onnx", "fp16": "model_fp16.onnx", "q8": "model_quantized.onnx"}
"""Type of the weights -> the name under which transformers.js looks for it in onnx/."""


@dataclass(frozen=True)
class ExtractionConfig(Config):
    """Features of a frozen encoder for every text of a file (recipes/extract_features.py)."""

    model_name_or_path: str = setting(
        "",
        "Any BERT checkpoint: a folder or a Hub id.",
        source="transformers",
        group="model",
        checkpoint=True,
        required="name a checkpoint folder or a Hub id",
    )
    tokenizer_name: str | None = tokenizer_setting()
    input_file: str = setting(
        "",
        "A text on each line, or .jsonl (.json) with an object on each line that holds one.",
        group="data",
        required="name a file of texts",
    )
    text_column: str = setting("text", "Field of a JSON line that holds the text.", group="data")
    output_file: str = setting(
        "", "Parquet file to write, with a row for each text.", group="output", required="name the file to write"
    )
    overwrite_output_file: bool = setting(False, "Replace the output file.", group="output")
    layers: tuple[str, ...] = setting(
        ("last",),
        "embeddings, last, second_to_last, last_four, all, or indices: 0 for the embeddings, 1 for the first layer, "
        "-1 for the last (Table 7).",
        source="paper",
        group="model",
    )
    combine: str = setting("concat", "How several layers become one vector.", choices=("concat", "sum"), group="model")
    pooling: str = setting(
        "none",
        "A vector for every token, special tokens included (none); or one for the text: of [CLS] (cls), or their mean "
        "over all tokens (mean).",
        choices=("none", "cls", "mean"),
        group="model",
    )
    max_seq_length: int = setting(
        512, "Tokens per text; longer ones are truncated.", unit="tokens", group="data", at_least=8, at_most=65_536
    )
    per_device_eval_batch_size: int = setting(
        64,
        "Texts per forward pass.",
        source="transformers",
        unit="sequences",
        group="speed",
        above=0,
        at_most=1_000_000,
    )
    mixed_precision: str = setting(
        "no", "Autocast precision.", source="transformers", choices=("no", "bf16"), group="training"
    )
    attn_implementation: str = setting(
        "sdpa", "Attention of transformers' interface.", source="transformers", group="speed"
    )

    def validate(self) -> None:
        """Refuses an empty list of layers."""
        super().validate()
        require(len(self.layers) > 0, "--layers is empty; name at least one, for example last")


@dataclass(frozen=True)
class SentenceScoringConfig(Config):
    """Pseudo-log-likelihoods of sentences, and minimal pairs (recipes/score_sentences.py)."""

    model_name_or_path: str = setting(
        "",
        "A BERT checkpoint with its masked language model: a folder or a Hub id.",
        source="transformers",
        group="model",
        checkpoint=True,
        required="name a checkpoint folder or a Hub id",
    )
    tokenizer_name: str | None = tokenizer_setting()
    input_file: str | None = setting(
        None, "A text on each line, or .jsonl (.json) with an object on each line that holds one.", group="data"
    )
    text_column: str = setting("text", "Field of a JSON line that holds the text.", group="data")
    minimal_pairs: tuple[str, ...] = setting(
        (),
        "In place of --input_file: files or folders of minimal pairs in BLiMP's form (.jsonl, also .gz and .xz).",
        group="data",
    )
    output_dir: str = setting(
        "",
        "Folder for scores.jsonl; for pairs results.json and minimal_pairs.txt.",
        source="transformers",
        group="output",
        required="name the folder to write",
    )
    overwrite_output_dir: bool = setting(
        False, "Replace what the output folder holds.", source="transformers", group="output"
    )
    method: str = setting(
        "within_word_l2r",
        "within_word_l2r masks a token and the later pieces of its word (Kauf and Ivanova, 2023); original masks the "
        "token alone (Salazar et al., 2020).",
        choices=("within_word_l2r", "original"),
        group="task",
    )
    batch_tokens: int = setting(
        8192, "Most tokens of a forward pass.", unit="tokens", group="speed", above=0, at_most=1_000_000_000
    )
    mixed_precision: str = setting(
        "no", "Autocast precision.", source="transformers", choices=("no", "bf16"), group="training"
    )

    def validate(self) -> None:
        """Texts or pairs."""
        super().validate()
        require(
            bool(self.input_file) != bool(self.minimal_pairs),
            "give --input_file or --minimal_pairs: a file of texts, or pairs of sentences to compare",
        )


@dataclass(frozen=True)
class CardConfig(Config):
    """Rewrites the card of a finished run with facts that its results do not hold (recipes/make_card.py)."""

    folder: str = setting(
        "", "Output folder of a finished run.", group="data", required="name the output folder of a finished run"
    )
    output_file: str | None = setting(None, "File to write; default: README.md in the folder.", group="output")
    same_runs: tuple[str, ...] = setting(
        (),
        "Folders of the same run with other seeds: the card shows mean and standard deviation over all of them.",
        group="data",
    )
    hub_model_id: str | None = setting(
        None,
        "The model's name on the card; default: as in the run, else the folder's name.",
        source="transformers",
        group="hub",
    )
    base_model: str | None = setting(None, "Id on the Hub of the weights that the run started from.", group="card")
    dataset: str | None = setting(
        None,
        "Id on the Hub of the data, where --data_dir held other data than the task's; none: it has no id there.",
        group="card",
    )
    language: tuple[str, ...] = setting((), "Languages of the text, as ISO 639 codes.", group="card")
    license: str | None = setting(
        None, "License of the weights, as the Hub spells it, for example apache-2.0.", group="card"
    )
    data_license: str | None = setting(None, "License of the training data, in words.", group="card")
    note: str | None = setting(None, "A sentence about the data or the scores.", group="card")
    example: tuple[str, ...] = setting(
        (),
        "Input of the card's snippet and of the Hub's widget: a text, two for a pair, question and passage, or a "
        "beginning and its continuations; none: a neutral sentence. Default: that of the run.",
        group="card",
    )


@dataclass(frozen=True)
class PushConfig(Config):
    """Uploads a published folder to the Hub (recipes/push_to_hub.py)."""

    folder: str = setting(
        "",
        "Output folder of a finished run, or one of its checkpoints.",
        group="data",
        required="name the output folder of a finished run",
    )
    hub_model_id: str = setting(
        "",
        "Repository on the Hub, for example org/name; created if it does not exist.",
        source="transformers",
        group="hub",
        required="name a repository such as org/name",
    )
    hub_private_repo: bool | None = setting(
        None,
        "Make a new repository private; default: public, unless its organization decides otherwise.",
        source="transformers",
        group="hub",
    )
    hub_revision: str | None = setting(
        None, "Branch to upload to; default: main, for a checkpoint step-N.", source="transformers", group="hub"
    )
    checkpoints: bool = setting(False, "Upload the run's checkpoints too, each as the revision step-N.", group="hub")
    dry_run: bool = setting(False, "List files and sizes, check the card's metadata, and stop.", group="output")


@dataclass(frozen=True)
class CorpusPushConfig(Config):
    """Uploads a prepared corpus to the Hub as a dataset (recipes/push_corpus.py)."""

    corpus: str = setting(
        "", "Prepared corpus: a folder that prepare_corpus made.", group="data", required="name a prepared corpus"
    )
    hub_dataset_id: str = setting(
        "",
        "Dataset on the Hub, for example org/name; created if it does not exist.",
        group="hub",
        required="name a dataset such as org/name",
    )
    license: str = setting(
        "",
        "License of the texts as the Hub spells it, for example cc-by-sa-4.0; other where none of its names fits.",
        group="card",
        required="name the license of the texts, for example cc-by-sa-4.0",
    )
    language: str | None = setting(None, "Language of the texts, for example en.", group="card")
    description: str | None = setting(None, "A sentence for the card: what the texts are.", group="card")
    hub_private_repo: bool | None = setting(
        None,
        "Make a new dataset private; default: public, unless its organization decides otherwise.",
        source="transformers",
        group="hub",
    )
    dry_run: bool = setting(False, "List files and sizes, and stop.", group="output")


@dataclass(frozen=True)
class OnnxConfig(Config):
    """Writes a published folder's model as ONNX (recipes/export_onnx.py)."""

    folder: str = setting(
        "",
        "Published folder: the output folder of a finished run, or one of its checkpoints.",
        group="data",
        required="name the output folder of a finished run",
    )
    dtypes: tuple[str, ...] = setting(
        ("fp32",),
        "fp32 (model.onnx), fp16 (model_fp16.onnx), q8 (model_quantized.onnx, 8-bit weights): the names that "
        "transformers.js looks for.",
        group="output",
    )
    output_file: str | None = setting(
        None, "File to write for a single type; default: onnx/ in the folder, with report.json.", group="output"
    )
    overwrite_output_file: bool = setting(False, "Replace files that exist.", group="output")

    def validate(self) -> None:
        """Checks that types are known and named once, and that one file has one type."""
        super().validate()
        known = ", ".join(ONNX_FILES)
        require(len(self.dtypes) > 0, f"--dtypes is empty; name at least one of: {known}")
        for dtype in self.dtypes:
            require(dtype in ONNX_FILES, f"--dtypes has {dtype!r}; it must be among: {known}")
        require(len(set(self.dtypes)) == len(self.dtypes), f"--dtypes is {' '.join(self.dtypes)}; name each once")
        require(
            self.output_file is None or len(self.dtypes) == 1,
            f"--output_file is one file and --dtypes {' '.join(self.dtypes)} are several; leave --output_file out",
        )


@dataclass(frozen=True)
class ConversionConfig(Config):
    """Converts checkpoints of the original TensorFlow implementation, and back (recipes/convert_checkpoint.py)."""

    checkpoint: str = setting(
        "",
        "Folder or archive (.zip, .tar, .tar.gz, .tar.bz2) with bert_model.ckpt.index, its data, bert_config.json and "
        "vocab.txt; or the prefix of one of several; or a folder with a pytorch_model.bin.",
        group="data",
        required="name the folder or archive of an original checkpoint",
    )
    to_tensorflow: bool = setting(
        False, "The other way: --checkpoint is a published folder or a Hub id, and TensorFlow's files are written.",
        group="output",
    )  # fmt: skip
    output_dir: str = setting(
        "", "Folder to write.", source="transformers", group="output", required="name the folder to write"
    )
    overwrite_output_dir: bool = setting(
        False, "Replace what the output folder holds.", source="transformers", group="output"
    )
    gelu: str | None = setting(
        None,
        "Which gelu the checkpoint was trained with; bert_config.json does not say. erf: the first releases, of 2018; "
        "tanh: the code since February 2019.",
        choices=("erf", "tanh"),
        group="model",
    )
    do_lower_case: bool | None = setting(
        None,
        "Whether the model is uncased; default: what its name, tokenizer_config.json and vocabulary agree on.",
        source="original implementation",
        group="text",
    )
    head: str = setting(
        "auto",
        "Which head to convert; default: the one its tensors belong to. A tagger's look like a classifier's.",
        choices=(
            "auto", "encoder", "pretraining", "masked_lm", "next_sentence", "classification", "tagging",
            "multiple_choice", "question_answering",
        ),
        group="model",
    )  # fmt: skip
    label_names: tuple[str, ...] = setting(
        (), "Names of a classifier's or tagger's labels in the order of its outputs; default: LABEL_0, LABEL_1 ...",
        group="model",
    )  # fmt: skip
    max_unpacked_bytes: int = setting(
        20_000_000_000, "Most bytes that an archive may unpack to.", unit="bytes", group="data", above=0
    )

    def validate(self) -> None:
        """Refuses settings for reading TensorFlow's files where they are written."""
        super().validate()
        for name in ("gelu", "do_lower_case"):
            require(
                not self.to_tensorflow or getattr(self, name) is None,
                f"--{name} is for reading TensorFlow's files; with --to_tensorflow the published folder says it",
            )
        require(
            not self.to_tensorflow or (self.head == "auto" and not self.label_names),
            "--head and --label_names are for reading TensorFlow's files; leave them out with --to_tensorflow",
        )
