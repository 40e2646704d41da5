"""A fuzzer of our own: files of every kind, damaged in thousands of ways, through the readers that the recipes call.

What may come of it: the original, what a plain reading of the changed file gives (see `input_kinds`), or one line that
says what is wrong. Never another exception, a crash, ten seconds, two gigabytes, or another model without a word.
"""

import random
import resource
import shutil
import signal
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import input_kinds
import pytest
from input_kinds import KINDS, Kind

from bert_repro.errors import NonFiniteError, UserError

SECONDS, BYTES = 10, 2 << 30
LONGEST_LINE = 1010


class Hang(BaseException):
    pass


def hang(*_: object) -> None:
    raise Hang(f"more than {SECONDS} seconds")


@contextmanager
def limits() -> Iterator[None]:
    """Bounds time and memory of what runs in it."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, hang)
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, hard))
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, before)


def outcome(kind: Kind, folder: Path, content: bytes, original: object) -> str:
    """Returns what came of a changed file, "fault: ..." where it must not have."""
    began = time.perf_counter()
    try:
        with limits():
            value = kind.read(folder)
    except (UserError, NonFiniteError) as error:
        message = str(error)
        if not message.isprintable() or len(message) > LONGEST_LINE:
            return f"fault: not one readable line: {len(message)} characters, {message[:200]!r}"
        return "refused"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"fault: {type(error).__name__}: {str(error)[:300]}"
    if time.perf_counter() - began > SECONDS:
        return "fault: too slow"
    if value == original:
        return "equal"
    if kind.plain is None:
        return "fault: something else was read, and not refused"
    try:
        expected = kind.plain(content)
    except Exception as error:
        return f"fault: accepted, where a plain reader fails: {type(error).__name__}: {str(error)[:200]}"
    return "harmless" if value == expected else "fault: something else was read than the file says"


def fuzz(kind: Kind, folder: Path, seeds: range, report: Path | None = None) -> tuple[Counter[str], list[str]]:
    """Changes the example in a folder again and again; returns how often each outcome came, and the faults."""
    files = sorted(path for path in folder.glob(kind.file) if path.is_file())
    assert files, kind.file
    original = kind.read(folder)
    if kind.plain is not None:
        input_kinds.ORIGINAL["model"] = original
        assert kind.plain(files[0].read_bytes()) == original, "the plain reader and ours agree about a sound file"
    counts: Counter[str] = Counter()
    faults = []
    for seed in seeds:
        generator = random.Random(seed)
        path = generator.choice(files)
        content = path.read_bytes()
        changed = kind.mutate(generator, content)
        path.write_bytes(changed)
        found = outcome(kind, folder, changed, original)
        path.write_bytes(content)
        counts[found.split(":")[0]] += 1
        if found.startswith("fault"):
            faults.append(f"seed {seed}, {path.name}: {found}")
            if report is not None:
                report.mkdir(parents=True, exist_ok=True)
                (report / f"{seed}-{path.name}").write_bytes(changed)
    return counts, faults


def run(name: str, world, tmp_path: Path, number: int) -> None:
    folder = tmp_path / "input"
    folder.mkdir()
    KINDS[name].make(world, folder)
    first = zlib.crc32(name.encode()) % 10_000_000
    counts, faults = fuzz(KINDS[name], folder, range(first, first + number))
    assert not faults, "\n".join([f"{name}: {dict(counts)}", *faults[:10]])
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", KINDS)
def test_thirty_changes_of_each_kind(name, world, tmp_path):
    run(name, world, tmp_path, 30)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_two_thousand_changes_of_each_kind(name, world, tmp_path):
    run(name, world, tmp_path, 2_000)
