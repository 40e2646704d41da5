import threading
import time

import numpy as np
import pytest
from errors import user_error
from memory_corpus import MemoryCorpus, corpus_of
from scipy import stats

from bert_repro.configs import ExampleConfig
from bert_repro.pretraining.dataset import permute
from bert_repro.pretraining.segment_pairs import EpochIndexes, PairGenerator, PairRules
from bert_repro.utils.files import waiting_lock


@pytest.fixture
def indexes(corpus, tmp_path):
    """Makes indexes of documents 2 to 79; what is given changes."""

    def make(config=None, *, of=corpus, documents=None, folder="", **names) -> EpochIndexes:
        documents = np.arange(2, 80) if documents is None else documents
        config, names = config or ExampleConfig(), {"max_seq_length": 64, "seed": 1, "phase": 0, **names}
        rules = PairRules.of(config, names["max_seq_length"])
        pairs = PairGenerator(of, documents, rules, names["seed"], names["phase"])
        return EpochIndexes(pairs, tmp_path / folder, static_passes=config.dupe_factor)

    return make


def test_an_index_is_reused_only_for_the_same_corpus_and_settings(indexes):
    path = indexes().path(0)
    indexes().get(0)
    stamp = path.stat().st_mtime_ns
    indexes().get(0)
    assert indexes().path(0) == path and path.stat().st_mtime_ns == stamp
    paths = [indexes().path(1)] + [
        indexes(**changes).path(0)
        for changes in (
            {"phase": 1},
            {"seed": 2},
            {"max_seq_length": 32},
            {"documents": np.arange(79)},
            {"config": ExampleConfig(nsp_sampling="original")},
            {"config": ExampleConfig(short_seq_prob=0.2)},
            {"of": corpus_of(80, seed=1)},
        )
    ]
    assert len(set(paths)) == len(paths) and path not in paths
    assert indexes(ExampleConfig(masked_lm_prob=0.3)).path(0) == path


def test_processes_that_need_the_same_index_draw_it_once(indexes, tmp_path, monkeypatch):
    drawn = []
    write = EpochIndexes._write
    monkeypatch.setattr(EpochIndexes, "_write", lambda self, epoch: (drawn.append(epoch), write(self, epoch))[1])
    first, second = indexes(), indexes()
    with waiting_lock(tmp_path):  # as the process that draws has it
        thread = threading.Thread(target=second.get, args=(0,))
        thread.start()
        time.sleep(0.2)
        assert thread.is_alive() and not drawn
        write(first, 0)
    thread.join()
    assert not drawn and np.array_equal(second.get(0), first.get(0))


def test_a_failed_drawing_leaves_nothing(indexes, tmp_path):
    one_token = MemoryCorpus(np.arange(4), np.arange(4), np.arange(4))
    with user_error(setting="corpus"):
        indexes(of=one_token, documents=np.arange(3)).get(0)
    with user_error("1 document", "--next_sentence_prediction false", setting="corpus"):
        indexes(documents=np.arange(1)).get(0)
    assert list(tmp_path.iterdir()) == []


def test_indexes_of_earlier_epochs_can_be_discarded(indexes, tmp_path):
    indexes().get(0)  # left by an earlier run
    indexes(phase=1).get(0)
    current = indexes()
    rows = np.array(current.get(1))
    current.get(2)
    current.discard_before(2)
    names = sorted(path.stem for path in tmp_path.iterdir())
    assert [(name[:6], name[-6:]) for name in names] == [("phase0", "epoch2"), ("phase1", "epoch0")]
    assert np.array_equal(current.get(1), rows)
    assert np.array_equal(indexes().get(1), rows)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100, 101, 65537])
def test_a_permutation_holds_every_row_once(size):
    rows = permute(np.arange(size), size, 4, 0, 1)
    assert np.array_equal(np.sort(rows), np.arange(size))
    assert np.array_equal(permute(np.arange(size)[::3], size, 4, 0, 1), rows[::3])


def test_permutations_are_all_equally_likely_and_leave_no_neighbors():
    orders = [tuple(permute(np.arange(4), 4, 1, 0, epoch)) for epoch in range(4800)]
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert len(counts) == 24 and stats.chisquare(counts).pvalue > 0.001
    rows = permute(np.arange(50000), 50000, 1, 0, 0)
    assert abs(np.corrcoef(rows[:-1], rows[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(rows, np.arange(50000))[0, 1]) < 0.02
