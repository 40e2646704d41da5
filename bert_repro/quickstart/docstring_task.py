"""A real English corpus that every machine with this project has, the docstrings of installed packages, and its task.

The task: from which package does a docstring come?

Source files are parsed, never imported. One module is one document. What is kept of a docstring is its prose:
paragraphs at its left margin that end as sentences do. Parameter tables are indented, headings and signatures do not
end in a full stop, examples start with `>>>`, so this one rule drops them all.
"""

import ast
import gc
import importlib.util
import json
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from bert_repro.errors import UserError
from bert_repro.tasks.classification import ClassificationTask
from bert_repro.utils.files import write_text
from bert_repro.utils.randomness import draw

if TYPE_CHECKING:
    import datasets

STANDARD_LIBRARY = "python"
PACKAGES = (
    STANDARD_LIBRARY, "accelerate", "datasets", "fontTools", "fsspec", "huggingface_hub", "jinja2", "joblib",
    "matplotlib", "mpmath", "networkx", "numpy", "pandas", "scipy", "sklearn", "sympy", "torch", "transformers",
)  # fmt: skip
"""Import names of what this project depends on, so of what is installed wherever it runs."""

# Tests, code of others, and parsers' tables have docstrings, but hardly a sentence of their own.
_SKIPPED_FOLDERS = frozenset(
    "__pycache__ _vendor externals idlelib lib2to3 site-packages dist-packages test testing tests turtledemo".split()
)
_ORDER = 0x51554943  # names the draws that order a package's modules
_MIN_WORDS = 4

_SECTION = re.compile(r"^.+\n[-=~^\"+*]{3,}[ \t]*$", re.MULTILINE)
_LINK = re.compile(r"`([^`<]+?)\s*<[^`>]*>`_{0,2}")
_ROLE = re.compile(r":[a-z]+(?::[a-z]+)*:`~?!?([^`]*)`")
_QUOTES = re.compile(r"`+[~.!]*|\*\*|(?<!\w)\*(?=\w)|(?<=\w)\*(?!\w)|(?<=\w)_(?=[\s.,;:)])")
_FOOTNOTE = re.compile(r"\s*\[\w+\]_")
_MARKDOWN_LINK = re.compile(r"\[([^\[\]]*)\]\([^()]*\)")
_ADDRESS = re.compile(r"https?://\S*[\w/]")
_STARTS_PROSE = re.compile(r"[\"'(]?[A-Z]")
_ENDS_PROSE = re.compile(r"[.!?][\"')]?$")
_NOT_PROSE = re.compile(r">>>|\.\. |[\\{}|=<>@#]|\w\(\w*\)\s*->|:\w+ \w+:|\d\. |Copyright|__\w+__ =")
_WORD = re.compile(r"[A-Za-z]+(?:['-][A-Za-z]+)*[.,;:!?)\"']*|[\"'(][A-Za-z]+(?:['-][A-Za-z]+)*[.,;:!?)\"']*")
_MIN_WORD_SHARE = 0.7

LABELS = ("matplotlib", "networkx", "pandas", "scipy", "sklearn", "sympy", "torch", "transformers")
MIN_WORDS = 20
PER_MODULE = 8
Row = dict[str, Any]
Item = TypeVar("Item")
_CHOICE = 0x43484F4F  # names the draws that choose texts

