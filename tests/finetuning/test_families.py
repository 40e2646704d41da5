"""Tagging, multiple choice and custom data through their recipes, from a tiny untrained model."""

import random
from pathlib import Path

from running import recipe, results

FAST = "--do_train --do_eval --bias_correction true --learning_rate 1e-2 --train_batch_size 8"


def write_tags(path: Path, sentences: int, seed: int) -> Path:
    """Whether a word is a THING is in the word itself; documents of four sentences."""
    generator = random.Random(seed)
    things = {"river", "stone", "tree", "house"}
    lines = []
    for number in range(sentences):
        lines += ["", "-DOCSTART- O", ""] if number % 4 == 0 else [""]
        words = generator.choices(["the", "a", "runs", "slowly", "green", *sorted(things)], k=generator.randint(1, 9))
        lines += [f"{word} {'B-THING' if word in things else 'O'}" for word in words]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_tagger_of_ones_own_learns_and_is_scored_alike_again(untrained: Path, tmp_path: Path) -> None:
    train, dev = write_tags(tmp_path / "train.txt", 96, 0), write_tags(tmp_path / "dev.txt", 30, 1)
    own = ["--validation_file", dev, "--test_file", dev, "--max_seq_length 16"]
    first = tmp_path / "first"
    start = ["--model_name_or_path", untrained, "--output_dir", first, "--train_file", train, *own]
    assert recipe("run_ner", *start, FAST, "--do_predict --num_train_epochs 6") == 0
    record = results(first)
    assert record["metrics"]["entity_f1"] > 0.9
    assert record["rows_scored"] == 30
    assert record["splits"]["test"]["metrics"] == record["metrics"]  # a test set with tags is scored as well
    for packing, context in (("true", "tile"), ("false", "tile"), ("true", "centred")):
        again = tmp_path / f"{packing}-{context}"
        settings = ["--do_eval --packing", packing, "--ner_context", context, "--output_dir", again]
        assert recipe("run_ner", "--model_name_or_path", first, *own, *settings) == 0
        if context == "tile":
            assert results(again)["metrics"] == record["metrics"]
        assert (again / "predictions.validation.txt").read_text().count("\n\n") == 30
