"""A toy run is checked: its batches are rebuilt, its losses recomputed, a corrupted log and another corpus detected."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import TINY, recipe, results

from bert_repro.configs import ReplayConfig, SeenConfig
from bert_repro.corpus.prepared_corpus import PreparedCorpus
from bert_repro.pretraining.dataset import ExampleStream
from bert_repro.reproduction.replay import PublishedRun, open_run, replay, step_at
from bert_repro.reproduction.seen import find_texts, seen

PHASES = "phases:\n- {max_seq_length: 32, steps: 6, batch: 8}\n- {max_seq_length: 64, steps: 6, batch: 4}\n"


@pytest.fixture(scope="module")
def toy(world: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two phases with dropout, several steps a row of the log, and checkpoints of some steps."""
    root = tmp_path_factory.mktemp("replay")
    (root / "phases.yaml").write_text(PHASES)
    shape = "--num_hidden_layers 2 --hidden_size 32 --num_attention_heads 2 --learning_rate 2e-3"
    folder = root / "run"
    flags = ["--config", root / "phases.yaml", shape, "--logging_steps 2 --save_steps 5 --save_total_limit 9"]
    assert recipe("run_pretraining", *flags, "--corpus", world.corpus, "--output_dir", folder) == 0
    return folder


def copy_of(toy: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(toy, tmp_path / "run"))


def change_log(folder: Path, step: int, **values: float) -> None:
    rows = [json.loads(line) for line in (folder / "train_log.jsonl").read_text().splitlines()]
    for row in rows:
        if row["step"] == step and "mlm_loss" in row:
            row.update(values)
    (folder / "train_log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize(
    ("step", "first", "last"),
    [(3, 0, 4), (5, 0, 6), (6, 5, 6), (9, 5, 10), (12, 10, 12)],
)
def test_the_losses_of_a_run_are_recomputed_to_the_bit(world, toy, step, first, last, capsys):
    outcome = replay(ReplayConfig(run=str(toy), corpus=str(world.corpus), step=step))
    assert (outcome.first, outcome.last, outcome.failures) == (first, last, [])
    assert outcome.tolerance == 1e-6 and len(outcome.comparisons) >= 4
    assert max(comparison.difference for comparison in outcome.comparisons) < 1e-9
    out = capsys.readouterr().out
    assert f"step {step}:" in out and "-> " in out and re.search("IsNext|NotNext", out)


def test_a_run_without_checkpoints_is_recomputed_from_its_beginning(world, toy, tmp_path):
    folder = copy_of(toy, tmp_path)
    shutil.rmtree(folder / "checkpoints")
    outcome = replay(ReplayConfig(run=str(folder), corpus=str(world.corpus), step=8))
    assert (outcome.first, outcome.last, outcome.failures) == (0, 8, [])


@pytest.mark.parametrize("change", [{"mlm_loss": 3.0}, {"nsp_loss": 0.6}, {"loss": 4.0}, {"tokens": 999}])
def test_a_corrupted_log_is_code_4(world, toy, tmp_path, change, capsys):
    folder = copy_of(toy, tmp_path)
    change_log(folder, 8, **change)
    arguments = ["--run", folder, "--corpus", world.corpus, "--step 7"]
    assert recipe("replay", *arguments) == 4
    assert f"step 8: {next(iter(change))}" in capsys.readouterr().out


def test_another_corpus_is_detected(world, toy, tmp_path, refused, capsys):
    other = tmp_path / "other"
    text = tmp_path / "text.txt"
    text.write_text(world.text.read_text().replace("river", "stone"))
    arguments = ["--input_files", text, "--tokenizer", world.tokenizer, "--output_dir", other]
    assert recipe("prepare_corpus", *arguments) == 0
    capsys.readouterr()
    line = refused("replay", "--run", toy, "--corpus", other, "--step 7")
    assert str(other) in line and "--corpus" in line
    # Without a checkpoint and without counts the losses tell.
    folder = copy_of(toy, tmp_path)
    shutil.rmtree(folder / "checkpoints")
    content = results(folder)
    del content["data"]
    (folder / "results.json").write_text(json.dumps(content))
    assert recipe("replay", "--run", folder, "--corpus", other, "--step 3") == 4


def test_what_cannot_be_replayed_is_one_line(world, toy, refused, tmp_path):
    assert "--step 99" in refused("replay", "--run", toy, "--corpus", world.corpus, "--step 99")
    assert "--run" in refused("replay", "--run", world.corpus, "--corpus", world.corpus, "--step 1")
    folder = copy_of(toy, tmp_path)
    (folder / "train_log.jsonl").write_text("")
    assert "--step 3" in refused("replay", "--run", folder, "--corpus", world.corpus, "--step 3")


# ------------------------------------------------------------------------------------------------------------- seen


def text_of(corpus: PreparedCorpus, tokenizer: Any, document: int, start: int, length: int) -> str:
    tokens = corpus.gather([corpus.document_starts[document] + start], [length])
    return str(tokenizer.decode(tokens))


def whole_words(published: PublishedRun, document: int, length: int, first: int = 0) -> tuple[int, str]:
    """The first place of a document from where so many tokens are a text that becomes the same tokens again."""
    for start in range(first, first + 40):
        text = text_of(published.corpus, published.tokenizer, document, start, length)
        tokens = published.corpus.gather([published.corpus.document_starts[document] + start], [length])
        if published.tokenizer(text, add_special_tokens=False)["input_ids"] == tokens.tolist():
            return start, text
    raise AssertionError("the document has no such text")


