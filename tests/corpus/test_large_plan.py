"""A plan of 100 billion words is made on one machine, in little time and memory. `-s` prints the figures.

Nothing is read: the scans are made up. The bounds are CPU seconds, so that a busy machine does not break them.
"""

import subprocess
import sys
from pathlib import Path

import pytest

WORDS = 100e9
CHARACTERS_PER_WORD = 6
CHARACTERS_PER_DOCUMENT = 32_000
SOURCES = 100
PARTS = 10_000
MAX_CPU_SECONDS = 60
MAX_GIGABYTES = 1

# A process of its own, so that its peak of memory is that of the plan.
PROGRAM = """
import sys, time
from pathlib import Path
import numpy as np
from bert_repro.configs import CorpusConfig
from bert_repro.corpus import plan
from bert_repro.corpus.documents import Source
from bert_repro.corpus import dropped
from bert_repro.corpus.scanning import Scan

num_sources, documents, characters, part_characters = map(int, sys.argv[2:])
plan.PART_CHARACTERS = part_characters
empty = np.empty(0, np.int64)

def made_up_scan(folder, number):
    lengths = np.random.default_rng(number).integers(1, 2 * characters, documents)
    starts = np.cumsum(lengths) - lengths
    nothing = empty.astype(np.uint64)
    return Scan(starts, lengths, empty, nothing, empty, empty.astype(bool), empty, nothing, empty, empty, empty)

plan.read_scan = dropped.read_scan = made_up_scan
folder = Path(sys.argv[1])
(folder / "scan").mkdir()
config = CorpusConfig(input_files=("made up",), tokenizer="made up", output_dir=str(folder / "corpus"))
sources = [Source(f"source {number}", 0) for number in range(num_sources)]
began = time.process_time()
result = plan.make_plan(config, sources, folder)
plan._write_plan(result, folder)
seconds = time.process_time() - began
again = plan._read_plan(folder)
assert again == result
# The peak that getrusage returns begins with that of the parent process.
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
gigabytes = int(status["VmHWM"].split()[0]) / 1e6
print(len(result.parts), sum(part.documents for part in result.parts), seconds, gigabytes)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc")
def test_one_machine_plans_100_billion_words_in_10_000_parts(tmp_path):
    characters = WORDS * CHARACTERS_PER_WORD
    documents = round(characters / CHARACTERS_PER_DOCUMENT / SOURCES)
    arguments = [tmp_path, SOURCES, documents, CHARACTERS_PER_DOCUMENT, round(characters / PARTS)]
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    num_parts, num_documents = map(int, output[:2])
    seconds, gigabytes = map(float, output[2:])
    sys.stdout.write(f"{num_parts} parts of {num_documents} documents: {seconds:.1f} CPU seconds, {gigabytes:.2f} GB\n")
    assert abs(num_parts - PARTS) <= PARTS / 100 and num_documents == SOURCES * documents
    assert seconds < MAX_CPU_SECONDS and gigabytes < MAX_GIGABYTES
