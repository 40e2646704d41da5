"""A tokenizer that tests of tasks can read: word n of the words 0 to 99 has id n + 5."""

import pytest
from tiny_models import SPECIAL
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


@pytest.fixture(scope="session")
def numbers() -> PreTrainedTokenizerFast:
    vocabulary = {word: index for index, word in enumerate([*SPECIAL, *map(str, range(100))])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # What some published tokenizer.json files say must not decide how long our inputs are.
    backend.enable_truncation(3)
    backend.enable_padding(length=4)
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]")
