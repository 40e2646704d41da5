"""Writes docs/CONFIGURATION.md, docs/DEVIATIONS.md and docs/results.schema.json from settings and types of results.

`python -m bert_repro.reference --write` (or `make docs`) writes them, `--check` says whether they are current.
"""

import argparse
import dataclasses
import inspect
import json
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_repro import configs, results
from bert_repro.api_reference import api_reference
from bert_repro.configs import Config, Phase, Range
from bert_repro.presets import PAPER_PHASES, PRESETS, tokens_including_padding
from bert_repro.recipes import RECIPES, help_text
from bert_repro.reproduction.paper_results import TABLES

ROOT = Path(__file__).resolve().parents[1]

_SOURCES = {
    "paper": "the paper",
    "original implementation": "the original implementation",
    "transformers": "transformers",
    "ours": "this project",
}

_IN_SHORT = (
    "In short, the main departures from what the paper states: the corpus (BooksCorpus is no longer distributed), Adam "
    "without bias correction, and SQuAD's mean of two losses and search among the 20 best starts and ends; the last "
    "three are as in the original implementation. The fraction of NotNext is the paper's, against the original "
    "implementation. For pre-training examples as in the original implementation, give `--nsp_sampling original "
    "--dupe_factor 10`; for its GELU since 2019-02, `--hidden_act gelu_new`."
)

_KINDS = {"str": "text", "int": "integer", "float": "number", "bool": "true or false"}

