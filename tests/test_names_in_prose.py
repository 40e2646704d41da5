"""Names in backticks, in docstrings and comments, exist: a text that names what was renamed misleads its reader."""

import ast
import builtins
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted((ROOT / "bert_repro").rglob("*.py"))
NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(\(\))?")

# Names of other libraries and programs, and parts of file contents.
FOREIGN = {
    "AutoPeftModel", "B_PER", "BertConfig", "ClassLabel", "DatasetDict", "PeftModel", "Yes", "concurrent", "conlleval",
    "data_collator", "dropped_RULE", "exclude_from_weight_decay", "experiment_id", "futures", "generate",
    "lm_perplexity", "peft", "pipeline", "probability_LABEL", "probability_NAME", "probability_good", "process_id",
    "rename", "tabular", "Trainer.predict", "features.layers",
}  # fmt: skip
FILE_ENDINGS = {"json", "jsonl", "safetensors", "yaml", "tsv", "csv", "txt", "md", "png"}


@dataclass
class Module:
    """What one file says and defines.

    Args:
        prose: line number and text of every docstring and comment.
        words: every word of its code, the contents of strings included.
        top: names defined at its top level.
        members: class -> names of its attributes and methods.
    """

    prose: list[tuple[int, str]] = field(default_factory=list)
    words: set[str] = field(default_factory=set)
    top: set[str] = field(default_factory=set)
    members: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))


def read(path: Path) -> Module:
    module = Module()
    source = path.read_text("utf-8")
    tree = ast.parse(source)
    docstring_lines: set[int] = set()
    for node in ast.walk(tree):
        for statement in getattr(node, "body", []) if not isinstance(node, ast.Lambda | ast.IfExp) else []:
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                module.prose.append((statement.lineno, value.value))
                docstring_lines.update(range(statement.lineno, (statement.end_lineno or 0) + 1))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            module.prose.append((token.start[0], token.string))
        elif token.type == tokenize.NAME or token.start[0] not in docstring_lines:
            module.words.update(re.findall(r"\w+", token.string))
    module.top = set(defined_names(tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            members = module.members[node.name]
            members.update(defined_names(node.body))
            members.update(base.id for base in node.bases if isinstance(base, ast.Name))
            for inner in ast.walk(node):
                if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name) and inner.value.id == "self":
                    members.add(inner.attr)
    return module


def defined_names(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                yield from (name.id for name in ast.walk(target) if isinstance(name, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, ast.If | ast.Try):
            yield from defined_names(node.body)


def missing_part(
    name: str, words: set[str], modules: dict[str, list[Module]], members: dict[str, set[str]]
) -> str | None:
    """Returns the part of a dotted name that does not exist; None if all do."""
    parts = name.removesuffix("()").split(".")
    if parts[-1] == "py":
        return None if parts[0] in modules else name
    if parts[-1] in FILE_ENDINGS or name in FOREIGN:
        return None
    for part in parts:
        if len(part) > 2 and part not in words | FOREIGN and not hasattr(builtins, part):
            return part
    for owner, part in pairwise(parts):
        if owner in modules and not any(part in module.top or part in modules for module in modules[owner]):
            return part
        if owner in members and part not in members[owner] | FOREIGN:
            return part
    return None


def test_names_in_backticks_exist() -> None:
    parsed = {path: read(path) for path in MODULES}
    words: set[str] = {"bert_repro"}
    modules: dict[str, list[Module]] = defaultdict(list)
    members: dict[str, set[str]] = defaultdict(set)
    for path, module in parsed.items():
        words |= module.words | set(path.relative_to(ROOT).with_suffix("").parts)
        modules[path.stem if path.stem != "__init__" else path.parent.name].append(module)
        for name, attributes in module.members.items():
            members[name] |= attributes
    words |= {path.stem for folder in ("recipes", "benchmarks") for path in (ROOT / folder).rglob("*.py")}
    # A class has the attributes of its bases too. Three rounds are deeper than any chain of ours.
    for _ in range(3):
        for attributes in members.values():
            for base in list(attributes):
                attributes |= members.get(base, set())

    wrong = []
    for path, module in parsed.items():
        for line, text in module.prose:
            for name in re.findall(r"`([^`\n]+)`", text):
                if NAME.fullmatch(name) and missing_part(name, words, modules, members) is not None:
                    wrong.append(f"{path.relative_to(ROOT)}:{line} {name}")
    assert not wrong, "\n".join(wrong)
