"""TriviaQA to SQuAD's JSON: which documents become examples, where the answer is, and what is refused."""

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from bert_repro.configs import TriviaqaConfig
from bert_repro.errors import UserError
from bert_repro.finetuning.data import encode
from bert_repro.tasks.squad.questions import read_questions
from bert_repro.tasks.squad.triviaqa import convert_triviaqa, find_answers, first_tokens

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


def convert(evidence: Path, *questions: dict[str, Any], **settings: Any) -> dict[str, int]:
    source = evidence.parent / "qa.json"
    source.write_text(json.dumps({"Data": list(questions), "Domain": "Wikipedia", "Version": 1.0}))
    target = str(evidence.parent / "out" / "train.json")
    settings = {"evidence_dir": str(evidence), "output_file": target, **settings}
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
    dataset = read_questions(evidence.parent / "out" / "train.json", unanswerable=False)
    assert dataset["id"] == ["a--Lloyd.txt", "b--Edge.txt", "c--3/3_14.txt"]
    for context, answers in zip(dataset["context"], dataset["answers"], strict=True):
        for text, start in zip(answers["text"], answers["answer_start"], strict=True):
            assert context[start : start + len(text)] == text
    assert dataset[0]["answers"]["text"] == ["sunset\n boulevard", "SUNSET BLVD."]
    assert dataset[1]["context"].endswith("Sunset Boulevard")
    assert not list(evidence.parent.glob("out/.*"))


def test_a_page_without_a_file_is_missing_and_names_may_differ_in_case_and_form(evidence: Path) -> None:
    asked = question("a", "Lloyd.txt")
    asked["SearchResults"] = [{"Title": "no text was kept", "Url": "x"}]
    counts = convert(evidence, asked)
    assert (counts["documents"], counts["missing"], counts["examples"]) == (2, 1, 1)
    assert convert(evidence, question("a", "BEYONCÉ.txt"), overwrite_output_file=True)["examples"] == 1


@pytest.mark.parametrize("name", ["../../secret.txt", "{root}/secret.txt", "link.txt"])
def test_names_that_lead_out_of_the_evidence_are_refused(evidence: Path, name: str) -> None:
    secret = evidence.parent / "secret.txt"
    secret.write_text("Sunset Boulevard")
    (evidence / "wikipedia/link.txt").symlink_to(secret)
    with pytest.raises(UserError, match=r"Data\[0\]: Filename is .* leads out of .*wikipedia; name a file inside it"):
        convert(evidence, question("a", name.format(root=evidence.parent)))


@pytest.mark.parametrize(
    ("text", "limit", "beginning"),
    [
        ("One, two three", 3, "One, two"),
        ("One, two three", 4, "One, two three"),
        ("One, two three \n", 5, "One, two three \n"),
        ("", 5, ""),
        ("naïve Zoë's $1.50", 4, "naïve Zoë's"),
    ],
)
def test_tokens_are_words_and_marks_and_the_text_stays_as_it_is(text: str, limit: int, beginning: str) -> None:
    assert first_tokens(text, limit) == beginning


def test_names_are_found_between_words_whatever_their_case(evidence: Path) -> None:
    found = find_answers("In the U.S. status of US and us, the USA.", ["US", "U.S.", "usa", " ", "C++"])
    texts = [answer["text"] for answer in found]
    assert texts == ["U.S.", "US", "us", "USA"]
    assert find_answers("C++ is", ["C++"]) == [{"text": "C++", "answer_start": 0}]
    assert find_answers("New York City", ["New York", "New York City"])[0]["text"] == "New York City"
    assert find_answers("anything", []) == []


def test_a_model_trains_on_it(evidence: Path, world: Any) -> None:
    from bert_repro.configs import SquadConfig
    from bert_repro.models.loading import load_tokenizer
    from bert_repro.tasks import get_task

    convert(evidence, question("a", "Lloyd.txt", "Edge.txt"))
    tokenizer = load_tokenizer(world.tokenizer)
    config = SquadConfig(
        model_name_or_path="x", do_train=True, task_name="squad", train_file=str(evidence.parent / "out/train.json")
    )
    task = get_task("squad").prepared(config, tokenizer)
    features = encode(task, task.load(None, ["train"])["train"], tokenizer, 128)
    kept = task.training_features(features)
    assert len(kept) == len(features) and any(start > 0 for start, _ in kept["labels"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"data": []}, "no list 'Data' of questions"),
        ({"Data": [{"Question": "x"}]}, r"Data\[0\]: QuestionId is None"),
        ({"Data": [{"Question": "x", "QuestionId": "a"}]}, r"Data\[0\]: has no Answer; name a file with answers"),
        ({"Data": [question("a") | {"Answer": {"Value": 3}}]}, r"Data\[0\]: Answer is \{'Value': 3\}"),
        ({"Data": [question("a") | {"EntityPages": ["x"]}]}, r"Data\[0\]: EntityPages holds 'x'"),
        ({"Data": [question("a") | {"EntityPages": None}]}, r"Data\[0\]: EntityPages is None; it must be a list"),
        ({"Data": [question("a") | {"SearchResults": 7}]}, r"Data\[0\]: SearchResults is 7; it must be a list"),
        ({"Data": [question("a") | {"Answer": {"Value": "x", "Aliases": None}}]}, r"Data\[0\]: Aliases is None; it"),
        ({"Data": [question("a", "Part.txt")]}, "no example came of 1 questions, 1 documents"),
        ({"Data": [question("a", "gone.txt")]}, "wikipedia/gone.txt is not there, name the right --evidence_dir"),
    ],
)
def test_other_files_are_refused(evidence: Path, content: Any, message: str) -> None:
    source = evidence.parent / "qa.json"
    source.write_text(json.dumps(content))
    target = evidence.parent / "out.json"
    settings = {"qa_file": str(source), "evidence_dir": str(evidence), "output_file": str(target)}
    with pytest.raises(UserError, match=message):
        convert_triviaqa(TriviaqaConfig(**settings))
    assert not target.exists()


def test_an_output_that_cannot_be_written_is_refused(evidence: Path) -> None:
    (evidence.parent / "file").write_text("")
    below = str(evidence.parent / "file" / "train.json")
    with pytest.raises(UserError, match=r"/file: cannot be written \((File exists|Not a directory)\);"):
        convert(evidence, question("a", "Lloyd.txt"), output_file=below)
    with pytest.raises(UserError, match=r"^--output_file .* is a folder; name a file$"):
        convert(evidence, question("a", "Lloyd.txt"), output_file=str(evidence), overwrite_output_file=True)


def test_other_folders_and_taken_names_are_refused(evidence: Path) -> None:
    with pytest.raises(UserError, match="holds neither wikipedia/ nor web/"):
        convert(evidence, question("a", "Lloyd.txt"), evidence_dir=str(evidence / "wikipedia"))
    convert(evidence, question("a", "Lloyd.txt"))
    with pytest.raises(UserError, match="exists; name another file, or give --overwrite_output_file"):
        convert(evidence, question("a", "Lloyd.txt"))
    assert convert(evidence, question("a", "Lloyd.txt"), overwrite_output_file=True)["examples"] == 1
    (evidence / "wikipedia/Lloyd.txt").write_bytes(b"caf\xe9")
    with pytest.raises(UserError, match=r"Lloyd.txt: is not UTF-8 \(byte 3\)"):
        convert(evidence, question("a", "Lloyd.txt"), overwrite_output_file=True)
