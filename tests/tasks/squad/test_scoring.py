"""Scores against hand-worked cases, a second implementation written apart, and the golden files.

The golden scores are those of the official scripts, which are not part of this project. Whoever has them repeats this:

    python tests/golden/reproduce.py path/to/evaluate-v1.1.py path/to/evaluate-v2.0.py

They print percentages under their own names: exact and f1 are our exact_match and f1, best_f1_thresh is our
best_f1_threshold.
"""

import json
import random
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from bert_repro.configs import SquadScoringConfig
from bert_repro.errors import UserError
from bert_repro.tasks.squad import scoring

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "squad"


# ------------------------------------------------------------------------------------------------ second implementation


def tokens_of(text):
    letters = [character for character in text.lower() if character not in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"]
    return [word for word in re.split(r"\s+", re.sub(r"\b(?:the|an|a)\b", " ", "".join(letters))) if word]


def f1_of(prediction, reference, version):
    left, right = tokens_of(prediction), tokens_of(reference)
    if not left or not right:
        return float(version == 2 and left == right)
    remaining, same = list(right), 0
    for word in left:
        if word in remaining:
            remaining.remove(word)
            same += 1
    if same == 0:
        return 0.0
    precision, recall = 1.0 * same / len(left), 1.0 * same / len(right)
    return (2 * precision * recall) / (precision + recall)


def judge(data, predictions, version, odds=None):
    """What the official scripts report, as fractions, computed in a plain way."""
    exact, f1, answerable = {}, {}, {}
    for article in data["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                name = question["id"]
                golds = [answer["text"] for answer in question["answers"]]
                answerable[name] = len(golds) > 0
                if version == 2:
                    golds = [gold for gold in golds if tokens_of(gold)] or [""]
                exact[name] = float(any(tokens_of(predictions[name]) == tokens_of(gold) for gold in golds))
                f1[name] = max(f1_of(predictions[name], gold, version) for gold in golds)
    result = {"exact_match": sum(exact.values()) / len(exact), "f1": sum(f1.values()) / len(f1)}
    if version == 2:
        kinds = defaultdict(list)
        for name, able in answerable.items():
            kinds[able].append(name)
        result["no_answer_accuracy"] = sum(f1[name] for name in kinds[False]) / len(kinds[False])
        result["has_answer_exact_match"] = sum(exact[name] for name in kinds[True]) / len(kinds[True])
        result["has_answer_f1"] = sum(f1[name] for name in kinds[True]) / len(kinds[True])
    if odds is not None:
        for metric, scores in (("exact_match", exact), ("f1", f1)):
            now = best = sum(not able for able in answerable.values())
            threshold = 0.0
            for name in sorted(odds, key=lambda one: odds[one]):
                now += scores[name] if answerable[name] else -1 if predictions[name] else 0
                if now > best:
                    best, threshold = now, odds[name]
            result[f"best_{metric}"], result[f"best_{metric}_threshold"] = best / len(scores), threshold
    return result


def read(name):
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_golden_files(version):
    odds = GOLDEN / "null_odds-v2.0.json" if version == "2.0" else None
    config = SquadScoringConfig(
        task_name="squad" if version == "1.1" else "squad_v2",
        data_file=str(GOLDEN / f"dev-v{version}.json"),
        predictions_file=str(GOLDEN / f"predictions-v{version}.json"),
        null_odds_file=str(odds) if odds else None,
    )
    expected = read("expected.json")[f"v{version}"]["scores"]
    assert scoring.score_squad(config) == expected
    second = judge(
        read(f"dev-v{version}.json"),
        read(f"predictions-v{version}.json"),
        int(version[0]),
        read(odds.name) if odds else None,
    )
    assert second == expected


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Cat", "cat"),
        ("A. B. the C!", "b c"),  # "a" without its point is an article
        ("an-other", "another"),  # punctuation goes first, without a space
        ("theatre an", "theatre"),
        ("the a an", ""),
        ("“The” U.S.A.\u00a0—", "“ ” usa —"),  # only ASCII punctuation goes
        ("ÉCOLE", "école"),
        ("", ""),
        ("$1,000", "1000"),
    ],
)
def test_normalisation(text, normal):
    assert scoring.normalize_answer(text) == normal


@pytest.mark.parametrize(
    ("prediction", "references", "exact", "f1"),
    [
        ("the Broncos", ["Denver Broncos", "Broncos"], 1, 1),
        ("Denver Broncos won", ["Denver Broncos", "Broncos"], 0, 2 * (2 / 3) * 1 / (2 / 3 + 1)),
        ("cat cat dog", ["cat dog dog"], 0, 2 / 3),
        ("bird", ["cat"], 0, 0),
        ("", ["cat"], 0, 0),
        ("the", ["a"], 1, 0),  # equal, yet the v1.1 script finds no word in common
    ],
)
def test_hand_worked_answers(prediction, references, exact, f1):
    assert scoring.answer_scores(prediction, references) == (exact, pytest.approx(f1))


