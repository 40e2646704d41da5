"""A tokenizer that tests of tasks can read: word n of the words 0 to 99 has id n + 5."""

import pytest
from tiny_models import word_tokenizer
from transformers import PreTrainedTokenizerFast


@pytest.fixture(scope="session")
def numbers() -> PreTrainedTokenizerFast:
    tokenizer = word_tokenizer(" ".join(map(str, range(100))))
    # What some published tokenizer.json files say must not decide how long our inputs are.
    tokenizer.backend_tokenizer.enable_truncation(3)
    tokenizer.backend_tokenizer.enable_padding(length=4)
    return tokenizer
