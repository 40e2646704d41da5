"""Imports point down the layers of docs/ARCHITECTURE.md only."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "bert_repro"
MODULES = sorted(PACKAGE.rglob("*.py"))
PUBLIC_API = "__init__"  # bert_repro/__init__.py gathers the public names; nothing inside may import from it.

# First part of the module's path below the package -> its layer. A new folder is entered here and in ARCHITECTURE.md.
LAYERS = {
    name: layer
    for layer, names in enumerate((
        "errors models registration",
        "configs utils results",
        "presets recipes corpus hub in_memory_data",
        "training",
        "tasks pretraining",
        "finetuning inference conversion",
        "api cli",
        "__main__ reproduction reference api_reference quickstart",
    ))
    for name in names.split()
}  # fmt: skip
STANDALONE = "models"


def layer_name(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports_of_ours(source: str) -> set[str]:
    """Parts of the package that a module imports, at any depth and inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "bert_repro"}
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0 and node.module == "bert_repro":
                found |= {f"bert_repro.{alias.name}" for alias in node.names}
            elif node.level == 0 and node.module.split(".")[0] == "bert_repro":
                found.add(node.module)
    return {name.split(".")[1] if "." in name else PUBLIC_API for name in found}


def relative_imports(source: str) -> set[str]:
    """Relative imports as written, `from . import name` as `.name`."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level:
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found |= {"." * node.level + name for name in names}
    return found


def test_every_module_has_a_layer_here_and_in_the_architecture_document():
    assert {layer_name(path) for path in MODULES} - {PUBLIC_API} == set(LAYERS)
    rows = re.findall(r"^\| (\d) \| `(\w+)/?` \|", ARCHITECTURE, re.MULTILINE)
    assert {name: int(layer) for layer, name in rows} == LAYERS | {"recipes": 8}


def test_imports_point_down():
    for path in MODULES:
        own = layer_name(path)
        if own in (PUBLIC_API, "api_reference"):  # which documents the public names
            continue
        for imported in imports_of_ours(path.read_text("utf-8")):
            assert imported in LAYERS, f"{path} imports bert_repro.{imported}, which has no layer"
            assert LAYERS[imported] <= LAYERS[own], f"{path} (L{LAYERS[own]}) imports {imported} (L{LAYERS[imported]})"


def test_only_the_modeling_code_imports_relatively():
    for path in MODULES:
        if layer_name(path) != PUBLIC_API:
            alone = layer_name(path) == STANDALONE
            siblings = {f".{other.stem}" for other in path.parent.glob("*.py")} if alone else set()
            assert relative_imports(path.read_text("utf-8")) <= siblings, path


def test_the_modeling_code_is_flat_and_imports_nothing_of_ours():
    for path in (PACKAGE / STANDALONE).rglob("*.py"):
        assert path.parent == PACKAGE / STANDALONE
        assert imports_of_ours(path.read_text("utf-8")) == set()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import bert_repro.cli", {"cli"}),
        ("def f():\n    from bert_repro.training.trainer import step", {"training"}),
        ("from bert_repro import data, hub", {"data", "hub"}),
        ("import bert_repro", {PUBLIC_API}),
        ("import bert_reproduction\nfrom os import path", set()),
    ],
)
def test_the_walk_finds_imports_of_ours(source, found):
    assert imports_of_ours(source) == found


def test_the_walk_finds_relative_imports():
    source = "from . import a, b\nfrom .c import d\nfrom ..e import f\nfrom g import h"
    assert relative_imports(source) == {".a", ".b", ".c", "..e"}


ARCHITECTURE = (PACKAGE.parent / "docs" / "ARCHITECTURE.md").read_text("utf-8")


def test_the_architecture_document_names_every_module_where_it_is_and_no_other():
    rows = dict(re.findall(r"^\| [0-7] \| `(\w+)/` \|(.*)", ARCHITECTURE, re.MULTILINE))
    named = {f"{room}/{name}" for room, row in rows.items() for name in re.findall(r"`([a-z0-9_/]+)`", row)}
    paths = {path.relative_to(PACKAGE).with_suffix("").as_posix() for path in MODULES if path.stem != "__init__"}
    assert {path for path in paths if "/" in path} == named - {"tasks/evaluate"}


def test_no_two_modules_of_the_package_share_a_name_for_different_things():
    stems = [path.stem for path in MODULES if path.stem != "__init__"]
    rooms = {layer_name(path) for path in MODULES}  # configs/pretraining holds the settings of pretraining/
    shared = {stem for stem in stems if stems.count(stem) > 1} - rooms
    assert shared == {"base", "run"}  # of configurations and of tasks; what each room runs


def named_types(source: str, where: str) -> dict[str, str]:
    """Classes and type aliases of a module, each with what tells it from another of that name."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = where
        elif isinstance(node, ast.Assign) and re.fullmatch("_?[A-Z][a-z]\\w*", ast.unparse(node.targets[0])):
            found[ast.unparse(node.targets[0])] = ast.unparse(node.value)
    return found


def test_no_two_classes_or_type_aliases_share_a_name_for_different_things():
    first: dict[str, str] = {}
    for path in MODULES:
        for name, what in named_types(path.read_text("utf-8"), str(path)).items():
            assert first.setdefault(name, what) == what, f"{name} in {path}"
