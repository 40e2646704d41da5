"""How fast one process makes pre-training data, and how much memory that takes as the corpus grows.

    python benchmarks/data_pipeline.py                 # about two minutes
    python benchmarks/data_pipeline.py --corpus runs/corpus

Masking and batching: sequences of 128 tokens a second, from the unmasked tokens to the tensors of a forward pass,
beside transformers' MLM collator on the same sequences. Slicing them from the corpus is timed apart, and together.
Pairs: examples a second drawn from the boundaries of documents and sentences, beside the 12,300 a second that the
original implementation makes of text that is tokenized already (measured once on this kind of machine, one thread).
Memory: most anonymous memory while a sample index is drawn, on corpora eight times as large as each other.
"""

import argparse
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from side_by_side import corpora, results_file, timing

from bert_repro.configs import ExampleConfig
from bert_repro.pretraining.dataset import ExampleStream, Position
from bert_repro.pretraining.masking import DataCollatorForBertPreTraining
from bert_repro.pretraining.sample_index import EpochIndexes
from bert_repro.pretraining.segment_pairs import PairGenerator, PairRules

LENGTH, MOST_PREDICTIONS, BATCHES = 128, 20, (32, 256)
ORIGINAL_EXAMPLES_PER_SECOND = 12_300
GOALS = {"masking_and_batching": 200_000, "pairs": 10 * ORIGINAL_EXAMPLES_PER_SECOND}


def main(arguments: list[str] | None = None) -> Path:
    """Measures, prints, and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", help="a prepared corpus; default: a made-up one of natural lengths")
    parser.add_argument("--documents", type=int, default=3000, help="of the made-up corpus")
    parser.add_argument("--seconds", type=float, default=1.0, help="of an iteration")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--memory_documents", type=int, default=16_000, help="of the smaller corpus for memory")
    parser.add_argument("--results", type=Path, default=results_file.RESULTS)
    options = parser.parse_args(arguments)
    spec = {name: getattr(options, name) for name in ("corpus", "documents", "seconds")}
    workloads: dict[str, tuple[timing.Workload, Any]] = {
        f"{name}, {batch} at a time": (repeat, {**spec, "work": name, "batch": batch})
        for batch in BATCHES
        for name in ("masked and packed", "masked and padded", "sliced", "sliced, masked and packed")
    }
    workloads["transformers' collator, 32 at a time"] = (repeat, {**spec, "work": "transformers", "batch": 32})
    workloads |= {f"pairs, {mode}": (pairs, {**spec, "sampling": mode}) for mode in ("paper", "original")}
    speeds = {
        name: timing.speeds(iterations)
        for name, iterations in timing.compare(workloads, options.repeats, threads=1).items()
    }
    for name, row in speeds.items():
        print(f"{name:45} {results_file.summary(row['per_second'], 0)} a second")
    memory = [memory_of_an_index(options.memory_documents * factor) for factor in (1, 8)]
    for row in memory:
        print(f"index of {row['tokens']:,} tokens: {row['mebibytes']:.0f} MiB, {row['seconds']:.1f} s")
    content = {
        "speeds": speeds, "memory": memory, "goals": GOALS, "corpus": corpora.load(options.corpus, 10)[3],
        "original_implementation_per_second": ORIGINAL_EXAMPLES_PER_SECOND,
        "pairs_over_original_implementation": (
            speeds["pairs, paper"]["per_second"]["median"] / ORIGINAL_EXAMPLES_PER_SECOND
        ),
    }  # fmt: skip
    return results_file.write("data_pipeline", "cpu", 1, content, options.results)


def repeat(spec: dict[str, Any], report: Callable[..., None]) -> None:
    """A workload: one kind of work on batch after batch; sequences a second."""
    with tempfile.TemporaryDirectory() as folder:
        work, batch = batch_work(spec, folder), spec["batch"]
        while True:
            done, began, number = 0, time.perf_counter(), 0
            while time.perf_counter() - began < spec["seconds"]:
                work(number)
                done, number = done + batch, number + 1
            report(done)


def batch_work(spec: dict[str, Any], folder: str) -> Callable[[int], Any]:
    """What is repeated, as a function of the number of the batch."""
    corpus, documents, tokenizer, _ = corpora.load(spec["corpus"], spec["documents"])
    stream = ExampleStream(
        corpus, documents, ExampleConfig(), max_seq_length=LENGTH, seed=0, phase=0, folder=folder,
        cls_token_id=tokenizer.cls_token_id, sep_token_id=tokenizer.sep_token_id,
    )  # fmt: skip
    ids, _ = stream.take(Position(0, 0), 16 * spec["batch"])
    parts = np.split(ids, 16)
    if spec["work"] == "sliced":
        return lambda number: stream.read(parts[number % 16])
    ready = [stream.read(part) for part in parts]
    if spec["work"] == "transformers":
        from side_by_side.baselines import features
        from transformers import DataCollatorForLanguageModeling

        rows, theirs = [features(examples) for examples in ready], DataCollatorForLanguageModeling(tokenizer)
        return lambda number: theirs([dict(row) for row in rows[number % 16]])
    collate = DataCollatorForBertPreTraining(
        tokenizer,
        max_predictions_per_seq=MOST_PREDICTIONS,
        packing=spec["work"].endswith("packed"),
        return_prediction_positions=True,
    )
    if spec["work"].startswith("sliced"):
        return lambda number: collate(stream.read(parts[number % 16]))
    return lambda number: collate(ready[number % 16])


def pairs(spec: dict[str, Any], report: Callable[..., None]) -> None:
    """A workload: all pairs of an epoch, epoch after epoch; examples a second."""
    corpus, documents, _, _ = corpora.load(spec["corpus"], spec["documents"])
    rules = PairRules.of(ExampleConfig(nsp_sampling=spec["sampling"]), LENGTH)
    epoch = 0
    while True:
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < spec["seconds"]:
            done += sum(len(block) for block in PairGenerator(corpus, documents, rules, 0, 0).blocks(epoch))
            epoch += 1
        report(done)


def memory_of_an_index(documents: int) -> dict[str, float]:
    """Tokens of a corpus, and the anonymous memory that drawing its index adds at most, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        tokens = corpora.write_boundaries(folder, documents)
        taken = timing.run_once(draw_index, folder, threads=1)
    return {"documents": documents, "tokens": tokens, "seconds": taken.seconds, **taken.metrics}


def draw_index(folder: str, report: Callable[..., None]) -> None:
    """A workload: draws the sample index of one epoch from boundaries on disk."""
    arrays = {path.stem: np.load(path, mmap_mode="r") for path in Path(folder).glob("*.npy")}
    before = anonymous_mebibytes()
    most, over = [before], threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            most.append(anonymous_mebibytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    documents = np.arange(len(arrays["document_starts"]) - 1)
    rules = PairRules.of(ExampleConfig(), LENGTH)
    made = EpochIndexes(PairGenerator(SimpleNamespace(**arrays), documents, rules, 0, 0), Path(folder)).get(0)
    over.set()
    watcher.join()
    report(len(made), mebibytes=max(most) - before)


def anonymous_mebibytes() -> float:
    """Memory of this process that is no file's."""
    status = Path(f"/proc/{os.getpid()}/status").read_text()
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found, "Linux only"
    return int(found[1]) / 1024


if __name__ == "__main__":
    main()
