"""Rules of the code that a machine can check: imports point down, recipes are short, nothing names a machine."""

import ast
import dataclasses
import io
import re
import shutil
import subprocess
import sys
import tokenize
import tomllib
import zipfile
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import bert_repro
from bert_repro import configs

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "bert_repro"
MODULES = sorted(PACKAGE.rglob("*.py"))
PUBLIC_API = ROOT / "tests" / "golden" / "public_api.txt"
LARGEST_FILE = 500_000
CHECKPOINT, LARGEST_CHECKPOINT = "checkpoints/bert-repro-mini/model.safetensors", 25_000_000
MODELING = "models/modeling_bert_repro.py"

# Imports point down these layers only, those inside functions too. A new room is entered here and in ARCHITECTURE.md.
LAYERS = {
    name: layer
    for layer, names in enumerate((
        "errors",
        "utils",
        "configs results models",
        "arguments corpus hub",
        "training",
        "tasks pretraining",
        "finetuning conversion",
        "inference",
        "registration next_steps",
        "recipes",
        "api reproduction",
        "cli",
        "__main__",
    ))
    for name in names.split()
}  # fmt: skip


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def code_lines(source: str) -> set[int]:
    """Numbers of the lines that hold code."""
    skipped = {getattr(tokenize, name) for name in "COMMENT NL NEWLINE INDENT DEDENT ENDMARKER".split()}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, clean=False):
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return lines


def imports_of_ours(path: Path) -> set[str]:
    """Rooms that a module imports, inside functions too; of relative imports those of models/ alone are expected."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level:
            assert path.parent.name == "models" or path == PACKAGE / "__init__.py", path
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in found if name.startswith("bert_repro.")}


def test_imports_point_down_and_the_published_files_import_nothing_of_ours():
    for path in MODULES:
        own = path.relative_to(PACKAGE).with_suffix("").parts[0]
        if path == PACKAGE / "__init__.py":
            continue
        for imported in imports_of_ours(path) & LAYERS.keys():
            assert LAYERS[imported] <= LAYERS[own], f"{path} imports {imported}"
    for name in (MODELING, "models/configuration_bert_repro.py"):
        assert imports_of_ours(PACKAGE / name) == set()


def test_the_architecture_page_names_every_module():
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text("utf-8")
    missing = [name_of(path) for path in MODULES if path.stem != "__init__" and f"`{path.stem}`" not in page]
    assert missing == []


def test_every_setting_is_read_by_what_it_sets():
    rooms = "\n".join(path.read_text("utf-8") for path in MODULES if path.parent.name != "configs")
    classes = [item for item in vars(configs).values() if isinstance(item, type) and issubclass(item, configs.Config)]
    names = {item.name for config_class in classes for item in dataclasses.fields(config_class)}
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", rooms)] == []


def test_no_call_that_loads_a_model_leaves_open_whether_its_code_may_run():
    """SECURITY.md promises it for package, recipes, benchmarks and the Space."""
    open_calls = []
    calls = 0
    for folder in ("bert_repro", "recipes", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if not isinstance(node, ast.Call):
                    continue
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if name not in ("from_pretrained", "pipeline"):
                    continue
                calls += 1
                given = {keyword.arg: keyword.value for keyword in node.keywords}
                value = given.get("trust_remote_code")
                is_off = isinstance(value, ast.Constant) and value.value is False
                # `loading` and `configuration_bert_repro` pass on a dict of options, which has the setting.
                if not is_off and None not in given:
                    open_calls.append(f"{name_of(path)}:{node.lineno}")
    assert open_calls == [] and calls > 8


def test_recipes_are_short_and_say_what_they_do():
    for path in (ROOT / "recipes").glob("*.py"):
        source = path.read_text("utf-8")
        assert len(code_lines(source)) <= {"quickstart": 260, "quickstart_text": 110}.get(path.stem, 40), path
        assert ast.get_docstring(ast.parse(source)), path
        assert "# /// script" not in source, path  # it would name a package that no index has


def tracked_files() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def test_no_path_of_one_machine_no_package_index_and_no_large_file():
    # Put together here, so that this file does not find itself.
    machine_path = re.compile(r"(?<![\w.~])/(?:" + "|".join(("work", "root", "home")) + r")/\w")
    for path in tracked_files():
        data = path.read_bytes()
        assert len(data) <= (LARGEST_CHECKPOINT if name_of(path) == CHECKPOINT else LARGEST_FILE), path
        assert not machine_path.search(data.decode("utf-8", "ignore")), path
    index = re.compile(r"--(?:extra-)?index-url|--find-links|find-links\s*=|file:///", re.IGNORECASE)
    for name in ("constraints.txt", "pyproject.toml", "Makefile", ".ci/run"):
        assert not index.search((ROOT / name).read_text("utf-8")), name


def configuration() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def pins(name: str = "constraints.txt") -> dict[str, str]:
    lines = (line for line in (ROOT / name).read_text("utf-8").splitlines() if line and not line.startswith("#"))
    return {canonicalize_name(package): version for package, version in (line.split("==") for line in lines)}


def test_every_dependency_is_pinned_at_or_above_its_lower_bound():
    project = configuration()["project"]
    lowest, pinned = pins("constraints-lowest.txt"), pins()
    for requirement in map(Requirement, chain(project["dependencies"], *project["optional-dependencies"].values())):
        name = canonicalize_name(requirement.name)
        assert pinned[name] in requirement.specifier, requirement
        if requirement.specifier and name in lowest:
            assert f"{lowest[name]}.".startswith(f"{requirement.specifier}.".removeprefix(">=")), requirement
    assert not [version for version in pinned.values() if "+" in version]


def test_the_version_and_the_public_names_are_those_on_record():
    version = configuration()["project"]["version"]
    assert bert_repro.__version__ == version
    assert re.search(rf"^version: {re.escape(version)}$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE)
    # A changed name breaks users' code: change the record on purpose, with a line in CHANGELOG.md.
    assert sorted(bert_repro.__all__) == PUBLIC_API.read_text("utf-8").split()
    assert all(hasattr(bert_repro, name) for name in bert_repro.__all__)


def test_the_wheel_holds_what_installed_users_need(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(PACKAGE, source / "bert_repro", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    data = {"bert_repro/py.typed", "bert_repro/hub/card_template.md.jinja", "bert_repro/tasks/conll2003_documents.json"}
    assert {name_of(path) for path in MODULES} | data <= names
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"bert_repro"}
    assert any(name.endswith("licenses/NOTICE") for name in names)
