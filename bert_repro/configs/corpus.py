"""Raw text, vocabularies and prepared corpora."""

from dataclasses import dataclass

from bert_repro.configs.base import Config, require, setting
from bert_repro.utils.readers import shown


@dataclass(frozen=True)
class TextConfig(Config):
    """Where raw text comes from and which of it counts as text."""

    input_files: tuple[str, ...] = setting(
        (),
        "Files (.txt with a blank line between documents, .jsonl, .parquet; text also .gz or .xz), folders, globs, or "
        "one Hub dataset id.",
        group="data",
        required="name at least one file, folder or Hub dataset id",
    )
    text_column: str = setting(
        "text", "Field of a JSON line or column of a Parquet file that holds the text.", group="data"
    )
    title_column: str = setting("title", "Field that holds the title, dropped where the text repeats it.", group="data")
    hub_config: str | None = setting(None, "Configuration of a Hub dataset, for example 20231101.en.", group="data")
    hub_split: str = setting("train", "Split of a Hub dataset.", group="data")
    max_documents: int | None = setting(
        None, "Stop after this many documents.", unit="documents", group="data", above=0
    )
    max_document_bytes: int = setting(
        100_000_000,
        "Longest line or document; a longer one is refused, compressed or not.",
        unit="bytes",
        group="data",
        above=0,
    )
    text_passages_only: bool = setting(
        True,
        "Drop headings, lists, tables and debris.",
        source="paper",
        deviation="The paper extracts only the text passages of Wikipedia and ignores lists, tables and headers "
        "(3.1); it does not publish the rules. Ours are in bert_repro/corpus/cleaning.py, and what each drops is "
        "counted.",
        group="text",
    )


@dataclass(frozen=True)
class TokenizerConfig(TextConfig):
    """Trains a WordPiece vocabulary (recipes/train_tokenizer.py).

        import bert_repro

        config = bert_repro.TokenizerConfig(input_files=("texts.txt",), vocab_size=8000, output_dir="runs/tokenizer")
        print(config.lowercase)

    All settings with their units: docs/CONFIGURATION.md.
    """

    output_dir: str = setting("runs/tokenizer", "Folder to write the tokenizer to.", group="output")
    overwrite_output_dir: bool = setting(
        False, "Replace what the output folder holds.", source="transformers", group="output"
    )
    vocab_size: int = setting(
        30522,
        "Size of the vocabulary, special tokens included.",
        source="original implementation",
        unit="tokens",
        deviation="The paper says 30,000; the published vocabularies have 30,522 (uncased) and 28,996 (cased).",
        group="model",
        at_least=10,
        at_most=1_000_000,
    )
    lowercase: bool = setting(
        True, "Lower-case the text (the uncased models).", source="original implementation", group="text"
    )
    strip_accents: bool | None = setting(
        None, "Strip accents; default: as `lowercase`.", source="original implementation", group="text"
    )
    handle_chinese_chars: bool = setting(
        True, "Put spaces around CJK characters.", source="original implementation", group="text"
    )
    min_frequency: int = setting(
        2, "Drop pieces seen less often than this.", unit="occurrences", group="text", at_least=0, at_most=1_000_000_000
    )
    limit_alphabet: int = setting(
        1000,
        "Most frequent characters that get entries; raise it for scripts with many.",
        unit="characters",
        group="text",
        at_least=1,
        at_most=1_114_112,
    )
    max_input_chars_per_word: int = setting(
        100,
        "A longer word becomes [UNK].",
        source="transformers",
        unit="characters",
        deviation="100 in the first version and in transformers (ours, so tokens equal upstream's); 200 in the "
        "original implementation since 2018-11-23.",
        group="text",
        above=0,
        at_most=1_000_000,
    )
    max_words: int | None = setting(
        None, "Learn from at most this many words, the first of the input.", unit="words", group="data", above=0
    )


@dataclass(frozen=True)
class CorpusConfig(TextConfig):
    """Turns raw text into a memory-mapped folder of token ids (recipes/prepare_corpus.py).

        import bert_repro

        config = bert_repro.CorpusConfig(input_files=("texts.txt",), tokenizer="runs/tokenizer", output_dir="corpus")
        print(config.num_proc)  # every setting has a default that the recipe has too

    All settings with their units: docs/CONFIGURATION.md.
    """

    tokenizer: str = setting(
        "",
        "Tokenizer folder, vocab.txt or Hub id.",
        group="model",
        checkpoint=True,
        required="name a tokenizer folder, a vocab.txt or a Hub id",
    )
    output_dir: str = setting("runs/corpus", "Folder to write the prepared corpus to.", group="output")
    overwrite_output_dir: bool = setting(
        False, "Replace what the output folder holds.", source="transformers", group="output"
    )
    num_proc: int = setting(
        1, "Processes that split and tokenize; the result does not depend on it.", group="speed", above=0, at_most=1024
    )
    sentence_splitter: str = setting(
        "nupunkt",
        "nupunkt finds sentence boundaries; lines takes each line as one sentence (the input format of the original "
        "implementation).",
        choices=("nupunkt", "lines"),
        deviation="The paper does not name its sentence splitter and the original implementation leaves it to the "
        "user. Ours is nupunkt; its version is in the manifest.",
        group="text",
    )
    max_input_chars_per_word: int | None = setting(
        None,
        "A longer word becomes [UNK]; default: as the tokenizer was saved.",
        unit="characters",
        group="text",
        above=0,
        at_most=1_000_000,
    )

    shard: str | None = setting(
        None,
        "Prepare one part of the work, for example 3/16 (from 1/16 to 16/16): the same command on every machine, with "
        "the same output_dir on a disk they share. Afterwards the same command with --join makes the corpus.",
        group="speed",
    )
    join: bool = setting(
        False,
        "Join shards that are all prepared into the corpus; it equals one made by a single machine.",
        group="speed",
    )

    def validate(self) -> None:
        """Checks that a shard is written as number/count and excludes the join."""
        super().validate()
        if self.shard is not None:
            number, _, count = self.shard.partition("/")
            is_shard = number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)
            require(is_shard, f"--shard is {shown(self.shard)}; write number/count, from 1/16 to 16/16 for example")
            require(
                not self.join, f"--shard {self.shard} and --join are two steps: first all the shards, then the join"
            )
            require(
                not self.overwrite_output_dir,
                "--overwrite_output_dir with --shard could remove the work of other shards; give it to --join",
            )