CHOICES_WITHOUT_A_SETTING: Mapping[str, tuple[tuple[str, str], ...]] = {
    "Model": (
        (
            "sequence heads",
            "The paper classifies from the final hidden vector C of [CLS] (4.1), and predicts the next sentence from C "
            "too (3.1); the original implementation, and ours, take the pooler's output for it (a dense "
            "layer and tanh): with dropout before a classifier, without any before next sentence prediction. SWAG's "
            "vector, whose product with C scores a choice (4.4), also reads the pooler's output in ours; that code "
            "was not published.",
        ),
        (
            "prediction head",
            "The paper feeds the hidden vectors of masked tokens to an output softmax over the vocabulary (3.1). The "
            "original implementation, and ours, put a dense layer, the activation and a LayerNorm before it, decode "
            "with the word embeddings, and add a bias for every token; no dropout.",
        ),
        (
            "gradient of [PAD]",
            "The embedding of [PAD] gets no gradient from the input in transformers and ours; in the original "
            "implementation it does where [PAD] is drawn as the random replacement of a token (one draw in 30,522), "
            "and through the padding that SQuAD's softmax includes. As an output it is trained in both.",
        ),
        (
            "`pool_token` of the model configuration",
            "Under causal attention the first position sees only itself, so a left-to-right classifier (Table "
            "5) cannot read [CLS]. The paper does not say what it reads. Ours reads the last token that is not "
            "padding.",
        ),
        (
            "initialization and epsilon",
            "Normal, standard deviation 0.02, truncated at two deviations, and a LayerNorm epsilon of 1e-12: "
            "original implementation; the paper is silent.",
        ),
    ),
    "Tokenizer": (
        (
            "rare characters",
            "The original implementation, and transformers' slow tokenizer, use Python's Unicode tables; ours are "
            "those of the tokenizers library, as in transformers' fast tokenizer, to which it is equal. They are "
            "older, and their range of CJK ideographs leaves out U+2B820 to U+2B91F: of 143,641 characters 759 give "
            "other tokens with the uncased vocabulary and 375 with the cased one, none below U+061D. The slow "
            "tokenizer also lowers a final capital sigma by its context, and composes accents where they are kept.",
        ),
        (
            "private-use characters",
            "The original implementation removes control and format characters (Cc, Cf) and, since 2019-03, keeps "
            "private-use ones (Co), which make their word [UNK]. Ours, as transformers' fast tokenizer, removes them: "
            "all 137,468 give other tokens, beyond the 759 above.",
        ),
    ),
    "Examples": (
        (
            "NotNext from another document",
            "The original implementation redraws up to ten times and then keeps a segment of the same document, still "
            "called NotNext. So does ours under `nsp_sampling=original`; under `paper` it is never of the same "
            "document. With NSP a corpus of one document is an error.",
        ),
        (
            "where A ends, and what is cut",
            "The paper says that A and B are spans of text of at most 512 tokens together (A.2) and no more. As the "
            "original implementation: sentences are added until the target length or the document's end, A is the "
            "first k of the n, k uniform from 1 to n - 1, and B the rest or, for NotNext, text of another document "
            "from a uniform sentence on; then the unused sentences are put back. Where both are too long, the longer "
            "one (B, if equal) loses one token at a time, at its front or its end with equal probability.",
        ),
        (
            "chunks of one sentence with `nsp_sampling=paper`",
            "So that the label can be drawn first: such a chunk takes the document's next sentence too, a "
            "document of one sentence is split at a uniform token, a document of one token makes no example. "
            "The paper calls a sentence any contiguous span; it gives no rule.",
        ),
        (
            "order and sharding",
            "The original implementation shuffles within the files it is given. Ours draws pairs and order over the "
            "corpus from (seed, phase, epoch), so preparation shards and loader processes change nothing.",
        ),
        (
            "how many tokens are predicted",
            "The paper says 15%. The original implementation, and ours, take an exact count without replacement: 0.15 "
            "x tokens with the special ones included, rounded half to even, at least 1, at most "
            "`max_predictions_per_seq`.",
        ),
        (
            "`max_predictions_per_seq`",
            "Not in the paper. 20 at 128 tokens is the default of the original implementation, which advises about "
            "`max_seq_length` x `masked_lm_prob` otherwise: 77 at 512 is ours by that rule. Neither ever cuts 15%.",
        ),
    ),
    "Pre-training": (
        (
            "corpus",
            "BooksCorpus (800 million words) and English Wikipedia (2,500 million) in the paper. BooksCorpus is no "
            "longer distributed. In the runs reported here 169 novels of the 19th and early 20th century (21 million "
            "words) stand in for it, beside an extract of English Wikipedia of 2015 (62 million); each card names its "
            "corpus.",
        ),
        (
            "mean of the losses",
            "The original implementation takes the mean over each core's predicted tokens, then the mean of those "
            "means. Ours is the mean over all predicted tokens, and over all sequences, of the global batch, so it "
            "does not depend on the devices.",
        ),
        (
            "tokens including padding",
            f"The paper's 128,000 tokens a batch and 40 epochs (A.2) count 512 tokens throughout: "
            f"{tokens_including_padding(PAPER_PHASES, max_seq_length=512) / 1e9:.1f} billion. Its two phases have "
            f"{tokens_including_padding(PAPER_PHASES) / 1e9:.1f} billion. Ours reports the latter.",
        ),
        (
            "one schedule over both phases",
            "Learning rate and optimizer state continue when the length changes: our reading of A.2. While "
            "sequences are short, weight decay alone changes the embeddings of later positions, as in the "
            "original implementation.",
        ),
        (
            "steps under fp16",
            "Not in the paper. A step that the loss scaler skips does not advance the learning rate.",
        ),
    ),
    "Fine-tuning": (
        (
            "optimizer",
            "A.3 names batch size, learning rate and epochs only. As the original implementation: the optimizer of "
            "pre-training with a fresh state, decay 0.01, clipping at 1.0, linear decay to zero.",
        ),
        (
            "batches",
            "The paper is silent. The original implementation repeats the examples endlessly, shuffles that with a "
            "buffer of 100 (SQuAD's examples are permuted once before), and cuts full batches: an example moves by a "
            "median of 63 places, and of an epoch's examples 35 to 40 come twice and as many not at all. Ours permutes "
            "every epoch completely, lays the epochs end to end and cuts full batches: a batch may span two epochs, as "
            "there, and the last partial batch is dropped.",
        ),
        (
            "metrics",
            "Table 1 gives F1 for MRPC and QQP, Tables 5 and 6 accuracy for MRPC. Both are always reported; the best "
            "of several runs is chosen by Table 1's. A constant prediction has no correlation: reported as 0.",
        ),
        (
            "QQP rows with missing fields",
            "A few rows of the official files lack a question. The paper is silent; ours drops and counts them.",
        ),
        (
            "CoNLL-2003 tags",
            "As the paper: the first sub-token of a word is classified, without a CRF. How documents become "
            "inputs is the setting `ner_context`.",
        ),
    ),
}
"""Choices that no setting changes, by part: what it is about, and how the sources and ours read it."""


