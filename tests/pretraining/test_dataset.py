import logging
import pickle
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

from bert_repro.configs import ExampleConfig
from bert_repro.errors import UserError
from bert_repro.pretraining import dataset, sample_index
from bert_repro.pretraining.dataset import ExampleStream, Position
from bert_repro.pretraining.masking import num_predictions
from bert_repro.pretraining.sample_index import EpochPlan
from bert_repro.pretraining.segment_pairs import NOT_NEXT

CLS, SEP = 2, 3


@dataclass
class MemoryCorpus:
    """A corpus in memory: the token at place p of the whole corpus is 10 + p, so a text tells where it comes from."""

    document_starts: np.ndarray
    sentence_starts: np.ndarray
    document_sentences: np.ndarray

    def gather(self, starts, lengths):
        return np.concatenate([np.arange(start, start + n) + 10 for start, n in zip(starts, lengths, strict=True)])


def corpus_of(documents: int, seed: int = 0) -> MemoryCorpus:
    rng = np.random.default_rng(seed)
    lengths = [rng.integers(1, 30, rng.integers(1, 25)) for _ in range(documents)]
    first = np.cumsum([0] + [len(sentences) for sentences in lengths])
    sentences = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    return MemoryCorpus(sentences[first], sentences, first)


@pytest.fixture(scope="module")
def corpus() -> MemoryCorpus:
    return corpus_of(80)


@pytest.fixture
def build(corpus, tmp_path):
    def build(documents=None, config=None, **names):
        names = {"max_seq_length": 64, "seed": 1, "phase": 0, "epoch": 0, "folder": tmp_path, **names}
        documents = np.arange(2, 80) if documents is None else documents
        return EpochPlan.build(corpus, documents, config or ExampleConfig(), **names)

    return build


@pytest.fixture
def open_stream(corpus, tmp_path):
    def open_stream(config=None, folder="plans", **names):
        names = {"max_seq_length": 64, "seed": 1, "phase": 0, **names}
        return ExampleStream(
            corpus,
            np.arange(2, 80),
            config or ExampleConfig(),
            folder=tmp_path / folder,
            cls_token_id=CLS,
            sep_token_id=SEP,
            **names,
        )

    return open_stream


# ----------------------------------------------------------------------------------------------------------- the plan


def test_plan_says_what_it_holds(build, tmp_path):
    plan = build()
    rows, statistics = plan.rows, plan.statistics
    assert len(plan) == len(rows) == statistics.rows > 150
    assert rows.dtype.itemsize == 28
    assert statistics.not_next == (rows["flags"] & NOT_NEXT).sum()
    assert statistics.not_next_share == statistics.not_next / len(plan)
    assert statistics.forced_share == 0
    assert statistics.tokens == (rows["length_a"] + rows["length_b"] + 3).sum() == statistics.mean_length * len(plan)
    assert rows["document_a"].min() >= 2 and rows["document_b"].min() >= 2
    assert [path.suffix for path in tmp_path.iterdir()] == [".plan"]
    released = build(config=ExampleConfig(nsp_sampling="original")).statistics
    assert released.not_next_share > 0.5 and 0 < released.forced_share < released.not_next_share


def test_plan_is_reused_only_for_the_same_settings(build):
    path = build().path
    stamp = path.stat().st_mtime_ns
    assert build().path == path and path.stat().st_mtime_ns == stamp
    others = [{"epoch": 1}, {"phase": 1}, {"seed": 2}, {"max_seq_length": 32}, {"documents": np.arange(79)}]
    others += [{"config": ExampleConfig(nsp_sampling="original")}, {"config": ExampleConfig(short_seq_prob=0.2)}]
    paths = {build(**other).path for other in others}
    assert len(paths) == len(others) and path not in paths
    assert build(config=ExampleConfig(masked_lm_prob=0.3)).path == path


def test_another_corpus_is_another_plan(build, tmp_path):
    names = {"max_seq_length": 64, "seed": 1, "phase": 0, "epoch": 0, "folder": tmp_path}
    other = EpochPlan.build(corpus_of(80, seed=1), np.arange(2, 80), ExampleConfig(), **names)
    assert other.path != build().path


@pytest.mark.parametrize("damage", ["row", "end", "statistics", "header", "version"])
def test_damage_is_found_and_mended(build, damage, caplog):
    plan = build()
    original = plan.path.read_bytes()
    damaged = bytearray(original)
    if damage == "row":
        damaged[5000] ^= 1
    if damage == "end":
        del damaged[-28:]
    if damage == "statistics":
        damaged = bytearray(original.replace(b'"forced": 0', b'"forced": 7'))
    if damage == "header":
        damaged[0:4] = b"\x00\x01\x02\x03"
    if damage == "version":
        damaged = bytearray(original.replace(b'"format_version": 1', b'"format_version": 0'))
    assert damaged != original
    plan.path.write_bytes(damaged)
    with pytest.raises(UserError, match="remove it"):
        EpochPlan.open(plan.path).verify()
    with caplog.at_level(logging.WARNING, logger="bert_repro"):
        build()
    assert "drawing the examples again" in caplog.text
    assert plan.path.read_bytes() == original


