"""A full disk, for which a limit on the size of files stands in: one line, code 2, and nothing half-written is left."""

import json
import resource
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import stages
from families import families, save_start
from running import TINY

from bert_repro.utils.files import UNFINISHED

TRAIN = "--do_train --do_eval --train_batch_size 8 --bias_correction true --max_steps 2 --save_steps 1"


@pytest.mark.parametrize(
    ("name", "size"),
    [("train_tokenizer", 3_000), ("prepare_corpus", 10_000), ("run_pretraining", 30_000), ("run_squad", 30_000)],
)
def test_a_file_that_cannot_grow_is_one_line(world: Any, tmp_path: Path, name: str, size: int) -> None:
    out = tmp_path / "run"
    arguments: dict[str, list[object]] = {
        "train_tokenizer": ["--input_files", world.text, "--vocab_size 150"],
        "prepare_corpus": ["--input_files", world.text, "--tokenizer", world.tokenizer],
        "run_pretraining": [TINY, "--corpus", world.corpus, "--max_steps 2 --save_steps 1"],
    }
    if name == "run_squad":
        start = save_start(world, tmp_path / "start", dropout=0.1)
        arguments[name] = [*families(world, tmp_path)[name].flags, TRAIN, "--model_name_or_path", start]

    def limit() -> None:
        import datasets

        datasets.config.HF_DATASETS_CACHE = tmp_path / "cache"
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    process = stages.Process(name, *arguments[name], "--output_dir", out, setup=limit)
    output = process.output()
    assert process.wait() == 2 and "Traceback" not in output
    (error,) = [line for line in output.splitlines() if line.startswith("error: ")]
    assert "File too large" in error
    assert not process.has_orphans()
    assert json.loads((out / "status.json").read_text())["code"] == 2
    for path in out.rglob("*"):
        assert not path.name.startswith((*UNFINISHED, "tmp")), path
        if path.suffix == ".safetensors":
            safetensors.torch.load_file(path)
