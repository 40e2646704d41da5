"""Raw text, vocabularies and prepared corpora."""

from dataclasses import dataclass
from typing import Literal

from bert_repro.configs.base import Config, encoding_setting, require_positive, setting
from bert_repro.errors import UserError, flag
from bert_repro.utils.text_encodings import has_plain_line_feeds, require_encoding

FEWEST_DOCUMENTS = 4
"""Two to train on and two held out, because segment B of a pair comes from another document."""


@dataclass(frozen=True)
class TextSource:
    """One of several sources of text, with settings of its own.

    Args:
        input: a file, folder, glob, or dataset of the Hub.
        passes: how often each document comes: 2 is twice, 0.5 every second document.
        language: code of its language, such as `en` or `de`; decides how sentences are found.
        text_column: field or column that holds the text.
        title_column: field or column that holds the title; it may be missing.
        hub_config: configuration of a dataset of the Hub.
        hub_split: split of a dataset of the Hub.
        encoding: encoding of files of text.
    """

    input: str
    passes: float = 1.0
    language: str = "en"
    text_column: str = "text"
    title_column: str = "title"
    hub_config: str | None = None
    hub_split: str = "train"
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        if not self.passes > 0:
            raise UserError(f"sources: passes is {self.passes} for {self.input}; it must be positive.")
        require_encoding(self.encoding)
        # Documents are found by their byte, so a file is cut into lines before it is decoded.
        if not has_plain_line_feeds(self.encoding):
            raise UserError(
                f"{flag('encoding', self.encoding)}: a corpus cannot be read in this encoding. Convert the file, for "
                f"example with `iconv -f {self.encoding} -t utf-8`.",
                setting="encoding",
            )


@dataclass(frozen=True)
class TextConfig(Config):
    """Raw text: where it comes from and which of it counts as text."""

    input_files: tuple[str, ...] = setting(
        (),
        "Files (.txt with blank lines between documents, .jsonl, .parquet, .csv, .tsv, .xlsx; .gz, .xz), folders, "
        "globs, or a Hub dataset.",
    )
    sources: tuple[TextSource, ...] = setting(
        (), "In place of input_files, from a file: sources with columns, language and passes of their own."
    )
    language: str = setting("en", "Code of the language of input_files, for example de; it finds the sentences.")
    sampling_exponent: float = setting(
        1.0,
        "Languages with less text come more often: text of n characters weighs n to this power (multilingual BERT: "
        "0.7).",
    )
    deduplicate: Literal["none", "exact", "near"] = setting(
        "none",
        "Drop documents and paragraphs of eight words and more that came before (exact), and documents that share most "
        "of their 5-word sequences with an earlier one (near).",
    )
    text_column: str = setting("text", "Field of a JSON line or column of a table that contains the text.")
    encoding: str = encoding_setting()
    title_column: str = setting("title", "Field that holds the title, dropped where the text repeats it.")
    hub_config: str | None = setting(None, "Configuration of a Hub dataset, for example 20231101.en.")
    hub_split: str = setting("train", "Split of a Hub dataset.")
    max_documents: int | None = setting(None, "Stop after this many documents.")
    text_passages_only: bool = setting(True, "Drop headings, lists, tables and debris.")
    num_proc: int = setting(1, "Processes that read and process the text; the result does not depend on it.")
    engine: Literal["local", "ray"] = setting(
        "local", "Where parts of the input are processed: processes of this machine (local), or a Ray cluster (ray)."
    )
    ray_address: str | None = setting(
        None, "With engine ray: host:port of a running cluster; default: Ray on this machine."
    )

    @property
    def text_sources(self) -> tuple[TextSource, ...]:
        """The sources. Those of `input_files` all have the same settings, which are given by flags."""
        if self.sources:
            return self.sources
        columns = (self.text_column, self.title_column, self.hub_config, self.hub_split, self.encoding)
        return tuple(TextSource(name, 1.0, self.language, *columns) for name in self.input_files)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "max_documents", "sampling_exponent", "num_proc")
        if self.sampling_exponent > 1:
            raise UserError(
                f"{flag('sampling_exponent')} is {self.sampling_exponent}; it must be at most 1.",
                setting="sampling_exponent",
            )
        if self.sources and self.input_files:
            raise UserError(f"{flag('input_files')} and sources are both given. Leave one out.", setting="input_files")


@dataclass(frozen=True)
class TokenizerConfig(TextConfig):
    """Trains a WordPiece vocabulary on raw text.

      bert-repro train_tokenizer --input_files corpus/ --vocab_size 30522 --output_dir runs/tokenizer

    Makes a folder that AutoTokenizer loads; the same input gives the same vocabulary, ids included. The paper's own
    vocabularies need no training: name a vocab.txt or a Hub id such as google-bert/bert-base-uncased where a tokenizer
    is asked for.
    """

    REQUIRED = ("output_dir",)

    output_dir: str = setting("runs/tokenizer", "Folder to write the tokenizer to.")
    overwrite_output_dir: bool = setting(False, "Replace what the output folder holds.")
    vocab_size: int = setting(30522, "Size of the vocabulary, special tokens included.")
    lowercase: bool = setting(True, "Lower-case the text (the uncased models).")
    strip_accents: bool | None = setting(None, "Strip accents; default: as `lowercase`.")
    handle_chinese_chars: bool = setting(True, "Put spaces around CJK characters.")
    limit_alphabet: int = setting(1000, "Most frequent characters that get entries; raise it for scripts with many.")
    extend: str | None = setting(
        None, "In place of a new vocabulary: the tokenizer of this checkpoint, with words of the text at its end."
    )
    new_tokens: int = setting(1000, "With extend: how many words, those that save most pieces.")
    max_words: int | None = setting(None, "Learn from at most this many words, the first of the input.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "vocab_size", "limit_alphabet", "max_words", "new_tokens")


@dataclass(frozen=True)
class CorpusConfig(TextConfig):
    """Turns raw text into a corpus for pre-training: documents, sentences, token ids.

      bert-repro prepare_corpus --input_files corpus/ --tokenizer runs/tokenizer --num_proc 2 --output_dir runs/corpus

    Headings, lists, tables and debris are dropped and counted, as the paper keeps only the text passages of Wikipedia
    (3.1). manifest.json says what was kept. The same command, repeated, continues an interrupted preparation. 82
    million words took eight minutes in two processes on two cores.
    """

    REQUIRED = ("tokenizer", "output_dir")
    CHECKS_OUTPUT_DIR = True

    tokenizer: str = setting("", "Tokenizer folder, vocab.txt or Hub id.")
    output_dir: str = setting("runs/corpus", "Folder to write the prepared corpus to.")
    overwrite_output_dir: bool = setting(False, "Replace what the output folder holds.")
    sentence_splitter: Literal["auto", "nupunkt", "sentencex", "lines"] = setting(
        "auto",
        "How sentences are found: nupunkt for English and sentencex for other languages (auto), or each line is one "
        "(lines, as in the original implementation).",
    )
