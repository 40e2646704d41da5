"""TriviaQA to SQuAD's JSON: which documents become examples, where the answer is, and what is refused."""

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from errors import user_error

from bert_repro.configs import TriviaqaConfig
from bert_repro.conversion.triviaqa import convert_triviaqa, find_answers
from bert_repro.tasks.data import read_file
from bert_repro.tasks.squad_questions import questions_of

LONG = "word " * 399


def question(identity: str, *pages: str, value: str = "Sunset Boulevard", key: str = "EntityPages") -> dict[str, Any]:
    return {
        "Answer": {"Value": value, "Aliases": [value, "Sunset Blvd", "Sunset Blvd."], "Type": "WikipediaEntity"},
        key: [{"DocSource": "TagMe", "Filename": page, "Title": page.removesuffix(".txt")} for page in pages],
        "Question": f"Which musical is {identity}?",
        "QuestionId": identity,
        "QuestionSource": "http://example.org/",
    }


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    documents = {
        "wikipedia/Lloyd.txt": "He wrote Cats, then sunset\n boulevard. SUNSET BLVD. won; sunset\n boulevard too.",
        "wikipedia/Late.txt": LONG + "Sunset Boulevard",  # its second word is token 401
        "wikipedia/Edge.txt": LONG.removesuffix("word ") + "Sunset Boulevard, and more",
        "wikipedia/Part.txt": "Sunset Boulevards and a mysunset boulevard",
        "wikipedia/" + unicodedata.normalize("NFD", "Beyoncé.txt"): "On Sunset Blvd she sang.",
        "web/3/3_14.txt": "It was Sunset Boulevard.",
    }
    for name, text in documents.items():
        path = tmp_path / "evidence" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "evidence"


def convert(evidence: Path, *questions: dict[str, Any]) -> dict[str, int]:
    source = evidence.parent / "qa.json"
    source.write_text(json.dumps({"Data": list(questions), "Domain": "Wikipedia", "Version": 1.0}))
    settings = {"evidence_dir": str(evidence), "output_file": str(evidence.parent / "out" / "train.json")}
    return convert_triviaqa(TriviaqaConfig(qa_file=str(source), **settings))


def test_documents_with_an_answer_at_their_beginning_become_examples(evidence: Path) -> None:
    counts = convert(
        evidence,
        question("a", "Lloyd.txt", "Late.txt", "Lloyd.txt", "gone.txt"),
        question("b", "Edge.txt", "Part.txt"),
        question("c", "3/3_14.txt", key="SearchResults"),
    )
    assert counts == {
        "questions": 3, "documents": 7, "examples": 3, "without_answer": 2, "missing": 1, "repeated": 1,
    }  # fmt: skip
    dataset = questions_of(read_file(evidence.parent / "out" / "train.json"), "x", unanswerable=False)
    assert dataset["id"] == ["a--Lloyd.txt", "b--Edge.txt", "c--3/3_14.txt"]
    for context, answers in zip(dataset["context"], dataset["answers"], strict=True):
        for text, start in zip(answers["text"], answers["answer_start"], strict=True):
            assert context[start : start + len(text)] == text
    assert dataset[0]["answers"]["text"] == ["sunset\n boulevard", "SUNSET BLVD."]
    assert dataset[1]["context"].endswith("Sunset Boulevard")
    assert not list(evidence.parent.glob("out/.*"))


def test_names_are_found_between_words_whatever_their_case(evidence: Path) -> None:
    found = find_answers("In the U.S. status of US and us, the USA.", ["US", "U.S.", "usa", " ", "C++"])
    assert [answer["text"] for answer in found] == ["U.S.", "US", "us", "USA"]
    assert find_answers("C++ is", ["C++"]) == [{"text": "C++", "answer_start": 0}]
    assert find_answers("New York City", ["New York", "New York City"])[0]["text"] == "New York City"
    assert find_answers("anything", []) == []


def test_names_that_lead_out_of_the_evidence_are_not_read(evidence: Path) -> None:
    (evidence.parent / "secret.txt").write_text("Sunset Boulevard")
    (evidence / "wikipedia/link.txt").symlink_to(evidence.parent / "secret.txt")
    asked = question("a", "Lloyd.txt", "../../secret.txt", f"{evidence.parent}/secret.txt", "link.txt")
    assert convert(evidence, asked)["missing"] == 3


def test_evidence_without_an_answer_is_refused(evidence: Path) -> None:
    with user_error("qa.json", "0 examples", "--evidence_dir", setting="evidence_dir"):
        convert(evidence, question("a", "Part.txt"))
    assert not (evidence.parent / "out" / "train.json").exists()


@pytest.mark.parametrize("missing", ["Answer", "Question", "QuestionId"])
def test_a_file_that_is_not_triviaqas_is_refused(evidence: Path, missing: str) -> None:
    second = question("b", "Edge.txt")
    del second[missing]
    with user_error("qa.json", "question 2", missing, setting="qa_file"):
        convert(evidence, question("a", "Lloyd.txt"), second)
    (evidence.parent / "list.json").write_text("[]")
    settings = {"evidence_dir": str(evidence), "output_file": str(evidence.parent / "out" / "train.json")}
    with user_error("list.json", setting="qa_file"):
        convert_triviaqa(TriviaqaConfig(qa_file=str(evidence.parent / "list.json"), **settings))
