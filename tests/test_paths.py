"""Paths in settings: the home folder, URLs, devices, and a vocabulary as a file."""

import os
from pathlib import Path

from errors import user_error

from bert_repro import configs
from bert_repro.arguments import parse
from bert_repro.configs import CorpusConfig, GlueConfig, PredictConfig, TokenizerConfig


def test_a_url_is_refused_where_only_a_local_path_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for config in (
        GlueConfig(model_name_or_path="org/m", do_eval=True, task_name="rte", output_dir="s3://bucket/run"),
        CorpusConfig(input_files=("s3://bucket/a.txt",), tokenizer="org/t", output_dir="s3://bucket/run"),
    ):
        with user_error("--output_dir s3://bucket/run", setting="output_dir"):
            configs.require_paths(config)
    with user_error("--model_name_or_path s3://bucket/m", setting="model_name_or_path"):
        configs.require_paths(GlueConfig(model_name_or_path="s3://bucket/m", do_eval=True, task_name="rte"))
    configs.require_paths(TokenizerConfig(input_files=("s3://bucket/a.txt",), output_dir="tokenizer"))
    assert list(tmp_path.iterdir()) == []


def test_the_home_folder_is_meant_by_a_tilde_also_in_yaml(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "run.yaml").write_text("output_dir: ~/tokenizer\ninput_files: [~/a.txt, b.txt]\n")
    config = parse(TokenizerConfig, ["--config", str(tmp_path / "run.yaml")])
    assert config.output_dir == f"{tmp_path}/tokenizer" and config.input_files == (f"{tmp_path}/a.txt", "b.txt")


def test_a_tokenizer_may_be_a_vocabulary_file(world, tmp_path):
    vocab_file = Path(tmp_path / "vocab.txt")
    vocab_file.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n")
    text = str(world.text)
    configs.require_paths(CorpusConfig(input_files=(text,), tokenizer=str(vocab_file), output_dir=str(tmp_path / "c")))
    with user_error(vocab_file, setting="model_name_or_path"):
        configs.require_paths(GlueConfig(model_name_or_path=str(vocab_file), do_eval=True, task_name="rte"))


def test_devices_and_pipes_may_be_outputs_and_files_may_not_be_replaced(tmp_path):
    new_texts, taken = tmp_path / "new.txt", tmp_path / "taken.csv"
    new_texts.write_text("A text.")
    taken.write_text("")
    os.mkfifo(tmp_path / "pipe")
    options = {"model_name_or_path": "org/m", "input_file": str(new_texts)}
    for place in ("/dev/null", "/dev/stdout", str(tmp_path / "pipe"), str(tmp_path / "new.csv")):
        configs.require_paths(PredictConfig(**options, output_file=place))
    with user_error(taken, "--overwrite_output_file", setting="output_file"):
        configs.require_paths(PredictConfig(**options, output_file=str(taken)))
