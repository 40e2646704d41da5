"""Tagging of custom files through its recipe, from a tiny untrained model."""

from pathlib import Path
from typing import Any

from families import families
from running import recipe, results

FAST = "--do_train --do_eval --bias_correction true --learning_rate 1e-2 --train_batch_size 8"


def test_a_tagger_of_ones_own_learns_and_is_scored_alike_again(world: Any, untrained: Path, tmp_path: Path) -> None:
    rows = families(world, tmp_path)["run_ner"].rows
    train, dev = (tmp_path / "ner" / name for name in ("eng.train", "eng.testa"))
    own = ["--validation_file", dev, "--test_file", dev, "--max_seq_length 16"]
    first = tmp_path / "first"
    start = ["--model_name_or_path", untrained, "--output_dir", first, "--train_file", train, *own]
    assert recipe("run_ner", *start, FAST, "--do_predict --num_train_epochs 6") == 0
    record = results(first)
    assert record["metrics"]["entity_f1"] > 0.9
    assert record["rows_scored"] == rows
    assert record["splits"]["test"]["metrics"] == record["metrics"]  # a test set with tags is scored as well
    for packing in ("true", "false"):
        again = tmp_path / packing
        settings = ["--do_eval --packing", packing, "--output_dir", again]
        assert recipe("run_ner", "--model_name_or_path", first, *own, *settings) == 0
        assert results(again)["metrics"] == record["metrics"]
        assert (again / "predictions.validation.txt").read_text().count("\n\n") == rows
