"""How a step is cut into forward passes, and how the passes are loaded."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from bert_repro.errors import UserError
from bert_repro.training.batches import MicroBatch, Step, forward_passes, fullest_pass, load_steps


def step(lengths: np.ndarray | None = None, *, batch: int = 48, micro: int = 8, budget: int | None = None) -> Step:
    return Step(np.arange(batch), {"loss": batch}, micro, 0, {}, lengths=lengths, token_budget=budget)


def natural_lengths(batch: int = 48, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return np.where(generator.random(batch) < 0.9, 128, generator.integers(5, 128, batch))


@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("lengths", [None, natural_lengths()], ids=["counted", "by tokens"])
def test_passes_share_a_step_without_remainder(processes: int, lengths: np.ndarray | None) -> None:
    shares = [forward_passes(step(lengths), process, processes) for process in range(processes)]
    assert len({len(passes) for passes in shares}) == 1
    ids = np.concatenate([ids for passes in shares for ids in passes])
    assert sorted(ids) == list(range(48))
    assert max(len(ids) for passes in shares for ids in passes) <= 8


def test_passes_hold_nearly_as_many_tokens_each() -> None:
    lengths = natural_lengths(256)
    passes = [tokens for process in range(4) for tokens in forward_passes(step(lengths, batch=256), process, 4)]
    tokens = [int(lengths[ids].sum()) for ids in passes]
    assert max(tokens) - min(tokens) < 128
    assert max(tokens) == fullest_pass(lengths, 8, 4)


def test_a_step_over_the_budget_takes_one_more_pass_everywhere() -> None:
    lengths = natural_lengths()
    most = fullest_pass(lengths, 8, 2)
    assert [len(forward_passes(step(lengths, budget=most), process, 2)) for process in range(2)] == [3, 3]
    more = [forward_passes(step(lengths, budget=most - 1), process, 2) for process in range(2)]
    assert [len(passes) for passes in more] == [4, 4]
    assert max(lengths[ids].sum() for passes in more for ids in passes) < most
    alone = forward_passes(step(lengths, budget=128), 0, 2)
    assert max(lengths[ids].sum() for ids in alone) <= 128


def test_pinning_reaches_the_tensors_of_a_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[torch.Tensor] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pinned.append(self) or self)
    batch = MicroBatch({"input_ids": torch.zeros(1), "max_length_q": 7}, {"loss": 1}, 1)
    from torch.utils.data._utils.pin_memory import pin_memory

    assert pin_memory((None, [batch]))[1][0] == batch
    assert len(pinned) == 1


class DamagedSource:
    total_steps, data_fingerprint = 3, {}

    def steps(self, _: object) -> Iterator[Step]:
        yield from [step()] * 3

    def load(self, ids: np.ndarray, group: int) -> MicroBatch:
        raise UserError("corpus x is damaged: part-00000.arrow was truncated while in use; prepare it again")


@pytest.mark.parametrize("workers", [0, 1])
def test_wrong_data_is_one_line_whichever_process_finds_it(workers: int) -> None:
    options = {"process": 0, "processes": 1, "num_workers": workers, "prefetch_factor": 2, "pin_memory": False}
    with pytest.raises(UserError, match=r"^corpus x is damaged: .* prepare it again$"):
        next(load_steps(DamagedSource(), None, 3, **options))