def test_a_failed_build_leaves_nothing(corpus, tmp_path):
    one_token = MemoryCorpus(np.arange(4), np.arange(4), np.arange(4))
    names = {"max_seq_length": 64, "seed": 1, "phase": 0, "epoch": 0, "folder": tmp_path}
    with pytest.raises(UserError, match="each has one token"):
        EpochPlan.build(one_token, np.arange(3), ExampleConfig(), **names)
    with pytest.raises(UserError, match="1 document"):
        EpochPlan.build(corpus, np.arange(1), ExampleConfig(), **names)
    with pytest.raises(UserError, match="no such file"):
        EpochPlan.open(tmp_path / "none.plan")
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------------------------------------- the stream


def test_an_epoch_holds_every_example_once_in_no_document_order(open_stream):
    stream = open_stream()
    size = len(stream.plan(0))
    ids, position = stream.take(Position(), size)
    assert position == Position(1, 0)
    assert (ids[:, 0] == 0).all() and np.array_equal(np.sort(ids[:, 1]), np.arange(size))
    assert abs(np.corrcoef(stream.plan(0).rows["document_a"][ids[:, 1]], np.arange(size))[0, 1]) < 0.25


def test_batches_go_on_over_epochs_and_from_any_position(open_stream):
    stream = open_stream()
    sizes = [len(stream.plan(epoch)) for epoch in range(3)]
    whole, _ = stream.take(Position(), sum(sizes))
    assert np.array_equal(whole[:, 0], np.repeat([0, 1, 2], sizes))
    resumed = open_stream(folder="elsewhere")
    parts, position = [], Position()
    while position != Position(3, 0):
        reader = stream if len(parts) < 3 else resumed
        ids, position = reader.take(position, min(70, len(whole) - sum(map(len, parts))))
        parts.append(ids)
    assert np.array_equal(np.concatenate(parts), whole)
    with pytest.raises(UserError, match="resume with the corpus and settings"):
        stream.take(Position(0, sizes[0] + 1), 1)


def test_every_epoch_and_phase_is_fresh(open_stream):
    stream = open_stream()
    spans = [set(stream.plan(epoch).rows.tolist()) for epoch in range(2)]
    assert len(spans[0] & spans[1]) < 0.2 * len(spans[0])
    size = len(stream.plan(0))
    keys = [stream.read(stream.take(Position(epoch), 50)[0]).keys for epoch in range(2)]
    assert not set(keys[0].tolist()) & set(keys[1].tolist())
    other_phase = open_stream(phase=1)
    assert other_phase.plan(0).rows.tolist() != stream.plan(0).rows.tolist()
    assert not np.array_equal(stream.take(Position(0), 50)[0], other_phase.take(Position(0), 50)[0])
    assert size > 150


