"""Rules of the code that a machine can check."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from itertools import chain
from pathlib import Path

import pytest

import bert_repro

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted((ROOT / "bert_repro").rglob("*.py"))
RECIPES = sorted((ROOT / "recipes").glob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
PUBLIC_API = ROOT / "tests" / "golden" / "public_api.txt"

LONGEST_MODULE = 400
LONGEST_FUNCTION = 50
LONGEST_RECIPE = 60
LARGEST_FILE = 500_000
CHECKPOINT, LARGEST_CHECKPOINT = "checkpoints/bert-repro-mini/model.safetensors", 25_000_000
MAY_BE_LONGER = {
    "bert_repro/models/modeling_bert_repro.py",  # one file, because it is copied beside published weights
}
# An argument a line and a docstring for each; the bodies are short.
FUNCTIONS_MAY_BE_LONGER = {
    "bert_repro/api.py finetune",
    "bert_repro/configs/base.py setting",
    "bert_repro/corpus/tokenizer.py train_wordpiece",
    "bert_repro/models/modeling_bert_repro.py forward",
    "bert_repro/models/modeling_bert_repro.py packed_attention_forward",
}
# Files whose tests may skip themselves, and when. Every other test runs or is excluded by a marker.
MAY_SKIP = {
    "tests/reproduction/test_runner.py": "Ray, an optional extra, is not installed",
    "tests/corpus/test_prepare.py": "the real corpora are not beside the project",
    "tests/pretraining/test_dataset.py": "the system has no /proc",
    "tests/models/test_real_weights.py": "the package with real weights is not installed",
    "tests/tasks/glue/test_glue_real_files.py": "the official files are not beside the project",
    "tests/training/test_performance.py": "PyTorch was built without oneDNN",
    "tests/corpus/test_tokenizer.py": "the original vocabularies are not beside the project",
}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tracked_files() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def pins(name: str = "constraints.txt") -> dict[str, str]:
    lines = (ROOT / name).read_text("utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_modules_stay_short_and_the_exceptions_are_still_needed():
    lengths = {name_of(path): len(path.read_text("utf-8").splitlines()) for path in MODULES}
    assert {name for name, lines in lengths.items() if lines > LONGEST_MODULE} == MAY_BE_LONGER


def test_functions_stay_short():
    found = {
        f"{name_of(path)} {node.name}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= LONGEST_FUNCTION
    }
    assert found == FUNCTIONS_MAY_BE_LONGER


def test_recipes_are_short_and_say_what_they_do():
    for path in RECIPES:
        source = path.read_text("utf-8")
        assert len(source.splitlines()) <= LONGEST_RECIPE, path
        assert ast.get_docstring(ast.parse(source)), path


def test_recipes_declare_what_uv_installs_for_them():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for path in RECIPES:
        block = re.match(r"# /// script\n((?:#.*\n)+?)# ///\n", path.read_text("utf-8"))
        assert block, f"{path}: no PEP 723 block"
        script = tomllib.loads(re.sub(r"^# ?", "", block[1], flags=re.MULTILINE))
        extra = "[onnx]" if path.stem == "export_onnx" else ""
        assert not extra or extra.strip("[]") in project["optional-dependencies"]
        assert script == {
            "requires-python": project["requires-python"], "dependencies": [project["name"] + extra],
        }, path  # fmt: skip


def test_no_path_of_one_machine_no_package_index_and_no_large_file():
    # Put together here, so that this file does not find itself.
    machine_path = re.compile(r"(?<![\w.~])/(?:" + "|".join(("work", "root", "home")) + r")/\w")
    found, large = [], []
    for path in tracked_files():
        data = path.read_bytes()
        if len(data) > (LARGEST_CHECKPOINT if name_of(path) == CHECKPOINT else LARGEST_FILE):
            large.append(name_of(path))
        if machine_path.search(data.decode("utf-8", "ignore")):
            found.append(name_of(path))
    assert found == []
    assert large == []
    index = re.compile(r"--(?:extra-)?index-url|--find-links|find-links\s*=|file:///", re.IGNORECASE)
    for name in ("constraints.txt", "pyproject.toml", "Makefile", ".ci/run"):
        assert not index.search((ROOT / name).read_text("utf-8")), name


def test_progress_bars_are_those_that_notebooks_show():
    imports = [line for path in MODULES for line in path.read_text("utf-8").splitlines() if "import tqdm" in line]
    assert imports and {line.strip() for line in imports} == {"from tqdm.auto import tqdm"}


def test_only_known_markers_and_skips():
    # A test that never runs anywhere looks like one that passes: who may skip is written down above.
    markers = {line.split(":")[0] for line in configuration()["tool"]["pytest"]["ini_options"]["markers"]}
    assert markers == {"slow", "gpu", "network", "xla"}
    skips = re.compile(r"pytest\.(?:skip|mark\.skip|mark\.skipif|mark\.xfail|importorskip)\b")
    found = {name_of(path) for path in TESTS if skips.search(path.read_text("utf-8"))} - {name_of(Path(__file__))}
    assert found == set(MAY_SKIP)


def configuration() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_every_dependency_is_pinned_at_or_above_its_lower_bound():
    project = configuration()["project"]
    declared = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    pinned = {normal(name): version for name, version in pins().items()}
    for requirement in declared:
        name, _, bound = requirement.partition(">=")
        assert normal(name) in pinned, requirement
        version = pinned[normal(name)]
        assert not bound or release(version) >= release(bound), f"{requirement}, pinned at {version}"


def test_the_lowest_versions_are_those_that_are_declared():
    project = configuration()["project"]
    lowest = {normal(name): release(version) for name, version in pins("constraints-lowest.txt").items()}
    for requirement in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
        name, _, bound = requirement.partition(">=")
        if bound:
            declared = release(bound)
            assert lowest[normal(name)][: len(declared)] == declared, requirement


def release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0]))


def test_pins_name_no_local_build():
    assert not [f"{name}=={version}" for name, version in pins().items() if "+" in version]
    assert list(pins()) == sorted(pins(), key=str.lower), "sort constraints.txt by name"


def test_the_version_and_the_public_names_are_those_on_record():
    version = configuration()["project"]["version"]
    assert bert_repro.__version__ == version
    assert re.search(rf"^version: {re.escape(version)}$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE)
    # A changed name breaks users' code: change the record on purpose, with a line in CHANGELOG.md.
    assert sorted(bert_repro.__all__) == PUBLIC_API.read_text("utf-8").split()
    assert all(hasattr(bert_repro, name) for name in bert_repro.__all__)


def test_make_help_lists_every_target():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    command = ["make", "--no-print-directory", "help"]  # make inside make announces folders otherwise
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert targets == {line.split()[1] for line in listed.splitlines() if line.strip()}
    assert targets >= {"quickstart", "test", "check", "bench", "docs", "wheel", "clean", "help"}


def test_an_interrupted_installation_begins_afresh_and_a_complete_one_is_updated(tmp_path):
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    python, left = tmp_path / "python", tmp_path / ".venv" / "left"
    python.write_text(
        '#!/bin/sh\nif [ "$2" = venv ]; then mkdir -p $3/bin && cp "$0" $3/bin/python; else exit $CODE; fi\n'
    )
    python.chmod(0o755)

    def make(code: int) -> int:
        command = ["make", "--silent", "PYTHON=./python", "UV=", ".venv/.installed"]
        return subprocess.run(
            command, cwd=tmp_path, env=os.environ | {"CODE": str(code)}, capture_output=True
        ).returncode

    assert make(1) and not (left.parent / ".installed").exists()
    left.touch()
    assert make(0) == 0 and (left.parent / ".installed").exists() and not left.exists()
    left.touch()
    os.utime(tmp_path / "constraints.txt", (2e9, 2e9))
    assert make(0) == 0 and left.exists()


def test_continuous_integration_runs_the_tests_last():
    lines = [line for line in (ROOT / ".ci" / "run").read_text("utf-8").splitlines() if "make " in line]
    assert ["check" in line for line in lines] == [True, False]
    assert "make --no-print-directory test" in lines[-1]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_the_wheel_holds_what_installed_users_need(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(ROOT / "bert_repro", source / "bert_repro", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {name_of(path) for path in MODULES}
    data = {"bert_repro/py.typed", "bert_repro/recipes/run_glue.txt", "bert_repro/hub/card_template.md.jinja"}
    assert modules | data <= names
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"bert_repro"}
    assert any(name.endswith("licenses/NOTICE") for name in names)
