import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from errors import user_error

from bert_repro.configs import ExampleConfig
from bert_repro.pretraining.dataset import ExampleStream, Position, balanced_passes
from bert_repro.pretraining.masking import num_predictions

CLS, SEP = 2, 3


@pytest.fixture
def open_stream(corpus, tmp_path):
    def open_stream(config=None, folder="indexes", **names):
        names = {"max_seq_length": 64, "seed": 1, "phase": 0, **names}
        documents, ids = np.arange(2, 80), SimpleNamespace(cls_token_id=CLS, sep_token_id=SEP)
        return ExampleStream(corpus, documents, config or ExampleConfig(), ids, folder=tmp_path / folder, **names)

    return open_stream


def test_batches_continue_over_epochs_and_from_any_position(open_stream):
    stream = open_stream()
    sizes = [len(stream.indexes.get(epoch)) for epoch in range(3)]
    every, _ = stream.take(Position(), sum(sizes))
    assert np.array_equal(every[:, 0], np.repeat([0, 1, 2], sizes))
    assert np.array_equal(np.sort(every[: sizes[0], 1]), np.arange(sizes[0]))
    resumed = pickle.loads(pickle.dumps(open_stream(folder="elsewhere")))  # as a worker gets it
    parts, position = [], Position()
    while position != Position(3, 0):
        reader = stream if len(parts) < 3 else resumed
        ids, position = reader.take(position, min(70, len(every) - sum(map(len, parts))))
        parts.append(ids)
    assert np.array_equal(np.concatenate(parts), every)
    with user_error(sizes[0] + 1, sizes[0]):
        stream.take(Position(0, sizes[0] + 1), 1)


def test_static_examples_are_several_passes_shuffled_together_and_repeated(open_stream):
    fresh, static = open_stream(), open_stream(ExampleConfig(dupe_factor=3))
    passes = [fresh.indexes.get(number) for number in range(3)]
    assert static.indexes.get(0).tolist() == np.concatenate(passes).tolist()
    size = len(static.indexes.get(0))
    first, second = static.take(Position(0), size)[0], static.take(Position(1), size)[0]
    assert not np.array_equal(first, second)
    assert set(map(tuple, first.tolist())) == set(map(tuple, second.tolist()))
    keys = static.read(first).keys
    assert len(set(keys.tolist())) == size and set(static.read(second).keys.tolist()) == set(keys.tolist())
    pass_of = np.searchsorted(np.cumsum([len(rows) for rows in passes]), first[:, 1], side="right")
    assert np.abs(np.bincount(pass_of[: size // 3]) / (size // 3) - 1 / 3).max() < 0.1


@pytest.mark.parametrize("settings", [{}, {"next_sentence_prediction": False, "no_nsp_input": "contiguous"}], ids=str)
def test_read_puts_special_tokens_around_the_text_of_the_index(open_stream, corpus, settings):
    stream = open_stream(ExampleConfig(**settings))
    ids, _ = stream.take(Position(), 200)
    batch = stream.read(ids)
    assert batch.tokens.dtype == np.int32
    assert np.array_equal(batch.lengths, stream.lengths(ids))
    assert batch.lengths.max() <= 64 and (batch.lengths >= num_predictions(batch.lengths, 0.15, 20) + 3).all()
    assert len(np.unique(batch.keys)) == 200
    sequences = np.split(batch.tokens, np.cumsum(batch.lengths)[:-1])
    rows = stream.indexes.get(0)[ids[:, 1]]
    for tokens, row, first, label in zip(sequences, rows, batch.first_lengths, batch.next_sentence_labels, strict=True):
        a = corpus.document_starts[row["document_a"]] + row["start_a"] + np.arange(row["length_a"]) + 10
        b = corpus.document_starts[row["document_b"]] + row["start_b"] + np.arange(row["length_b"]) + 10
        assert tokens.tolist() == [CLS, *a, SEP, *([] if settings else [*b, SEP])]
        assert first == row["length_a"] + 2
        assert label == (row["document_a"] != row["document_b"])


def natural_lengths(batch: int = 48) -> np.ndarray:
    generator = np.random.default_rng(0)
    return np.where(generator.random(batch) < 0.9, 128, generator.integers(5, 128, batch))


def test_passes_share_a_step_without_remainder_and_with_nearly_as_many_tokens_each() -> None:
    for batch, processes in ((48, 1), (48, 3), (256, 4)):
        lengths = natural_lengths(batch)
        passes = balanced_passes(np.arange(batch), lengths, 8, processes)
        assert len(passes) % processes == 0 and max(map(len, passes)) <= 8
        assert sorted(np.concatenate(passes)) == list(range(batch))
        tokens = [int(lengths[ids].sum()) for ids in passes]
        assert max(tokens) - min(tokens) < 128
