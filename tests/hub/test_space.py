"""The demo Space: the commands of its README publish it complete, and its files agree with each other."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
SPACE = ROOT / "recipes" / "space"
README = (SPACE / "README.md").read_text("utf-8")
METADATA = yaml.safe_load(README.split("---")[1])


def test_the_commands_of_its_readme_publish_it(hub, tmp_path):
    # A copy with a cache in it, as a clone has one that was used.
    clone = tmp_path / "clone"
    for name in ("recipes/space", "bert_repro"):
        shutil.copytree(ROOT / name, clone / name)
    (clone / "bert_repro" / "__pycache__").mkdir(exist_ok=True)
    (clone / "bert_repro" / "__pycache__" / "made.pyc").write_bytes(b"cache")
    commands = [shlex.split(line) for line in README.splitlines() if line.startswith("hf ")]
    assert [command[1] for command in commands] == ["repos", "upload", "upload"]
    for _, *arguments in commands:
        command = [str(Path(sys.executable).with_name("hf")), *arguments]
        done = subprocess.run(command, cwd=clone, env=hub.environment(tmp_path), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
    _, tree = hub.repos["spaces/org/bert-demo"].tree("main")
    assert tree["app.py"] == (SPACE / "app.py").read_bytes()
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "bert_repro").rglob("*.py")}
    assert set(tree) >= {"README.md", "requirements.txt", *modules}
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
