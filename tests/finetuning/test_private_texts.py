"""A training text of one's own data is on the card and in results.json only if a flag asks for it."""

from pathlib import Path

import pytest
from running import recipe, results

SECRET = "the quiet stone sings for customer Okonkwo"


@pytest.mark.parametrize("is_shown", [False, True])
def test_a_training_text_is_shown_only_on_request(tmp_path: Path, pretrained: Path, is_shown: bool) -> None:
    rows = "".join(f"{SECRET},{label}\n" for label in ("a", "b", "a", "b"))
    (tmp_path / "train.csv").write_text("text,label\n" + rows)
    flags = ["--example_from_data", "true"] if is_shown else []
    code = recipe(
        "run_glue", "--model_name_or_path", pretrained, "--train_file", tmp_path / "train.csv", "--max_steps", 1,
        "--train_batch_size", 2, "--output_dir", tmp_path / "run", *flags,
    )  # fmt: skip
    assert code == 0
    assert ("example" in results(tmp_path / "run")["data"]) is is_shown
    for name in ("README.md", "results.json"):
        assert (SECRET in (tmp_path / "run" / name).read_text("utf-8")) is is_shown
