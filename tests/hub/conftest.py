"""A Hub of its own for a test, and tiny published folders."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_hub import WRITER, FakeHub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """A Hub that huggingface_hub in this process talks to, logged in as one who may write to `org`."""
    from huggingface_hub import constants
    from huggingface_hub.utils import _http

    server = FakeHub()
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setattr(_http, "time", SimpleNamespace(**{**vars(time), "sleep": lambda _: None}))  # between attempts
    monkeypatch.setenv("HF_TOKEN", WRITER)
    _http.close_session()
    yield server
    _http.close_session()
    server.shutdown()
    server.server_close()


@pytest.fixture
def remote_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keeps the remote code of a test in the test's folder, away from that of other tests."""
    import transformers

    for name in [name for name in sys.modules if name.split(".")[0] == "transformers_modules"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "modules")])
