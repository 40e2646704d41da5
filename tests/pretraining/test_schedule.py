"""Phases and the settings beside them."""

import pytest

from bert_repro.configs import Phase, PretrainingConfig
from bert_repro.pretraining.schedule import resolve_phases

PHASES = (Phase(32, 10, 8), Phase(64, 5, 4))


@pytest.mark.parametrize(("name", "value"), [("max_seq_length", 16), ("train_batch_size", 2)])
def test_settings_that_phases_have_for_themselves_are_not_ignored_silently(
    name: str, value: int, caplog: pytest.LogCaptureFixture
) -> None:
    config = PretrainingConfig(corpus="c", output_dir="o", phases=PHASES, **{name: value})
    assert [phase.max_seq_length for phase in resolve_phases(config, 1)] == [32, 64]
    assert f"--{name} {value}" in caplog.text


def test_phases_alone_give_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    resolve_phases(PretrainingConfig(corpus="c", output_dir="o", phases=PHASES), 1)
    assert not caplog.text