# A word with a package's name anywhere in it goes, all of `torch.nn.Module`; so does a usual alias.
_NAMES = re.compile(
    r"\S*(?:matplotlib|pyplot|networkx|pandas|scipy|sklearn|scikit|sympy|torch|transformers|hugging\s?face|numpy)\S*"
    r"|(?<!\w)(?:np|nx|pd|plt|mpl|sk|sp|spla|hf)(?:\.\S*|(?!\w))",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Module:
    """The prose of one module's docstrings.

    Args:
        package: import name of its package.
        name: the file, below the package's folder.
        docstrings: one string per docstring, a paragraph per line.
    """

    package: str
    name: str
    docstrings: tuple[str, ...]

    @property
    def words(self) -> int:
        """Words between white space."""
        return sum(len(text.split()) for text in self.docstrings)


def gather(packages: Sequence[str] = PACKAGES, *, max_words: int) -> list[Module]:
    """Reads the docstrings of packages.

    Args:
        packages: import names; `python` is the standard library.
        max_words: stop within a package after so many words; its modules come in a drawn, fixed order, so what is
            kept is spread over the package.

    Returns:
        Modules with at least one sentence, in a fixed order. A paragraph that occurs twice is kept once.

    Raises:
        UserError: a package is not installed, or has no docstrings.
    """
    seen: set[str] = set()
    modules: list[Module] = []
    with _without_garbage_collection():
        for package in packages:
            folder = find_package(package)
            found = (read_module(package, folder, path) for path in _drawn_order(folder))
            kept = list(_up_to(max_words, _without_repeats(found, seen)))
            if not kept:
                raise UserError(f"package {package} in {folder} has no docstrings; install it with its source files")
            modules += sorted(kept, key=lambda module: module.name)
    return modules


def find_package(name: str) -> Path:
    """Returns the folder of an installed package, found without importing it.

    Raises:
        UserError: it is not installed.
    """
    if name == STANDARD_LIBRARY:
        return Path(sysconfig.get_paths()["stdlib"])
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"package {name} is not installed; `make quickstart` installs what it needs")
    return Path(next(iter(spec.submodule_search_locations)))


def read_module(package: str, folder: Path, path: Path) -> Module:
    """Returns the prose of a source file; a file that is not valid Python gives none."""
    name = path.relative_to(folder).as_posix()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # templates of source files, bad encodings on purpose
        return Module(package, name, ())
    texts = ("\n".join(paragraphs(docstring)) for docstring in _docstrings(tree))
    return Module(package, name, tuple(text for text in texts if text))


def paragraphs(docstring: str) -> list[str]:
    """Yields the prose paragraphs of a docstring, without markup, each on one line.

    Args:
        docstring: with its indentation removed, as `ast.get_docstring` gives it.
    """
    blocks = (block.strip("\n") for block in re.split(r"\n[ \t]*\n", _SECTION.sub("\n\n", docstring)))
    at_margin = (block for block in blocks if not any(line[:1].isspace() for line in block.splitlines()))
    plain = (_without_markup(" ".join(block.split())) for block in at_margin)
    return [text for text in plain if _is_prose(text)]


def _docstrings(tree: ast.Module) -> Iterator[str]:
    # Only statements can hold definitions; walking expressions too would take twice as long.
    nodes: list[ast.AST] = [tree]
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield docstring
        nodes.extend(child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt))


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    # Syntax trees are many objects and no cycles: without the collector's passes parsing takes a fifth of the time.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _without_markup(text: str) -> str:
    text = _MARKDOWN_LINK.sub(r"\1", _ROLE.sub(r"\1", _LINK.sub(r"\1", text)))
    return _QUOTES.sub("", _FOOTNOTE.sub("", _ADDRESS.sub("", text))).strip()


def _is_prose(text: str) -> bool:
    if not _STARTS_PROSE.match(text) or not _ENDS_PROSE.search(text) or _NOT_PROSE.search(text):
        return False
    words = text.split()
    plain = sum(_WORD.fullmatch(word) is not None for word in words)
    return len(words) >= _MIN_WORDS and plain >= _MIN_WORD_SHARE * len(words)


def _drawn_order(folder: Path) -> list[Path]:
    files = sorted(
        path for path in folder.rglob("*.py") if not _SKIPPED_FOLDERS.intersection(path.relative_to(folder).parts[:-1])
    )
    order = np.argsort(draw(_ORDER, np.arange(len(files))), kind="stable")
    return [files[place] for place in order]


