"""The demo Space: the commands of its README publish it complete, and its files agree with each other."""

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import yaml
from fake_hub import WRITER

ROOT = Path(__file__).resolve().parents[2]
SPACE = ROOT / "recipes" / "space"
README = (SPACE / "README.md").read_text("utf-8")
METADATA = yaml.safe_load(README.split("---")[1])


def publishing_commands() -> list[list[str]]:
    """The lines of README.md that begin with `hf`."""
    return [shlex.split(line) for line in README.splitlines() if line.startswith("hf ")]


def test_the_commands_of_its_readme_publish_it(hub, tmp_path):
    # A copy with a cache in it, as a clone has one that was used.
    clone = tmp_path / "clone"
    for name in ("recipes/space", "bert_repro"):
        shutil.copytree(ROOT / name, clone / name)
    (clone / "bert_repro" / "__pycache__").mkdir(exist_ok=True)
    (clone / "bert_repro" / "__pycache__" / "made.pyc").write_bytes(b"cache")
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": WRITER}
    environment |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}
    commands = publishing_commands()
    assert [command[1] for command in commands] == ["repos", "upload", "upload"]
    for _, *arguments in commands:
        command = [str(Path(sys.executable).with_name("hf")), *arguments]
        done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr[-2000:]
    _, tree = hub.repos["spaces/org/bert-demo"].tree("main")
    assert tree["app.py"] == (SPACE / "app.py").read_bytes()
    assert set(tree) >= {"README.md", "requirements.txt", "bert_repro/__init__.py", "bert_repro/inference/pipelines.py"}
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "bert_repro").rglob("*.py")}
    assert modules <= set(tree)
    assert not [name for name in tree if "__pycache__" in name]


def test_its_metadata_and_bounds_fit_its_files_and_the_package():
    assert METADATA["sdk"] == "gradio"
    assert (SPACE / METADATA["app_file"]).exists()
    (pin,) = re.findall(r"^gradio==(.+)$", (SPACE / "requirements.txt").read_text("utf-8"), re.MULTILINE)
    assert METADATA["sdk_version"] == pin
    assert len(METADATA["short_description"]) <= 60  # the Hub refuses longer ones
    declared = (ROOT / "pyproject.toml").read_text("utf-8")
    for line in (SPACE / "requirements.txt").read_text("utf-8").splitlines():
        if ">=" in line:
            assert f'"{line}"' in declared


def only_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def imported(path: Path) -> set[str]:
    """What a file imports as it is imported itself: not inside functions, not for types only."""
    found: set[str] = set()
    todo: list[ast.AST] = list(ast.parse(path.read_text("utf-8")).body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = ".".join(path.relative_to(ROOT).parts[:-1]) if node.level else ""
            module = ".".join(filter(None, (package, node.module)))
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not only_for_types(node):
            todo += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt | ast.ExceptHandler)]
    return found


def test_the_demo_imports_nothing_that_its_requirements_leave_out():
    lines = (SPACE / "requirements.txt").read_text("utf-8").splitlines()
    listed = {re.split("[=<>]", line)[0] for line in lines if not line.startswith("#")}
    names = {"pillow": "PIL", "pyyaml": "yaml"}
    installed = {names.get(name, name) for name in listed} | {"huggingface_hub", "tqdm"}  # transformers brings these
    seen: set[str] = set()
    todo = imported(SPACE / "app.py") | {"bert_repro.inference.pipelines"}  # registered for a pipeline's first use
    while todo:
        name = todo.pop()
        seen.add(name)
        place = ROOT.joinpath(*name.split("."))
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if name.startswith("bert_repro") and path.is_file():
                todo |= imported(path) - seen
    assert "bert_repro.models.modeling_bert_repro" in seen
    outside = {name.split(".")[0] for name in seen} - sys.stdlib_module_names - {"bert_repro"}
    assert outside <= installed, outside - installed
