"""Small models that tests start from."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, BertTokenizer

import bert_repro
from bert_repro import BertReproConfig

SHAPE = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
NARROW = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def save_model(world: Any, folder: Path, head: str = "ForMaskedLM", *, seed: int = 0, **fields: Any) -> Path:
    """Saves an untrained model of one layer with the tokenizer of the tiny world; as a BERT of the Hub would load."""
    torch.manual_seed(seed)
    config = BertReproConfig(**{"vocab_size": 150, **SHAPE, **fields})
    getattr(bert_repro, f"BertRepro{head}")(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(world.tokenizer).save_pretrained(folder)
    return folder


def word_tokenizer(text: str) -> BertTokenizer:
    """A tokenizer that knows the special tokens and each word of a text."""
    return BertTokenizer(vocab={word: number for number, word in enumerate([*SPECIAL, *dict.fromkeys(text.split())])})


def word_model(tokenizer: BertTokenizer, head: str, *, seed: int = 0, **fields: Any) -> Any:
    """A random narrow model for such a tokenizer."""
    torch.manual_seed(seed)
    config = BertReproConfig(**{"vocab_size": len(tokenizer), "max_position_embeddings": 48, **NARROW, **fields})
    return getattr(bert_repro, f"BertRepro{head}")(config).eval()
