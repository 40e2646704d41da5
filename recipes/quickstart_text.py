"""The text of the quickstart, docstrings of installed packages, and its task: to name the package of a docstring.

Source files are parsed, never imported. One module is one document. Of a docstring its prose is kept: paragraphs at the
left margin that end as sentences do, which drops parameter tables, headings, signatures and examples.

    python recipes/quickstart_text.py docstrings.txt

writes the text to a file, with an empty line between two documents, as `prepare_corpus` reads it.
"""

import ast
import importlib.util
import re
import sys
import sysconfig
import warnings
from pathlib import Path

import numpy as np

from bert_repro.utils.randomness import draw

LABELS = ("matplotlib", "networkx", "pandas", "scipy", "sklearn", "sympy", "torch", "transformers")
PACKAGES = (
    "python", "accelerate", "datasets", "fontTools", "fsspec", "huggingface_hub", "jinja2", "joblib", "matplotlib",
    "mpmath", "networkx", "numpy", "pandas", "scipy", "sklearn", "sympy", "torch", "transformers",
)  # fmt: skip
WORDS_PER_PACKAGE = 60_000
SKIPPED = frozenset(  # tests, code of others and parsers' tables hardly have a sentence of their own
    "__pycache__ _vendor externals idlelib lib2to3 site-packages dist-packages test testing tests turtledemo".split()
)
MARKUP = (  # pattern -> what stays of it
    (r"`([^`<]+?)\s*<[^`>]*>`_{0,2}", r"\1"),
    (r":[a-z]+(?::[a-z]+)*:`~?!?([^`]*)`", r"\1"),
    (r"\[([^\[\]]*)\]\([^()]*\)", r"\1"),
    (r"https?://\S*[\w/]", ""),
    (r"\s*\[\w+\]_", ""),
    (r"`+[~.!]*|\*\*|(?<!\w)\*(?=\w)|(?<=\w)\*(?!\w)|(?<=\w)_(?=[\s.,;:)])", ""),
)
NOT_PROSE = re.compile(r">>>|\.\. |[\\{}|=<>@#]|\w\(\w*\)\s*->|:\w+ \w+:|\d\. |Copyright|__\w+__ =")
WORD = re.compile(r"[A-Za-z]+(?:['-][A-Za-z]+)*[.,;:!?)\"']*|[\"'(][A-Za-z]+(?:['-][A-Za-z]+)*[.,;:!?)\"']*")
PACKAGE_NAME = re.compile(  # with all of `torch.nn.Module`, or a usual alias
    r"\S*(?:matplotlib|pyplot|networkx|pandas|scipy|sklearn|scikit|sympy|torch|transformers|hugging\s?face|numpy)\S*"
    r"|(?<!\w)(?:np|nx|pd|plt|mpl|sk|sp|spla|hf)(?:\.\S*|(?!\w))",
    re.IGNORECASE,
)
Module = tuple[str, str, list[str]]  # package, file, the prose of its docstrings


def gather_docstrings() -> list[Module]:
    """Reads the prose of every package's docstrings, up to a number of words; a repeated paragraph is kept once."""
    seen: set[str] = set()
    modules = []
    for package in PACKAGES:
        folder, of_package, words = folder_of(package), [], 0
        files = [path for path in sorted(folder.rglob("*.py")) if not SKIPPED & {*path.relative_to(folder).parts[:-1]}]
        for path in drawn(files, 0x51554943):
            texts = []
            for docstring in docstrings_of(path):
                fresh = []
                for line in prose_of(docstring):
                    if line.lower() not in seen:
                        seen.add(line.lower())
                        fresh.append(line)
                texts += ["\n".join(fresh)] if fresh else []
            if texts:
                of_package.append((package, path.relative_to(folder).as_posix(), texts))
                words += sum(len(text.split()) for text in texts)
            if words >= WORDS_PER_PACKAGE:
                break
        modules += sorted(of_package, key=lambda module: module[1])
    return modules


def folder_of(package: str) -> Path:
    """Returns the folder of an installed package without importing it."""
    spec = None if package == "python" else importlib.util.find_spec(package)
    return Path(spec.submodule_search_locations[0] if spec else sysconfig.get_paths()["stdlib"])  # type: ignore[index]


def docstrings_of(path: Path) -> list[str]:
    """Returns the docstrings of a source file; none where it is not valid Python, as templates are."""
    warnings.simplefilter("ignore", SyntaxWarning)  # of escapes in other people's strings
    try:
        nodes: list[ast.AST] = [ast.parse(path.read_bytes())]
    except (SyntaxError, ValueError):
        return []
    found = []
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(ast.get_docstring(node) or "")
        nodes.extend(child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt))
    return found


def prose_of(docstring: str) -> list[str]:
    """Returns the paragraphs at the left margin that read as sentences, without markup, each on one line."""
    docstring = re.sub(r"^.+\n[-=~^\"+*]{3,}[ \t]*$", "\n\n", docstring, flags=re.MULTILINE)  # headings
    found = []
    for block in re.split(r"\n[ \t]*\n", docstring):
        lines = block.strip("\n").splitlines()
        if any(line[:1].isspace() for line in lines):
            continue
        text = " ".join(" ".join(lines).split())
        for pattern, kept in MARKUP:
            text = re.sub(pattern, kept, text)
        text = text.strip()
        words = text.split()
        is_sentence = re.match(r"[\"'(]?[A-Z]", text) and re.search(r"[.!?][\"')]?$", text)
        plain = sum(WORD.fullmatch(word) is not None for word in words)
        if is_sentence and not NOT_PROSE.search(text) and len(words) >= 4 and plain >= 0.7 * len(words):
            found.append(text)
    return found


def choose_texts(modules: list[Module], per_label: int) -> tuple[list[dict[str, str]], set[int]]:
    """Chooses texts of each label from as many modules as possible; returns them and the modules' numbers."""
    rows, used = [], set()
    for number, label in enumerate(LABELS):
        texts: list[str] = []
        for place in drawn([place for place, module in enumerate(modules) if module[0] == label], 0x43484F4F, number):
            if len(texts) >= per_label:
                break
            usable = [" ".join(PACKAGE_NAME.sub(" ", text).split()) for text in modules[place][2]]
            texts += drawn([text for text in usable if len(text.split()) >= 20], 0x43484F4F, number)[:8]
            used.add(place)
        rows += [{"text": text, "label": label} for text in texts[:per_label]]
    return rows, used


def drawn(items: list, *names: int) -> list:  # type: ignore[type-arg]
    """Returns items in a random order that is the same everywhere."""
    order = np.argsort(draw(*names, np.arange(len(items))), kind="stable")
    return [items[place] for place in order]


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    documents = ["\n".join(texts) for _, _, texts in gather_docstrings()]
    target.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    print(f"Wrote {target}: {len(documents)} documents.")
