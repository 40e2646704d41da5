"""Features in files equal those of upstream transformers, text by text."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from errors import user_error
from running import recipe
from tiny_models import NARROW, save_model
from transformers import AutoModel, AutoTokenizer

from bert_repro.inference.loaded_model import read_texts

TEXTS = ["the river runs slowly", "", "a bright stone", "green " * 40, "never under the glass"]
LENGTH = 24


@pytest.fixture(scope="module")
def model(world: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = {**NARROW, "num_hidden_layers": 3}
    return save_model(world, tmp_path_factory.mktemp("model"), "ForPreTraining", **shape)


def expected(model: Path) -> list[list[torch.Tensor]]:
    """All hidden states of each text, by upstream transformers."""
    upstream, tokenizer = AutoModel.from_pretrained(model).eval(), AutoTokenizer.from_pretrained(model)
    inputs = [tokenizer(text, truncation=True, max_length=LENGTH, return_tensors="pt") for text in TEXTS]
    with torch.no_grad():
        return [[state[0] for state in upstream(**one, output_hidden_states=True).hidden_states] for one in inputs]


@pytest.mark.parametrize(
    ("layers", "wanted"),
    [
        ("last", lambda states: states[3]),
        ("-2 -1", lambda states: torch.cat([states[2], states[3]], dim=-1)),
        ("embeddings last", lambda states: torch.cat([states[0], states[3]], dim=-1)),
        ("all", lambda states: torch.cat(states[1:], dim=-1)),
    ],
)
def test_parquet_has_a_row_for_each_text(model, tmp_path, layers, wanted):
    source, target = tmp_path / "texts.txt", tmp_path / "f.parquet"
    source.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    sizes = f"--per_device_eval_batch_size 2 --max_seq_length {LENGTH} --layers {layers}"
    files = ["--model_name_or_path", model, "--input_file", source, "--output_file", target]
    assert recipe("extract_features", *files, sizes) == 0
    table = pyarrow.parquet.read_table(target)
    assert table.num_rows == len(TEXTS)
    for row, states in zip(table.to_pylist(), expected(model), strict=True):
        assert np.allclose(row["features"], wanted(states), atol=1e-5)
        assert len(row["tokens"]) == len(row["features"]) <= LENGTH
        assert (row["tokens"][0], row["tokens"][-1]) == ("[CLS]", "[SEP]")
    assert json.loads(table.schema.metadata[b"bert_repro"])["model"] == str(model)


def test_texts_are_lines_or_the_column_of_a_table(tmp_path):
    lines, table, rows = tmp_path / "texts.txt", tmp_path / "texts.csv", tmp_path / "texts.jsonl"
    lines.write_text("\n".join(TEXTS) + "\n")
    table.write_text("id,body\n" + "".join(f"{number},{text}\n" for number, text in enumerate(TEXTS)))
    rows.write_text("".join(json.dumps({"body": text}) + "\n" for text in TEXTS))
    assert list(read_texts(lines, "body")) == list(read_texts(table, "body")) == list(read_texts(rows, "body")) == TEXTS
    packed = tmp_path / "texts.csv.gz"
    packed.write_bytes(gzip.compress(table.read_bytes()))
    assert list(read_texts(packed, "body")) == TEXTS
    with user_error("'text'", "id, body", "--text_column"):
        list(read_texts(table, "text"))
