"""Ensembles: scores and predictions are those of logits averaged by hand, with upstream transformers' models."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import families
from running import recipe, results
from tiny_models import save_model, word_tokenizer
from transformers import AutoModelForQuestionAnswering

from bert_repro.configs import SquadConfig
from bert_repro.finetuning import outputs, run
from bert_repro.finetuning.data import encode
from bert_repro.models.loading import load_tokenizer
from bert_repro.tasks import TASKS


def save_member(world: Any, folder: Path, head: str, seed: int, **config: Any) -> Path:
    # Wide initial weights, so that the models disagree.
    return save_model(world, folder, head, seed=seed, **{"num_hidden_layers": 2, "initializer_range": 0.5, **config})


@pytest.fixture(scope="module")
def answering(world: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("answering")
    return [save_member(world, root / str(seed), "ForQuestionAnswering", seed) for seed in range(3)]


@pytest.fixture(scope="module")
def questions(world: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("families")
    families(world, root)
    return root / "squad"


def members(first: Path, *others: Path) -> list[object]:
    return ["--model_name_or_path", first, "--ensemble_with", *others]


def test_answers_are_those_of_logits_averaged_by_hand(answering, questions, tmp_path, monkeypatch):
    """At three windows at once, questions of several windows begin in one chunk and end in the next."""
    monkeypatch.setattr(outputs, "FEATURES_AT_ONCE", 3)
    loaded, load = [], run.load_model
    monkeypatch.setattr(run, "load_model", lambda *given, **more: (loaded.append(given), load(*given, **more))[1])
    command = "--task_name squad --do_eval --max_seq_length 32 --max_query_length 16 --doc_stride 8 --data_dir"
    common = [command, questions, "--output_dir", tmp_path / "run"]
    assert recipe("run_squad", *members(*answering), *common) == 0
    assert len(loaded) == len(answering), "each member once, however many chunks there are"

    tokenizer = load_tokenizer(str(answering[0]))
    lengths = {"max_seq_length": 32, "max_query_length": 16, "doc_stride": 8}
    settings = SquadConfig(model_name_or_path="x", do_eval=True, task_name="squad", **lengths)
    task = TASKS["squad"].prepared(settings, tokenizer)
    dataset = task.load(questions, ["validation"])["validation"]
    features = encode(task, dataset, tokenizer, 32)
    assert len(features) > len(dataset)
    models = [AutoModelForQuestionAnswering.from_pretrained(folder).eval() for folder in answering]
    head_outputs = []
    with torch.no_grad():
        for row in features:
            inputs = {name: torch.tensor([row[name]]) for name in ("input_ids", "token_type_ids")}
            scores = [model(**inputs) for model in models]
            logits = [torch.stack([one.start_logits[0], one.end_logits[0]], dim=1) for one in scores]
            head_outputs.append(np.mean([one.numpy() for one in logits], axis=0, dtype=np.float64).astype(np.float32))
    predictions = task.postprocess(dataset, features, head_outputs)
    written = json.loads((tmp_path / "run" / "predictions.json").read_text())
    assert list(written.values()) == predictions["prediction"]
    assert results(tmp_path / "run")["metrics"] == task.score(predictions, dataset)
    assert results(tmp_path / "run")["settings"]["ensemble_with"] == [str(folder) for folder in answering[1:]]
    nbest = json.loads((tmp_path / "run" / "nbest_predictions.json").read_text())
    for own, by_hand in zip(nbest.values(), predictions["nbest"], strict=True):
        assert own[0]["start_logit"] == pytest.approx(by_hand[0]["start_logit"], abs=1e-4)


def test_what_cannot_be_an_ensemble(world, answering, questions, tmp_path, refused):
    other = save_member(world, tmp_path / "other", "ForQuestionAnswering", 5)
    word_tokenizer("the river").save_pretrained(other)
    short = save_member(world, tmp_path / "short", "ForQuestionAnswering", 6, max_position_embeddings=32)
    headless = save_member(world, tmp_path / "headless", "ForMaskedLM", 7)
    common = ["--task_name squad --max_seq_length 80 --data_dir", questions, "--output_dir", tmp_path / "run"]
    for folders, doing, message in (
        ([answering[0], short], "--do_eval", "--max_seq_length 80 exceeds the 32 positions"),
        ([answering[0], headless], "--do_eval", f"--model_name_or_path {headless} does not contain qa_outputs.bias"),
        ([answering[0], other], "--do_eval", f"--ensemble_with {other} has another tokenizer than {answering[0]}"),
        ([answering[0], tmp_path / "no"], "--do_eval", f"--ensemble_with {tmp_path / 'no'}: no such folder"),
        (answering, "--do_train", "--ensemble_with and --do_train exclude each other"),
    ):
        error = refused("run_squad", *members(*folders), *common, doing)
        assert error.startswith(f"error: {message}")
