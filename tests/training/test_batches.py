"""How the forward passes of a step are loaded."""

import os
from collections.abc import Iterator

import numpy as np
import pytest

from bert_repro.errors import UserError
from bert_repro.training.batches import MicroBatch, Step, even_passes, load_steps


def test_passes_share_a_step_without_remainder() -> None:
    for processes in (1, 2, 3):
        passes = even_passes(np.arange(48), 8, processes)
        shares = [np.concatenate(passes[process::processes]) for process in range(processes)]
        assert [share.tolist() for share in shares] == [
            list(range(process, 48, processes)) for process in range(processes)
        ]
        assert max(map(len, passes)) <= 8


class DamagedSource:
    total_steps, data_fingerprint = 3, {}

    def steps(self, _: object) -> Iterator[Step]:
        yield from [Step([np.arange(8)], {"loss": 8}, 0, {})] * 3

    def load(self, ids: np.ndarray, group: int) -> MicroBatch:
        raise UserError("corpus x is damaged: part-00000.arrow was truncated while in use; prepare it again")


@pytest.mark.parametrize("workers", [0, 1])
def test_wrong_data_is_one_line_whichever_process_finds_it(workers: int) -> None:
    options = {"process": 0, "processes": 1, "num_workers": workers, "pin_memory": False}
    with pytest.raises(UserError, match=r"^corpus x is damaged: .* prepare it again$"):
        next(load_steps(DamagedSource(), None, 3, **options))


class ProcessIdSource:
    """Says in which process its rows were read."""

    total_steps, data_fingerprint = 3, {}

    def steps(self, _: object) -> Iterator[Step]:
        yield from [Step([np.arange(8)], {}, 0, {})] * 3

    def load(self, ids: np.ndarray, group: int) -> MicroBatch:
        return MicroBatch({}, {}, os.getpid())

    def totals(self, ids: np.ndarray, group: int) -> dict[str, int]:
        return {"loss": os.getpid()}


@pytest.mark.parametrize("workers", [0, 1])
def test_rows_are_read_where_batches_are_loaded(workers: int) -> None:
    options = {"process": 0, "processes": 1, "num_workers": workers, "pin_memory": False}
    for step, batches in load_steps(ProcessIdSource(), None, 3, **options):
        assert step.totals["loss"] == batches[0].tokens
        assert (batches[0].tokens == os.getpid()) == (workers == 0)
