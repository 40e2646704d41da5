"""Anonymous resident memory of a preparation, summed over all its processes, while much text streams through."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert_repro.corpus.prepared_corpus import PreparedCorpus
from bert_repro.corpus.tokenizer import train_wordpiece

WORDS = [f"{first}{middle}{last}" for first in "bdfgklmnprst" for middle in "aeiou" for last in ("na", "ren", "lim")]
LIMIT = 1.5e9


def text(number):
    """About 30,000 characters in paragraphs."""
    generator = random.Random(number)
    sentences = [" ".join(generator.choices(WORDS, k=15)).capitalize() + "." for _ in range(300)]
    return "\n".join(" ".join(sentences[start : start + 6]) for start in range(0, 300, 6))


def write_documents(path, megabytes):
    """The same hundred texts again and again, each with a line of its own; returns how many were written."""
    texts = [text(number) for number in range(100)]
    written = number = 0
    with path.open("w") as file:
        while written < megabytes * 1e6:
            ending = f"This is the text that has the number {number} among all the many texts of this large corpus."
            written += file.write(json.dumps({"text": f"{texts[number % 100]}\n{ending}"}) + "\n")
            number += 1
    return number


def anonymous_bytes(root):
    """Summed over a process and its descendants."""
    children = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(entry.name))
    total, family = 0, [root]
    while family:
        process = family.pop()
        family += children.get(process, [])
        try:
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
    return total


@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [400, 4000])
def test_memory_is_flat_in_the_size_of_the_corpus(tmp_path, megabytes):
    train_wordpiece([text(0)], vocab_size=400).save_pretrained(tmp_path / "tokenizer")
    documents = write_documents(tmp_path / "raw.jsonl", megabytes)
    command = [sys.executable, "-c", "from bert_repro.cli import main; main('prepare_corpus')", "--num_proc", "2"]
    paths = {"input_files": "raw.jsonl", "tokenizer": "tokenizer", "output_dir": "corpus"}
    for flag, name in paths.items():
        command += [f"--{flag}", str(tmp_path / name)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    series = []
    while process.poll() is None:
        series.append(anonymous_bytes(process.pid))
        time.sleep(0.2)
    assert process.returncode == 0
    assert PreparedCorpus.load(tmp_path / "corpus").num_documents == documents
    assert max(series) < LIMIT
    early, late = series[len(series) // 4 : len(series) // 2], series[len(series) // 2 :]
    assert max(late) < 1.1 * max(early)
