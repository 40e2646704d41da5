"""Who writes in a folder."""

import json
import subprocess
import sys

from bert_repro.utils import status
from bert_repro.utils.locks import lock

HOLD = """
import sys, pathlib
from bert_repro.utils.locks import lock
print(lock(pathlib.Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


def other_process(folder):
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_a_folder_belongs_to_one_process_until_it_ends_however_it_ends(tmp_path):
    other = other_process(tmp_path)
    assert other.stdout.readline() == "True\n"
    assert not lock(tmp_path)
    other.kill()
    other.communicate()
    assert lock(tmp_path)
    assert lock(tmp_path)


def test_a_finished_run_releases_the_folder_and_says_how_it_ended(tmp_path):
    status.claim(tmp_path)
    assert lock(tmp_path)
    assert status.exit_code(tmp_path) is None
    status.finish(str(tmp_path), 0, "done")
    assert json.loads((tmp_path / "status.json").read_text()) == {"code": 0, "reason": "done"}
    assert status.exit_code(tmp_path) == 0
    with other_process(tmp_path) as other:
        answer, _ = other.communicate("")
    assert answer == "True\n"
