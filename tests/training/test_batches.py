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


class Source:
    """Says in which process its rows were read, unless they are damaged."""

    total_steps, data_fingerprint = 3, {}

    def __init__(self, damaged: bool) -> None:
        self.damaged = damaged

    def steps(self, _: object) -> Iterator[Step]:
        yield from [Step([np.arange(8)], 0, {})] * 3

    def load(self, ids: np.ndarray, group: int) -> MicroBatch:
        if self.damaged:
            raise UserError("corpus x is damaged: part-00000.arrow was truncated while in use; prepare it again")
        return MicroBatch({}, {}, os.getpid())

    def totals(self, ids: np.ndarray, group: int) -> dict[str, int]:
        return {"loss": os.getpid()}


@pytest.mark.parametrize("workers", [0, 1])
def test_rows_are_read_where_batches_are_loaded_and_wrong_data_is_one_line(workers: int) -> None:
    options = {"process": 0, "processes": 1, "num_workers": workers, "pin_memory": False}
    for step, batches in load_steps(Source(damaged=False), None, 3, **options):
        assert step.totals["loss"] == batches[0].tokens
        assert (batches[0].tokens == os.getpid()) == (workers == 0)
    with pytest.raises(UserError, match=r"^corpus x is damaged: .* prepare it again$"):
        next(load_steps(Source(damaged=True), None, 3, **options))
