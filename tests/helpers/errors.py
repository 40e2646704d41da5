"""Checks a `UserError` by what its reader needs: the values, flags and files that its message must contain."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bert_repro.errors import UserError


@contextmanager
def user_error(*contained: object, setting: str | None = None) -> Iterator[None]:
    """Expects a `UserError` from the block.

        with user_error("--max_seq_length", 512):
            ...

    Args:
        contained: texts, numbers or paths that the message must contain; not its sentences.
        setting: the setting that the error must carry.
    """
    with pytest.raises(UserError) as caught:
        yield
    message = str(caught.value)
    missing = [str(value) for value in contained if str(value) not in message]
    assert not missing, f"{missing} not in the message: {message}"
    if setting is not None:
        assert caught.value.setting == setting