def config_classes() -> list[type[Config]]:
    """Returns the configuration classes in the order in which `bert_repro.configs.__all__` names them."""
    named = (getattr(configs, name) for name in configs.__all__)
    found = [item for item in named if inspect.isclass(item) and issubclass(item, Config)]
    return [item for item in found if item is not Config]


def own_settings(config_class: type[Config]) -> Iterator["dataclasses.Field[Any]"]:
    """Yields the settings that a class adds or redefines, in order."""
    own = inspect.get_annotations(config_class)
    return (item for item in dataclasses.fields(config_class) if item.name in own)


def configuration_reference() -> str:
    """Returns the text of docs/CONFIGURATION.md."""
    classes = config_classes()
    parts = [
        "# Configuration reference",
        _generated("bert_repro/configs/` and `bert_repro/presets.py"),
        "The `--help` of a recipe lists its settings; this page has all. Every setting is a flag "
        "(`--learning_rate 1e-4`; true or false may be left out or given: `--do_train`, `--packing false`) and a key "
        "of a YAML file (`--config FILE.yaml`). Flags override the file, the file overrides `--preset NAME`, the "
        "preset overrides the defaults below. Unknown flags and keys are refused. *Decided by* says where the default "
        "comes from: the paper, the original implementation (google-research/bert), transformers, or this project; "
        "where they differ, see [DEVIATIONS.md](DEVIATIONS.md). The settings of the architecture are in "
        "`bert_repro/models/configuration_bert_repro.py`.",
        "\n".join(f"- [{item.__name__}](#{item.__name__.lower()}): {_first_line(item)}" for item in classes),
        *(_class_section(item) for item in classes),
        f"## {Phase.__name__}\n\n{_phase_section()}",
        "## Presets\n\n" + _preset_table(),
    ]
    return "\n\n".join(parts) + "\n"


def deviations() -> str:
    """Returns the text of docs/DEVIATIONS.md."""
    rows = [
        (f"`{item.name}`", item_class.__name__, _value(item.default), _SOURCES[item.metadata["source"]], text)
        for item_class in config_classes()
        for item in own_settings(item_class)
        if (text := item.metadata["deviation"])
    ]
    without = [
        f"### {part}\n\n" + "\n".join(f"- **{what}**: {text}" for what, text in choices)
        for part, choices in CHOICES_WITHOUT_A_SETTING.items()
    ]
    parts = [
        "# Where the paper and the original implementation differ or are silent",
        _generated("bert_repro/configs/` and `bert_repro/reference.py"),
        "Two sources define BERT: the paper (arXiv:1810.04805v2) and its authors' original implementation "
        "(google-research/bert), which by its own account is not the very code of the paper. The rule here: where the "
        "original implementation is one possible reading of the paper's words, the original implementation; where it "
        "contradicts a fact that the paper states, the paper; where both are silent, our choice, called so.",
        _IN_SHORT,
        "## Choices that are settings",
        _table(("Setting", "Class", "Default", "Default follows", "The readings"), rows),
        "## Choices without a setting",
        *without,
        "## Numbers of the paper that ours cannot be subtracted from",
        "\n".join(_incomparable()),
    ]
    return "\n\n".join(parts) + "\n"


def documents() -> dict[Path, str]:
    """Returns the generated files and what they must hold."""
    docs, schema = ROOT / "docs", json.dumps(results.json_schema(), indent=2) + "\n"
    return {
        docs / "CONFIGURATION.md": configuration_reference(),
        docs / "DEVIATIONS.md": deviations(),
        docs / results.SCHEMA_FILE: schema,
        docs / "reference" / "api.md": api_reference(),
        **{ROOT / "recipes" / f"{name}.py": recipe_script(name) for name in RECIPES},
    }


def recipe_script(name: str) -> str:
    """Returns the text of recipes/NAME.py: what `uv run` installs for it (PEP 723), its help text and one call."""
    package = "bert-repro[onnx]" if name == "export_onnx" else "bert-repro"
    return (
        f'# /// script\n# requires-python = ">=3.11"\n# dependencies = ["{package}"]\n# ///\n'
        f'r"""{help_text(name, None)}"""\n\n'
        f'from bert_repro.cli import main\n\nif __name__ == "__main__":\n    main("{name}")\n'
    )


