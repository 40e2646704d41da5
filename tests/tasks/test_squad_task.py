"""SQuAD as a task: features, batches, losses, and complete runs through the recipe's entry point."""

import itertools
import json
import random
from dataclasses import replace
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
import torch
from errors import user_error
from running import recipe
from tiny_models import save_model, word_model

from bert_repro.configs import SquadConfig
from bert_repro.finetuning.data import encode
from bert_repro.models.loading import load_tokenizer
from bert_repro.tasks import TASKS, configured_task
from bert_repro.tasks.squad_task import SQUAD, SQUAD_V2
from bert_repro.tasks.squad_windows import NO_ANSWER, UNFOUND

LENGTH, QUERY, STRIDE = 24, 8, 5
NAMES = "river stone bird light tree house".split()


def squad_data(questions, unanswerable, seed=0):
    """Questions that the word after "often" answers; v2.0 also asks of passages that have no such word."""
    generator = random.Random(seed)
    paragraphs = []
    for number in range(questions):
        words = generator.choices("the a green quiet small old bright runs sings grows over near with".split(), k=12)
        answers = []
        if not unanswerable or number % 2 == 0:
            name, place = generator.choice(NAMES), generator.randrange(1, 10)
            words[place:place] = ["often", name]
            answers = [{"text": name, "answer_start": len(" ".join(words[: place + 1])) + 1}]
        context = " ".join(words).capitalize() + "."
        question = {"id": f"q{seed}-{number}", "question": "Often near?", "answers": answers}
        paragraphs.append({"context": context, "qas": [question]})
    return {"version": "x", "data": [{"title": "x", "paragraphs": paragraphs}]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("squad")
    for version, unanswerable in (("1.1", False), ("2.0", True)):
        for split, questions, seed in (("train", 96, 1), ("dev", 30, 2)):
            path = folder / f"{split}-v{version}.json"
            path.write_text(json.dumps(squad_data(questions, unanswerable, seed)), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def tokenizer(world):
    return load_tokenizer(world.tokenizer)


def prepared(tokenizer, name="squad", **changes):
    lengths = {"max_seq_length": LENGTH, "max_query_length": QUERY, "doc_stride": STRIDE}
    return TASKS[name].prepared(SquadConfig(model_name_or_path="x", do_eval=True, **lengths | changes), tokenizer)


def rows(**columns):
    return datasets.Dataset.from_dict(columns)


@pytest.fixture
def long_passage():
    context = "The old house by the river fell. " * 3 + "Often a bird sings near the green stone."
    answers = [{"text": ["bird"], "answer_start": [context.index("bird")]}]
    question = "What sings near the stone, and how often, and why?"
    return rows(id=["q"], question=[question], context=[context], answers=answers)


def test_windows_carry_question_passage_and_target(tokenizer, long_passage):
    features = encode(prepared(tokenizer), long_passage, tokenizer, LENGTH)
    pieces = tokenizer(long_passage[0]["context"], add_special_tokens=False)["input_ids"]
    answer = tokenizer("bird", add_special_tokens=False)["input_ids"]
    assert features["window"][:] == list(range(len(features))) and len(features) > 3
    assert all(features["truncated"][:])
    seen = 0
    for row in features:
        ids, start = row["input_ids"], row["window_start"]
        assert row["length"] == len(ids) <= LENGTH and row["passage_at"] == QUERY + 2
        assert ids[0] == tokenizer.cls_token_id and ids[-1] == ids[QUERY + 1] == tokenizer.sep_token_id
        passage = ids[QUERY + 2 : -1]
        assert passage == pieces[start : start + len(passage)] and start == row["window"] * STRIDE
        assert row["token_type_ids"] == [0] * (QUERY + 2) + [1] * (len(passage) + 1)
        first, last = row["labels"]
        if (first, last) != NO_ANSWER:
            seen += 1
            assert ids[first : last + 1] == answer
    assert 0 < seen < len(features)


def test_questions_without_their_answer_are_dropped_from_training_only(tokenizer, caplog):
    answers = [{"text": ["bird"], "answer_start": [4]}, {"text": ["stone"], "answer_start": [4]}]
    dataset = rows(id=["a", "b"], question=["Who?"] * 2, context=["The bird sings."] * 2, answers=answers)
    task = prepared(tokenizer)
    features = encode(task, dataset, tokenizer, LENGTH)
    assert features[1]["labels"] == list(UNFOUND)
    with caplog.at_level("WARNING", logger="bert_repro"):
        kept = task.training_features(features)
    assert len(kept) == 1 and len(features) == 2
    assert "1 training questions are left out" in caplog.text
    with user_error("squad", "answer_start", setting="do_train"):
        task.training_features(features.select([1]))
    with user_error("squad", "no answers", setting="do_train"):
        task.training_features(features.remove_columns("labels"))


@pytest.mark.parametrize("softmax", ["sequence", "paragraph"])
@pytest.mark.parametrize("name", ["squad", "squad_v2"])
def test_the_loss_is_that_of_the_softmax_asked_for_in_either_layout(tokenizer, long_passage, softmax, name):
    model = word_model(tokenizer, "ForQuestionAnswering", num_hidden_layers=2, initializer_range=0.3)
    task = prepared(tokenizer, name, qa_softmax=softmax)
    features = task.training_features(encode(task, long_passage, tokenizer, LENGTH))
    left_out = softmax == "paragraph" and name == "squad"
    assert all((row["labels"] == list(NO_ANSWER)) is False for row in features) == left_out
    rows_ = list(features)
    with torch.no_grad():
        batches = [task.collate(rows_, pad_token_id=0, packing=packing) for packing in (True, False)]
        losses = [model(**batch).loss.item() for batch in batches]
    expected = []
    for row in rows_:
        ids = torch.tensor([row["input_ids"]])
        with torch.no_grad():
            output = model(ids, token_type_ids=torch.tensor([row["token_type_ids"]]))
        allowed = torch.ones(row["length"], dtype=torch.bool)
        if softmax == "paragraph":
            allowed[:] = False
            allowed[row["passage_at"] : -1] = True
            allowed[0] = name == "squad_v2"
        for logits, place in zip((output.start_logits[0], output.end_logits[0]), row["labels"], strict=True):
            expected.append(-(logits[place] - logits[allowed].logsumexp(0)).item())
    assert losses == pytest.approx([np.mean(expected)] * 2, rel=1e-5)


def test_the_right_scores_give_the_right_answers(tokenizer, folder):
    """Scores that point at the targets must come back as the answers, whatever the windows."""
    for name, answer_text in itertools.product(("squad", "squad_v2"), ("original", "offsets")):
        task = prepared(tokenizer, name, answer_text=answer_text, max_seq_length=18)
        dataset = task.load(folder, ["validation"])["validation"]
        features = encode(task, dataset, tokenizer, 18)
        assert max(features["window"][:]) > 0
        outputs = [np.zeros((length, 2), dtype=np.float32) for length in features["length"]]
        for scores, (first, last) in zip(outputs, features["labels"], strict=True):
            scores[first, 0] = scores[last, 1] = 9
        predictions = task.postprocess(dataset, features, outputs)
        assert task.score(predictions, dataset)["f1"] == 1


def test_a_threshold_is_tuned_stored_and_honoured():
    dataset = rows(id=["a", "b"], answers=[{"text": ["cat"], "answer_start": [0]}, {"text": [], "answer_start": []}])
    predictions = {"prediction": ["cat", "dog"], "null_odds": [-4.0, -3.0], "nbest": [[], []]}
    tuned = SQUAD_V2.tuned(predictions, dataset)
    assert tuned.null_score_diff_threshold == -4.0
    assert tuned.answers(predictions) == ["cat", ""]
    scores = tuned.score(predictions, dataset)
    assert (scores["f1"], scores["f1_at_0"], scores["best_f1"]) == (1.0, 0.5, 1.0)
    stored = SimpleNamespace(**tuned.model_settings())
    assert SQUAD_V2.restored(stored) == tuned
    assert SQUAD.tuned(predictions, dataset) is SQUAD and SQUAD.restored(stored) is SQUAD
    fixed = replace(SQUAD_V2, null_score_diff_threshold=0.0)
    assert fixed.tuned(predictions, dataset) is fixed and fixed.restored(stored) is fixed


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_a_run_leaves_what_the_official_script_takes(world, folder, tmp_path):
    start = save_model(world, tmp_path / "start", "ForQuestionAnswering", seed=1, num_hidden_layers=2)
    finished, shape = tmp_path / "run", f"--max_seq_length {LENGTH} --max_query_length {QUERY} --doc_stride {STRIDE}"
    run = f"--model_name_or_path {start} --data_dir {folder} --output_dir {finished} --do_train --do_eval {shape}"
    training = "--task_name squad_v2 --num_train_epochs 6 --train_batch_size 16 --learning_rate 3e-3"
    assert recipe("run_squad", run, training) == 0
    results = read(finished / "results.json")
    scores = results["metrics"]
    assert scores["f1"] == pytest.approx(scores["best_f1"]) and "f1_at_0" in scores
    assert scores["has_answer_f1"] > 0.3
    assert results["rows_scored"] == 30 and results["train"]["batch"] == 16
    files = [finished / name for name in ("predictions.json", "nbest_predictions.json", "null_odds.json")]
    lines = "predictions.validation.jsonl"
    assert results["splits"]["validation"]["files"] == [*(path.name for path in files), lines]
    rows = [json.loads(line) for line in (finished / lines).read_text().splitlines()]
    assert {row["id"]: row["prediction"] for row in rows} == read(files[0])
    assert all({"question", "context", "label", "probability"} <= row.keys() for row in rows)
    predictions, nbest, odds = map(read, files)
    ids = read(folder / "dev-v2.0.json")["data"][0]["paragraphs"]
    assert list(predictions) == list(nbest) == list(odds) == [entry["qas"][0]["id"] for entry in ids]
    for name, text in predictions.items():
        assert (text == "") == (odds[name] > scores["null_score_diff_threshold"] or not nbest[name][0]["text"])
    arguments = f"--task_name squad_v2 --data_file {folder}/dev-v2.0.json --predictions_file {files[0]}"
    assert recipe("score_squad", arguments, f"--null_odds_file {files[2]}") == 0


@pytest.mark.parametrize(
    ("answers", "flag"),
    [
        ([{"text": "", "answer_start": 0}], None),
        ([{"text": " ", "answer_start": 0}], False),
        ([{"text": "1901", "answer_start": 15}], True),
        ([], True),
    ],
)
def test_impossible_questions_and_empty_answers_have_no_answer(tmp_path, answers, flag):
    answered = {"id": "a", "question": "When?", "answers": [{"text": "1901", "answer_start": 15}]}
    unanswered = {"id": "b", "question": "Who?", "answers": answers}
    if flag is not None:
        answered["is_impossible"] = False
        unanswered["is_impossible"] = flag
    paragraph = {"context": "Hall opened in 1901.", "qas": [answered, unanswered]}
    path = tmp_path / "train.json"
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": [paragraph]}]}))
    task = configured_task(SquadConfig(model_name_or_path="-", do_train=True, train_file=str(path)))
    assert task.name == SQUAD_V2.name and task.unanswerable
    read = task.load(None, ["train"])["train"]["answers"][:]
    assert [entry["text"] for entry in read] == [["1901"], []]
