import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import made_up


@pytest.fixture(scope="session")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The records of a made-up study."""
    return made_up.trial(tmp_path_factory.mktemp("trial"))
