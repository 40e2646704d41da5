"""Small models that tests start from."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from bert_repro import BertReproConfig, BertReproForPreTraining


def tiny_bert(world: Any, folder: Path) -> Path:
    """Saves an untrained one-layer BERT with the tokenizer of the tiny world; as a BERT of the Hub would load."""
    torch.manual_seed(0)
    shape = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    BertReproForPreTraining(BertReproConfig(vocab_size=150, **shape)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(world.tokenizer).save_pretrained(folder)
    return folder
