"""Loads published folders with old and new versions of transformers, each in an environment of its own.

    python tests/hub/versions_of_transformers.py                  # all nine; `make test-versions`
    python tests/hub/versions_of_transformers.py --versions 4.30.2 newest

Each environment is made from the package index, used and deleted. All hold the same torch, which is installed once.
A small Hub in this process serves one of the folders (tests/helpers/fake_hub.py).
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("4.30.2", "4.36.2", "4.41.2", "4.46.3", "4.51.3", "4.57.6", "5.0.0", "5.5.4", "newest")
BEFORE_NUMPY_2 = ("4.30", "4.36", "4.41")
REPO = "org/toy"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--versions", nargs="+", default=VERSIONS)
    parser.add_argument("--python", default=sys.executable, help="interpreter of the environments")
    (pinned,) = re.findall(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    parser.add_argument("--torch", default=pinned, help="version of torch in all of them")
    options = parser.parse_args()
    seen = []
    with tempfile.TemporaryDirectory(prefix="versions-") as folder:
        root = Path(folder) / "published"
        environment, hub = serve_a_hub(Path(folder) / "home")
        subprocess.run([sys.executable, ROOT / "tests/hub/upstream_environment.py", "write", root], check=True)
        from bert_repro.hub.push import push_folder

        push_folder(root / "AutoModelForSequenceClassification", REPO)
        torch = make_environment(Path(folder) / "torch", options.python, [f"torch=={options.torch}"])
        for version in options.versions:
            sys.stdout.write(f"== transformers {version}\n")
            sys.stdout.flush()
            seen.append(try_version(version, options.python, torch, root, environment))
        hub.shutdown()
    failed = {found["versions"]["transformers"]: found["failed"] for found in seen if found["failed"]}
    sys.stdout.write(f"\nfailed: {failed or 'none'}\n")
    return 1 if failed else 0


def serve_a_hub(home: Path) -> tuple[dict[str, str], Any]:
    """Starts a Hub and makes this process, and the environment of others, talk to it."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "helpers")]
    from fake_hub import WRITER, FakeHub

    hub = FakeHub()
    settings = {
        "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0", "HF_HOME": str(home),
        "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }  # fmt: skip
    os.environ |= {**settings, "HF_TOKEN": WRITER}  # before huggingface_hub is imported
    others = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "HF_TOKEN")}
    return others | settings, hub


def make_environment(home: Path, python: str, packages: list[str], beside: Path | None = None) -> Path:
    """Makes an environment with some packages, and those of another one, and returns its folder of packages."""
    subprocess.run([python, "-m", "venv", home], check=True)
    site = next(home.glob("lib/python*/site-packages"))
    if beside:
        (site / "beside.pth").write_text(f"{beside}\n")
    pip = [home / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
    subprocess.run([*pip, *packages], check=True, env={**os.environ, "PIP_CONSTRAINT": ""})
    return site


def try_version(version: str, python: str, torch: Path, root: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Makes an environment, reads the folders in it and deletes it."""
    with tempfile.TemporaryDirectory(dir=root.parent) as folder:
        home = Path(folder)
        wanted = ["transformers" if version == "newest" else f"transformers=={version}"]
        wanted += ["numpy<2" if version.startswith(BEFORE_NUMPY_2) else "numpy"]
        environment = environment | {"HF_MODULES_CACHE": str(home / "modules")}
        try:
            make_environment(home, python, wanted, beside=torch)
            command = [home / "bin" / "python", "-I", ROOT / "tests/hub/upstream_environment.py", "read", root]
            child = subprocess.run([*command, "--hub", REPO], env=environment, cwd=home, capture_output=True, text=True)
        except subprocess.CalledProcessError as error:
            return {"versions": {"transformers": version}, "failed": [f"no environment: {error}"]}
        with contextlib.suppress(IndexError, ValueError):
            found: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
            sys.stdout.write(child.stdout.rpartition("\n{")[0] + "\n")
            return found
        return {"versions": {"transformers": version}, "failed": [f"broke off: {child.stderr[-2000:]}"]}


if __name__ == "__main__":
    sys.exit(main())
