"""Every part is made once it counts, whatever happens to the process that makes it."""

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from errors import user_error

from bert_repro.errors import ProcessKilledError, UserError
from bert_repro.utils.parts import MAX_ATTEMPTS, Engine, make_parts


@dataclass(frozen=True)
class Maker:
    """Writes a file for each part. Some parts fail in one way, once or always."""

    folder: Path
    fails: str = ""
    failing_part: int = 2
    times: int = 1

    def __call__(self, part: int) -> None:
        attempts = self.folder / f"attempts-{part}"
        with attempts.open("a") as file:
            file.write("x")
        if part == self.failing_part and attempts.stat().st_size <= self.times:
            self._fail()
        (self.folder / f"part-{part}").write_text(str(part))

    def _fail(self) -> None:
        if self.fails == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fails == "wrong input":
            raise UserError("file x: wrong", setting="input_files")
        if self.fails == "bug":
            raise ValueError("a bug", lambda: "that cannot be pickled")


def run(maker: Maker, engine: Engine = Engine(num_proc=2), parts: int = 5) -> None:  # noqa: B008 (frozen)
    make_parts(
        range(parts),
        maker,
        is_done=lambda part: (maker.folder / f"part-{part}").exists(),
        engine=engine,
        weights=[1] * parts,
        label="making",
    )


def made(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("part-*"))


ALL = [f"part-{number}" for number in range(5)]


@pytest.mark.parametrize("num_proc", [1, 2])
def test_parts_that_are_done_are_skipped(tmp_path: Path, num_proc: int) -> None:
    (tmp_path / "part-3").write_text("3")
    run(Maker(tmp_path), Engine(num_proc=num_proc))
    assert made(tmp_path) == ALL and not (tmp_path / "attempts-3").exists()


def test_the_part_of_a_killed_worker_is_made_again(tmp_path: Path) -> None:
    run(Maker(tmp_path, "killed"))
    assert made(tmp_path) == ALL and (tmp_path / "attempts-2").stat().st_size == 2


def test_a_part_that_kills_every_worker_ends_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ProcessKilledError) as error:
        run(Maker(tmp_path, "killed", times=9))
    assert "signal 9" in str(error.value) and "--num_proc 2" in str(error.value) and "\n" not in str(error.value)
    assert (tmp_path / "attempts-2").stat().st_size == MAX_ATTEMPTS


def test_errors_of_workers_are_raised_here(tmp_path: Path) -> None:
    with user_error("file x", setting="input_files"):
        run(Maker(tmp_path, "wrong input"))
    (tmp_path / "attempts-2").unlink()
    with pytest.raises(RuntimeError, match="a bug") as error:
        run(Maker(tmp_path, "bug"))
    assert "_fail" in error.value.__notes__[0]
    assert not [child for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline())]


@dataclass(frozen=True)
class Ordered:
    """Makes a part only if the one that it needs is there."""

    folder: Path

    def __call__(self, part: int) -> None:
        if part >= 2:
            assert (self.folder / f"part-{part - 2}").exists()
        (self.folder / f"part-{part}").write_text(str(part))


@pytest.mark.parametrize("num_proc", [1, 2])
def test_a_part_starts_after_the_parts_that_it_needs(tmp_path: Path, num_proc: int) -> None:
    make_parts(
        range(5),
        Ordered(tmp_path),
        is_done=lambda part: (tmp_path / f"part-{part}").exists(),
        engine=Engine(num_proc=num_proc),
        weights=[1] * 5,
        label="making",
        needs=[[], [], [0], [1], [2]],
    )
    assert made(tmp_path) == ALL


STOPPED = """
import pathlib, sys, time
sys.path.insert(0, sys.argv[2])
from bert_repro.utils.parts import Engine, make_parts
from bert_repro.utils.process import stop_on_signals
import slow_parts
if __name__ == "__main__":
    with stop_on_signals():
        make_parts(range(9), slow_parts.make, is_done=lambda part: False, engine=Engine(num_proc=2),
                   weights=[1] * 9, label="making")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_the_process_that_started_them(tmp_path: Path, number: int) -> None:
    (tmp_path / "slow_parts.py").write_text(
        "import time\ndef make(part):\n    open(f'{__file__}.{part}', 'w')\n    time.sleep(60)\n"
    )
    (tmp_path / "script.py").write_text(STOPPED)
    command = [sys.executable, str(tmp_path / "script.py"), "x", str(tmp_path)]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.getcwd()}, stderr=subprocess.DEVNULL)
    deadline = time.time() + 60
    while len(list(tmp_path.glob("slow_parts.py.*"))) < 2 and time.time() < deadline:
        time.sleep(0.05)
    workers = psutil.Process(process.pid).children()
    process.send_signal(number)
    process.wait(timeout=20)
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert workers and not alive


def test_ray_is_refused_without_an_answer_at_its_address(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    start = time.time()
    for address in ("localhost:1", "localhost", "auto"):
        with user_error("--ray_address", address, setting="ray_address"):
            run(Maker(tmp_path), Engine("ray", ray_address=address))
    assert time.time() - start < 20


def test_ray_is_refused_where_another_program_listens(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with socket.create_server(("localhost", 0)) as server:
        # It accepts connections and never says a word.
        address = f"localhost:{server.getsockname()[1]}"
        with user_error("--ray_address", address, setting="ray_address"):
            run(Maker(tmp_path), Engine("ray", ray_address=address))


# Starting Ray takes seconds, so only the most important case is a default test.
SLOW_CASES = [pytest.param(name, marks=pytest.mark.slow) for name in ("", "wrong input")]


@pytest.mark.parametrize("fails", ["killed", *SLOW_CASES])
def test_ray_makes_the_same_parts(tmp_path: Path, fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    # Workers of Ray import this module.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
    if fails == "wrong input":
        with user_error("file x", setting="input_files"):
            run(Maker(tmp_path, fails), Engine("ray"))
        return
    run(Maker(tmp_path, fails), Engine("ray"))
    assert made(tmp_path) == ALL