def _without_repeats(modules: Iterable[Module], seen: set[str]) -> Iterator[Module]:
    for module in modules:
        docstrings = []
        for text in module.docstrings:
            fresh = []
            for line in text.splitlines():
                key = line.lower()
                if key not in seen:
                    seen.add(key)
                    fresh.append(line)
            if fresh:
                docstrings.append("\n".join(fresh))
        if docstrings:
            yield Module(module.package, module.name, tuple(docstrings))


def _up_to(max_words: int, modules: Iterable[Module]) -> Iterator[Module]:
    words = 0
    for module in modules:
        yield module
        words += module.words
        if words >= max_words:
            return


@dataclass(frozen=True, kw_only=True)
class PackageTask(ClassificationTask):
    """The task, on the JSON lines that `write_examples` wrote: `train.jsonl` and `validation.jsonl`."""

    name: str = "package"
    title: str = "Which package does a docstring come from?"
    text_columns: tuple[str, ...] = ("text",)
    label_names: tuple[str, ...] = LABELS
    metrics: tuple[str, ...] = ("accuracy",)
    primary_metric: str = "accuracy"
    predict_splits: tuple[str, ...] = ()
    paper_metrics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def load(self, data_dir: Path | None, splits: Sequence[str]) -> "dict[str, datasets.Dataset]":
        """See `Task.load`; there is no copy on the Hub."""
        import datasets

        if data_dir is None:
            raise UserError(f"--data_dir is missing; task {self.name} is read from files of the quickstart")
        return {split: datasets.Dataset.from_list(read_examples(Path(data_dir), split)) for split in splits}


def choose(modules: Sequence[Module], per_label: int) -> tuple[list[Row], set[Module]]:
    """Chooses as many texts of each label, from as many different modules as their order gives.

    Args:
        modules: where the texts come from.
        per_label: texts of each label.

    Returns:
        The rows, and the modules that a text was taken from.

    Raises:
        UserError: a package has too few.
    """
    by_package = {label: [module for module in modules if module.package == label] for label in LABELS}
    rows: list[Row] = []
    used: set[Module] = set()
    for number, label in enumerate(LABELS):
        texts: list[str] = []
        for module in _drawn(by_package[label], number):
            if len(texts) >= per_label:
                break
            usable = [text for text in map(without_names, module.docstrings) if len(text.split()) >= MIN_WORDS]
            texts += _drawn(usable, number)[:PER_MODULE]
            used.add(module)
        if len(texts) < per_label:
            raise UserError(f"package {label} has {len(texts)} texts, not {per_label}; install it with its sources")
        rows += [{"text": text, "label": number} for text in texts[:per_label]]
    return [{"idx": index, **row} for index, row in enumerate(rows)], used


def _drawn(items: Sequence[Item], *names: int) -> list[Item]:
    order = np.argsort(draw(_CHOICE, *names, np.arange(len(items))), kind="stable")
    return [items[place] for place in order]


def write_examples(folder: Path, split: str, rows: Sequence[Row]) -> None:
    """Writes `SPLIT.jsonl` to a folder, which is made if need be."""
    lines = (json.dumps(row) + "\n" for row in rows)
    write_text(folder / f"{split}.jsonl", "".join(lines))


def read_examples(folder: Path, split: str) -> list[Row]:
    """Returns the rows of a split: `idx`, `text`, `label`."""
    lines = (folder / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def without_names(text: str) -> str:
    """Returns a text on one line without words that name a package."""
    return " ".join(_NAMES.sub(" ", text).split())


def majority_accuracy(labels: Sequence[int]) -> float:
    """Computes the accuracy of always answering the most frequent label."""
    return float(np.bincount(np.asarray(labels)).max() / len(labels))


def bag_of_words_accuracy(train: Sequence[Row], validation: Sequence[Row]) -> float:
    """Computes the accuracy of logistic regression on TF-IDF weights of words and word pairs."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    weights = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2))
    model = make_pipeline(weights, LogisticRegression(C=10.0, max_iter=1000))
    model.fit([row["text"] for row in train], [row["label"] for row in train])
    return float(model.score([row["text"] for row in validation], [row["label"] for row in validation]))