@pytest.mark.parametrize("length", [5, 8, 20])
def test_a_text_is_found_where_it_is_and_read_where_the_run_read_it(world, toy, length, tmp_path):
    published = open_run(str(toy), str(world.corpus))
    source = published.source(tmp_path)
    rows = source.streams[1].rows(step_at(source, 9).ids)
    row = rows[rows["length_a"].argmax()]
    document = int(row["document_a"])
    start, text = whole_words(published, document, length, first=int(row["start_a"]))
    found = seen(SeenConfig(text=text, run=str(toy), corpus=str(world.corpus)))
    assert (document, start) in {(occurrence.document, occurrence.start) for occurrence in found.occurrences}

    # Every step of the run, read as the trainer reads it, and searched for the tokens.
    query = published.tokenizer(text, add_special_tokens=False)["input_ids"]
    expected = []
    for step in range(1, published.total_steps + 1):
        batch = step_at(source, step)
        examples = source.streams[batch.group].read(batch.ids)
        parts = np.split(examples.tokens, np.cumsum(examples.lengths)[:-1])
        for part in parts:
            windows = np.lib.stride_tricks.sliding_window_view(part, len(query)) if len(part) >= len(query) else []
            expected += [step] * sum(np.array_equal(window, query) for window in windows)
    assert sorted(reading.step for reading in found.readings) == sorted(expected)
    assert expected, "the example says something"


def test_a_text_that_is_not_there_is_not_found_and_held_out_texts_are_never_read(world, toy, capsys):
    found = seen(SeenConfig(text="river river river river river river", run=str(toy), corpus=str(world.corpus)))
    assert not found.occurrences and not found.readings
    published = open_run(str(toy), str(world.corpus))
    _, heldout = published.split()
    _, text = whole_words(published, int(heldout[0]), 15)
    capsys.readouterr()
    assert recipe_of_text(text, toy, world.corpus) == 0
    out = capsys.readouterr().out
    assert "1 of them held out" in out and "read completely at 0 step(s)" in out


def recipe_of_text(text: str, run: Path, corpus: Path) -> int:
    """Runs `bert-repro seen "text" ...`, the text without a flag."""
    from bert_repro import cli

    with pytest.raises(SystemExit) as ended:
        cli.main("seen", argv=[text, "--run", str(run), "--corpus", str(corpus)])
    return int(ended.value.code or 0)


def test_the_scan_finds_what_a_plain_search_finds(world):
    corpus = PreparedCorpus.load(world.corpus)
    starts = np.asarray(corpus.document_starts)
    generator = np.random.default_rng(0)
    queries = []
    for length in (1, 3, 7, 8, 9, 30):
        position = int(generator.integers(0, corpus.num_tokens - length))
        document = int(np.searchsorted(starts, position, side="right")) - 1
        length = int(min(length, starts[document + 1] - position))
        queries.append(corpus.gather([position], [length]).astype(np.int64))
    tokens = corpus.gather(starts[:-1], np.diff(starts)).astype(np.int64)
    expected = set()
    for number, query in enumerate(queries):
        for position in range(len(tokens) - len(query) + 1):
            document = int(np.searchsorted(starts, position, side="right")) - 1
            is_inside = position + len(query) <= starts[document + 1]
            if is_inside and np.array_equal(tokens[position : position + len(query)], query):
                expected.add((number, document, position - int(starts[document])))
    found = find_texts(corpus, queries, np.empty(0, dtype=np.int64))
    assert {(place.text, place.document, place.start) for place in found} == expected


def test_dev_texts_of_a_task_are_checked(world, toy, tmp_path, capsys):
    published = open_run(str(toy), str(world.corpus))
    training, _ = published.split()
    glue = Path(shutil.copytree(world.glue, tmp_path / "glue"))
    file = glue / "SST-2" / "dev.tsv"
    _, contained = whole_words(published, int(training[0]), 12)
    lines = file.read_text().splitlines()
    lines[1] = f"{contained}\t1"
    file.write_text("\n".join(lines) + "\n")
    arguments = ["--task_name sst2 --data_dir", glue, "--run", toy, "--corpus", world.corpus]
    assert recipe("seen", *arguments) == 0
    out = capsys.readouterr().out
    assert "1 of 21 texts occur" in out and contained[:40] in out


@pytest.mark.parametrize("flags", ["", "--text a --task_name mrpc", "--text a", "--task_name no"])
def test_what_cannot_be_looked_for_is_one_line(world, toy, refused, flags):
    arguments = ["--run", toy, "--corpus", world.corpus, *flags.split()]
    assert refused("seen", *arguments)


def test_static_examples_are_read_again_in_every_epoch(world, tmp_path):
    flags = "--dupe_factor 1 --max_steps 40 --train_batch_size 16 --logging_steps 20"
    shape = TINY.replace("--train_batch_size 16 ", "").replace(" --logging_steps 1", "")
    assert recipe("run_pretraining", shape, flags, "--corpus", world.corpus, "--output_dir", tmp_path / "run") == 0
    published = open_run(str(tmp_path / "run"), str(world.corpus))
    source = published.source(tmp_path / "index")
    size = len(source.streams[0].indexes.get(0))
    assert isinstance(source.streams[0], ExampleStream) and 2 * size < 40 * 16
    row = source.streams[0].indexes.get(0)[5]
    _, text = whole_words(published, int(row["document_a"]), 6)
    found = seen(SeenConfig(text=text, run=str(tmp_path / "run"), corpus=str(world.corpus)))
    assert len(found.readings) >= 2