def test_static_examples_are_several_passes_shuffled_together_and_repeated(open_stream):
    fresh, static = open_stream(), open_stream(ExampleConfig(dupe_factor=3))
    passes = [fresh.plan(number).rows for number in range(3)]
    assert static.plan(0).rows.tolist() == np.concatenate(passes).tolist()
    size = len(static.plan(0))
    first, second = static.take(Position(0), size)[0], static.take(Position(1), size)[0]
    assert not np.array_equal(first, second)
    assert set(map(tuple, first.tolist())) == set(map(tuple, second.tolist()))
    keys = static.read(first).keys
    assert len(set(keys.tolist())) == size and set(static.read(second).keys.tolist()) == set(keys.tolist())
    pass_of = np.searchsorted(np.cumsum([len(rows) for rows in passes]), first[:, 1], side="right")
    assert np.abs(np.bincount(pass_of[: size // 3]) / (size // 3) - 1 / 3).max() < 0.1


def test_read_puts_special_tokens_around_the_text_of_the_plan(open_stream, corpus):
    stream = open_stream()
    ids, _ = stream.take(Position(), 200)
    batch = stream.read(ids)
    assert batch.tokens.dtype == np.int32
    assert np.array_equal(batch.lengths, stream.lengths(ids))
    assert batch.lengths.max() <= 64 and (batch.lengths >= num_predictions(batch.lengths, 0.15, 20) + 3).all()
    assert len(np.unique(batch.keys)) == 200
    sequences = np.split(batch.tokens, np.cumsum(batch.lengths)[:-1])
    rows = stream.plan(0).rows[ids[:, 1]]
    for tokens, row, first, label in zip(sequences, rows, batch.first_lengths, batch.next_sentence_labels, strict=True):
        a = corpus.document_starts[row["document_a"]] + row["start_a"] + np.arange(row["length_a"]) + 10
        b = corpus.document_starts[row["document_b"]] + row["start_b"] + np.arange(row["length_b"]) + 10
        assert tokens.tolist() == [CLS, *a, SEP, *b, SEP]
        assert first == row["length_a"] + 2
        assert label == (row["document_a"] != row["document_b"])


def test_contiguous_text_has_one_segment(open_stream):
    stream = open_stream(ExampleConfig(next_sentence_prediction=False, no_nsp_input="contiguous"))
    ids, _ = stream.take(Position(), 100)
    batch = stream.read(ids)
    assert np.array_equal(batch.first_lengths, batch.lengths) and not batch.next_sentence_labels.any()
    assert batch.lengths.max() <= 64
    for tokens in np.split(batch.tokens, np.cumsum(batch.lengths)[:-1]):
        assert tokens[0] == CLS and tokens[-1] == SEP
        assert (np.diff(tokens[1:-1]) == 1).all() and len(tokens) > 2


class Batches:
    def __init__(self, stream, ids):
        self.stream, self.ids = stream, ids

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, number):
        return self.stream.read(self.ids[number])


def test_examples_do_not_depend_on_the_workers(open_stream):
    stream = open_stream()
    ids = np.split(stream.take(Position(), 160)[0], 10)
    alone = [stream.read(part) for part in ids]
    sent = pickle.loads(pickle.dumps(open_stream()))
    for loader in (
        DataLoader(Batches(stream, ids), batch_size=None, num_workers=2),
        DataLoader(Batches(sent, ids), batch_size=None, num_workers=0),
    ):
        for expected, found in zip(alone, loader, strict=True):
            assert np.array_equal(expected.tokens, found.tokens)
            assert np.array_equal(expected.keys, found.keys)


def test_earlier_plans_can_be_discarded(open_stream, tmp_path):
    left_by_an_earlier_run, other_phase = open_stream(), open_stream(phase=1)
    left_by_an_earlier_run.plan(0)
    other_phase.plan(0)
    stream = open_stream()
    ids, _ = stream.take(Position(1, 5), 20)
    before = stream.read(ids)
    stream.plan(2)
    stream.discard_before(2)
    names = sorted(path.stem for path in (tmp_path / "plans").iterdir())
    assert [(name[:6], name[-6:]) for name in names] == [("phase0", "epoch2"), ("phase1", "epoch0")]
    assert np.array_equal(stream.read(ids).tokens, before.tokens)
    assert np.array_equal(open_stream().read(ids).tokens, before.tokens)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files by /proc")
def test_a_batch_over_many_epochs_of_a_tiny_corpus_keeps_few_files_open(tmp_path):
    stream = ExampleStream(
        corpus_of(2), np.arange(2), ExampleConfig(), max_seq_length=64, seed=1, phase=0, folder=tmp_path,
        cls_token_id=CLS, sep_token_id=SEP,
    )  # fmt: skip
    before = len(list(Path("/proc/self/fd").iterdir()))
    ids, position = stream.take(Position(), 400)
    assert position.epoch > 20 and len(stream.read(ids).lengths) == 400
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 10


# -------------------------------------------------------------------------------------------- plans drawn ahead of need


@pytest.fixture
def drawn_ahead(open_stream, monkeypatch):
    monkeypatch.setattr(dataset, "_WORTH_A_PROCESS", 1)
    stream = open_stream()
    stream.prepare(1)
    yield stream
    stream.stop_preparing()


def test_the_next_epoch_is_drawn_by_another_process(drawn_ahead, open_stream, monkeypatch):
    expected = np.array(open_stream(folder="elsewhere").plan(1).rows)
    process = drawn_ahead._drawing[1]
    drawn_ahead.prepare(1)
    assert drawn_ahead._drawing == {1: process}
    monkeypatch.setattr(sample_index, "PairGenerator", None)  # nothing can be drawn here
    assert np.array_equal(drawn_ahead.plan(1).rows, expected)
    assert process.returncode == 0 and not drawn_ahead._drawing


def test_a_process_that_fails_costs_time_only(drawn_ahead, open_stream):
    drawn_ahead._drawing[1].kill()
    assert np.array_equal(drawn_ahead.plan(1).rows, open_stream(folder="elsewhere").plan(1).rows)


def test_no_process_is_left_or_started_for_little(drawn_ahead, open_stream, monkeypatch):
    process = drawn_ahead._drawing[1]
    drawn_ahead.stop_preparing()
    assert process.poll() is not None and not drawn_ahead._drawing
    monkeypatch.setattr(dataset, "_WORTH_A_PROCESS", 10**6)
    small = open_stream()
    small.prepare(1)
    static = open_stream(ExampleConfig(dupe_factor=2), folder="static")
    static.prepare(1)
    assert not small._drawing and not static._drawing