def test_no_answer_is_right_in_v2_only():
    assert scoring.answer_scores("", [""], empty_is_answer=True) == (1, 1)
    assert scoring.answer_scores("", [""]) == (1, 0)
    assert scoring.answer_scores("cat", [""], empty_is_answer=True) == (0, 0)
    with pytest.raises(ValueError, match="at least one reference"):
        scoring.answer_scores("cat", [])


WORDS = "cat dog the a bird Bird. U.S. an 'tis $5 école".split()


PLAIN_WORDS = [word for word in WORDS if tokens_of(word)]


def random_case(seed, version, words=WORDS):
    """Questions with noisy predictions: empty ones, articles, punctuation, repeated words, equal odds."""
    generator = random.Random(seed)

    def text(least):
        return " ".join(generator.choices(words, k=generator.randint(least, 4)))

    questions, predictions, odds = [], {}, {}
    for number in range(generator.randint(1, 40)):
        name = f"q{generator.randrange(10**6)}-{number}"
        empty = version == 2 and generator.random() < 0.4
        answers = [{"text": text(1), "answer_start": 0} for _ in range(0 if empty else generator.randint(1, 4))]
        questions.append({"id": name, "question": "?", "answers": answers})
        wanted = [answer["text"] for answer in answers] + [text(0), text(0)]
        predictions[name] = generator.choice(wanted)
        odds[name] = generator.choice([generator.uniform(-5, 5), 0.0, 1.0, -2.5])
    context = " " * 100
    return {"data": [{"paragraphs": [{"context": context, "qas": questions}]}]}, predictions, odds


def ours(data, predictions, version, odds):
    questions = data["data"][0]["paragraphs"][0]["qas"]
    answers = [[answer["text"] for answer in question["answers"]] for question in questions]
    scores = scoring.score_questions(
        [predictions[question["id"]] for question in questions], answers, unanswerable=version == 2
    )
    return scores, np.array([odds[question["id"]] for question in questions])


@pytest.mark.parametrize("version", [1, 2])
def test_scores_equal_the_second_implementation_to_the_last_digit(version):
    for seed in range(80):
        data, predictions, odds = random_case(seed, version)
        scores, array = ours(data, predictions, version, odds)
        kinds = scores.has_answer.any() and not scores.has_answer.all()
        if version == 1:
            assert scores.summary() == judge(data, predictions, 1)
        elif kinds:
            assert scores.summary() | scoring.threshold_report(scores, array) == judge(data, predictions, 2, odds)


def test_the_best_threshold_is_the_best_of_all():
    for seed in range(40):
        data, predictions, odds = random_case(seed, 2, PLAIN_WORDS)
        scores, array = ours(data, predictions, 2, {name: place + 0.5 for place, name in enumerate(odds)})
        best, threshold = scoring.best_threshold(scores.f1, scores, array)
        tried = [scores.at(array, one).summary()["f1"] for one in (-1.0, *array)]
        assert best == pytest.approx(max(tried))
        if best > (~scores.has_answer).mean():
            assert scores.at(array, threshold).summary()["f1"] == pytest.approx(best)


def test_the_threshold_is_exceeded_not_reached():
    scores = scoring.score_questions(["cat"], [["cat"]], unanswerable=True)
    assert scores.at(np.array([2.0]), 2.0).summary()["f1"] == 1
    assert scores.at(np.array([2.0]), 1.9).summary()["f1"] == 0


# ------------------------------------------------------------------------------------------------------------ bad input


def score(tmp_path, predictions, odds=None, data=None):
    files = {"data_file": data or read("dev-v2.0.json"), "predictions_file": predictions, "null_odds_file": odds}
    paths = {}
    for name, content in files.items():
        if content is not None:
            paths[name] = str(tmp_path / f"{name}.json")
            text = content if isinstance(content, str) else json.dumps(content)
            Path(paths[name]).write_text(text, encoding="utf-8")
    return scoring.score_squad(SquadScoringConfig(task_name="squad_v2", **paths))


def test_bad_predictions_are_one_line_and_surplus_ones_count_nothing(tmp_path):
    good = read("predictions-v2.0.json")
    some = next(iter(good))
    lacking = {name: text for name, text in good.items() if name != some}
    with pytest.raises(UserError, match=rf"predictions_file.json: no entry for question '{some}' \(1 of {len(good)}"):
        score(tmp_path, lacking)
    with pytest.raises(UserError, match=f"question '{some}': is None; write a text for each id"):
        score(tmp_path, {**good, some: None})
    with pytest.raises(UserError, match="have no answers to score against"):
        bare = {"context": "x", "qas": [{"id": "q", "question": "?"}]}
        score(tmp_path, {"q": "x"}, data={"data": [{"paragraphs": [bare]}]})
    assert score(tmp_path, {**good, "other": "x"}) == score(tmp_path, good)
