from pathlib import Path

import made_up
import pytest


@pytest.fixture(scope="session")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The records of a made-up study."""
    return made_up.trial(tmp_path_factory.mktemp("trial"))
