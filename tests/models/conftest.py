"""Tiny models and batches that the tests of the model family share."""

import logging
from typing import Any

import pytest
import torch
import transformers
from tiny_models import NO_DROPOUT

from bert_repro import BertReproConfig

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 24,
    # Wider than BERT's, so that attention is far from uniform and errors show.
    "initializer_range": 0.2,
}


class Tiny:
    """Tiny configurations and batches. A fixture, because test modules cannot import from each other here."""

    sizes = SIZES

    @staticmethod
    def config(**fields: Any) -> BertReproConfig:
        return BertReproConfig(**{**SIZES, **NO_DROPOUT, **fields})

    @staticmethod
    def upstream_config(**fields: Any) -> transformers.BertConfig:
        return transformers.BertConfig(**{**SIZES, **NO_DROPOUT, **fields})

    @staticmethod
    def assert_close(actual: torch.Tensor, expected: torch.Tensor, what: str = "tensor") -> None:
        """The project's tolerance: max |a - b| <= 1e-5 * max(1, max |b|)."""
        assert actual.shape == expected.shape, what
        difference = (actual - expected).abs().max().item()
        assert difference <= 1e-5 * max(1.0, expected.abs().max().item()), f"{what} differs by {difference}"

    @staticmethod
    def batch(lengths: tuple[int, ...] = (11, 7, 2), seed: int = 0) -> dict[str, torch.Tensor]:
        """Right-padded sequences of two segments."""
        generator = torch.Generator().manual_seed(seed)
        shape = (len(lengths), max(lengths))
        positions = torch.arange(shape[1]).expand(shape)
        mask = (positions < torch.tensor(lengths)[:, None]).long()
        return {
            "input_ids": torch.randint(5, SIZES["vocab_size"], shape, generator=generator) * mask,
            "attention_mask": mask,
            "token_type_ids": (positions >= shape[1] // 3).long() * mask,
        }

    @staticmethod
    def masked_labels(batch: dict[str, torch.Tensor], every: int = 3) -> torch.Tensor:
        """Token labels at every third token that is neither the first of its sequence nor padding."""
        positions = torch.arange(batch["input_ids"].shape[-1])
        chosen = (positions % every == 1) & batch["attention_mask"].bool()
        return torch.where(chosen, batch["input_ids"], -100)

    @staticmethod
    def pack(batch: dict[str, torch.Tensor]) -> dict[str, Any]:
        """The same sequences joined. What has the shape of the ids is packed with them, the rest is kept."""
        shape = batch["attention_mask"].shape
        mask = batch["attention_mask"].flatten(0, -2).bool()
        lengths = mask.sum(-1)
        offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
        packed = {
            name: values.flatten(0, -2)[mask].unsqueeze(0) if values.shape == shape else values
            for name, values in batch.items()
            if name != "attention_mask"
        }
        return {
            **packed,
            "position_ids": torch.cat([torch.arange(int(length)) for length in lengths]).unsqueeze(0),
            "cu_seq_lens_q": offsets,
            "cu_seq_lens_k": offsets,
            "max_length_q": int(lengths.max()),
            "max_length_k": int(lengths.max()),
        }


@pytest.fixture
def tiny() -> Tiny:
    return Tiny()


@pytest.fixture
def warnings_logged(caplog: pytest.LogCaptureFixture):
    """A function that lists the warnings that transformers has logged so far in the test."""
    logger = transformers.utils.logging.get_logger("transformers")
    logger.addHandler(caplog.handler)
    before = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_warning()  # recipes run in this process before may have quieted it
    yield lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    transformers.utils.logging.set_verbosity(before)
    logger.removeHandler(caplog.handler)
