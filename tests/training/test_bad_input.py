"""Bad input: one clear line that names the place, the value and the fix; exit code 2; nothing saved is harmed."""

import fcntl
import os

import pytest
from running import SHORT, TINY
from tiny_models import save_model


@pytest.fixture
def pretrain(world, tmp_path) -> list[object]:
    return ["run_pretraining", TINY, "--corpus", world.corpus, "--output_dir", tmp_path / "out", "--max_steps 1"]


def test_vocabulary_smaller_than_the_ids(world, refused, tmp_path):
    small = save_model(world, tmp_path / "small", "ForPreTraining", vocab_size=20)
    line = refused(
        *("run_pretraining", SHORT, "--corpus", world.corpus, "--output_dir", tmp_path / "out"),
        *("--max_steps 1", "--model_name_or_path", small),
    )
    assert "20" in line and "150" in line


def test_an_output_folder_of_another_run_is_left_alone(pretrained, pretrain, refused):
    before = {path: path.stat().st_mtime_ns for path in pretrained.rglob("*") if path.is_file()}
    line = refused(*pretrain, "--output_dir", pretrained)
    assert all(part in line for part in ("not empty", "--overwrite_output_dir", "--resume_from_checkpoint"))
    assert {path: path.stat().st_mtime_ns for path in pretrained.rglob("*") if path.is_file()} == before


def test_a_folder_that_another_run_is_writing_is_refused_and_left_alone(pretrain, refused, tmp_path):
    output = tmp_path / "run"
    output.mkdir()
    (output / "model.safetensors").write_bytes(b"of the other run")
    other_run = os.open(output, os.O_RDONLY)
    fcntl.flock(other_run, fcntl.LOCK_EX)
    line = refused(*pretrain, "--output_dir", output, "--overwrite_output_dir true")
    os.close(other_run)
    assert str(output) in line and "another run" in line
    assert [path.name for path in output.iterdir()] == ["model.safetensors"]