def stale() -> list[Path]:
    """Returns the generated files that are missing or not current."""
    return [path for path, text in documents().items() if not path.exists() or path.read_text("utf-8") != text]


def _generated(sources: str) -> str:
    return f"*Generated from `{sources}`; change those and run `make docs`.*"


def _first_line(item: type) -> str:
    return (inspect.getdoc(item) or "").splitlines()[0]


def _class_section(config_class: type[Config]) -> str:
    hints = typing.get_type_hints(config_class)
    parents = [base for base in config_class.__mro__[1:] if issubclass(base, Config) and base is not Config]
    inherited = ", ".join(f"[{base.__name__}](#{base.__name__.lower()})" for base in parents)
    rows = [
        (
            f"`--{item.name}`" if not _is_nested(hints[item.name]) else f"`{item.name}` (preset or YAML only)",
            _type(hints[item.name], item.metadata["choices"], item.metadata["range"]),
            _value(item.default),
            item.metadata["unit"] or "",
            _SOURCES[item.metadata["source"]],
            item.metadata["help"],
        )
        for item in own_settings(config_class)
    ]
    parts = [f"## {config_class.__name__}", _first_line(config_class)]
    if inherited:
        parts.append(f"Takes the settings of {inherited} too" + ("; its own, which win:" if rows else "."))
    if rows:
        parts.append(_table(("Setting", "Type", "Default", "Unit", "Decided by", "Meaning"), rows))
    return "\n\n".join(parts)


def _phase_section() -> str:
    text = inspect.getdoc(Phase) or ""
    summary, _, arguments = text.partition("Args:")
    fields = [line.strip().partition(": ") for line in arguments.strip().splitlines()]
    return summary.strip() + "\n\n" + "\n".join(f"- `{name}`: {meaning}" for name, _, meaning in fields)


def _preset_table() -> str:
    rows = [
        (
            f"`{name}`",
            preset.config.__name__,
            preset.source,
            preset.description,
            "<br>".join(f"`{key}`: {_value(value)}" for key, value in preset.values.items()),
        )
        for name, preset in PRESETS.items()
    ]
    return _table(("`--preset`", "For", "Source", "What", "Values"), rows)


def _incomparable() -> Iterator[str]:
    for number, table in TABLES.items():
        for column in table.columns:
            if column.incomparable:
                yield f"- Table {number}, {column.name}: {column.incomparable}."


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)


def _is_nested(hint: Any) -> bool:
    return any(dataclasses.is_dataclass(arm) for arm in typing.get_args(hint))


def _type(hint: Any, choices: tuple[str, ...] | None, allowed: Range) -> str:
    if choices:
        return " or ".join(f"`{choice}`" for choice in choices)
    if isinstance(hint, types.UnionType):
        hint = next(arm for arm in typing.get_args(hint) if arm is not type(None))
    several = typing.get_origin(hint) is tuple
    kind = (typing.get_args(hint)[0] if several else hint).__name__
    if kind not in _KINDS:
        return f"list of {kind}"
    name = f"one or more {_KINDS[kind]}s" if several else _KINDS[kind]
    return f"{name}; must {allowed}" if str(allowed) else name


def _value(value: Any) -> str:
    if value is None or value == () or value == "":
        return "none"
    if isinstance(value, bool | float):
        return str(value).lower() if isinstance(value, bool) else f"{value:g}"
    if isinstance(value, tuple):
        return ", ".join(_value(element) for element in value)
    if isinstance(value, Phase):
        return f"{value.steps:,} steps of {value.batch} x {value.max_seq_length}"
    return f"`{value}`" if isinstance(value, str) else str(value)


def main(argv: list[str] | None = None) -> int:
    """Writes or checks the documents; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bert_repro.reference", description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help="write the documents")
    action.add_argument("--check", action="store_true", help="exit with 1 and name those that are not current")
    write = parser.parse_args(argv).write
    if not (ROOT / "recipes").is_dir():
        sys.stderr.write(f"{ROOT} is not a checkout of the sources; run this in one\n")
        return 2
    if write:
        for path, text in documents().items():
            path.write_text(text, encoding="utf-8")
        return 0
    for path in (out_of_date := stale()):
        sys.stderr.write(f"{path.relative_to(ROOT)} is not current; run: make docs\n")
    return 1 if out_of_date else 0


if __name__ == "__main__":
    sys.exit(main())
