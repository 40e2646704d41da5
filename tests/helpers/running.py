"""Runs recipes in this process, through the entry point that their scripts call."""

import json
from pathlib import Path
from typing import Any

import pytest

from bert_repro import cli

TINY = "--num_hidden_layers 2 --hidden_size 32 --num_attention_heads 2 --max_seq_length 64 --train_batch_size 16 "
TINY += "--learning_rate 2e-3 --max_eval_sequences 32 --logging_steps 1"


def recipe(name: str, *arguments: object) -> int:
    with pytest.raises(SystemExit) as raised:
        cli.main(name, argv=[part for argument in arguments for part in str(argument).split(" ")])
    return int(raised.value.code or 0)


def results(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return content
