import json

import pytest

from bert_repro.errors import UserError
from bert_repro.tasks.squad.questions import read_json, read_questions

CONTEXT = "The old mill by the river burned down in 1907."


def question(identity="q1", answers=(("the river", 16),), **fields):
    listed = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": identity, "question": "Where was it?", "answers": listed, **fields}


@pytest.fixture
def write(tmp_path):
    def write(*questions, content=None):
        path = tmp_path / "data.json"
        paragraphs = [{"context": CONTEXT, "qas": list(questions)}]
        path.write_text(
            json.dumps(content or {"version": "1.1", "data": [{"title": "Mill", "paragraphs": paragraphs}]})
        )
        return path

    return write


def refused(path, unanswerable=False):
    with pytest.raises(UserError) as raised:
        read_questions(path, unanswerable=unanswerable)
    message = str(raised.value)
    assert str(path) in message and "\n" not in message and ";" in message
    return message


def test_questions_come_in_order_with_the_columns_of_the_hub(write):
    path = write(question("b", [("the river", 16), ("river", 20)]), question("a"))
    dataset = read_questions(path, unanswerable=False)
    assert dataset.column_names == ["id", "question", "context", "answers"]
    assert dataset["id"][:] == ["b", "a"]
    assert dataset[0]["answers"] == {"text": ["the river", "river"], "answer_start": [16, 20]}
    assert dataset[1]["context"] == CONTEXT


def test_unanswerable_questions_are_for_v2(write):
    path = write(question("a", []), question("b"))
    assert [row["text"] for row in read_questions(path, unanswerable=True)["answers"]] == [[], ["the river"]]
    assert "'a': answers is empty" in refused(path)
    marked = write(question("a", [], is_impossible=True), question("b", is_impossible=False))
    assert len(read_questions(marked, unanswerable=True)) == 2
    for wrong in (question("c", [], is_impossible=False), question("c", is_impossible=True)):
        assert "'c': is_impossible is" in refused(write(wrong), unanswerable=True)


def test_unlabelled_questions_have_no_answers(write):
    bare = {"id": "a", "question": "Why?"}
    assert read_questions(write(bare), unanswerable=False).column_names == ["id", "question", "context"]
    assert "'a': no answers, while others have them" in refused(write(question("b"), bare))


@pytest.mark.parametrize("start", [-1, len(CONTEXT) - 3, 10_000])
def test_an_answer_outside_its_context(write, start):
    message = refused(write(question("q7", [("the river", start)])))
    assert "'q7'" in message and f"'the river' at {start} lies outside its context of {len(CONTEXT)}" in message


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"answers": [{"text": "river", "answer_start": "20"}]}, "answer_start is '20'"),
        ({"answers": [{"text": "river", "answer_start": True}]}, "answer_start is True"),
        ({"answers": [{"text": 1907, "answer_start": 1}]}, "text is 1907"),
        ({"answers": ["river"]}, "answer_start is None"),
        ({"answers": "river"}, "no list 'answers'"),
        ({"question": None}, "question is None"),
    ],
)
def test_broken_questions(write, broken, message):
    assert f"question 'q1': {message}" in refused(write({**question(), **broken}))


@pytest.mark.parametrize("identity", ["", None, 7])
def test_an_id_is_a_text(write, identity):
    assert f"data[0].paragraphs[0].qas[0]: id is {identity!r}" in refused(write(question(identity)))


def test_duplicate_ids(write):
    assert "question 'a': this id occurs twice" in refused(write(question("a"), question("b"), question("a")))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1], "no list 'data'"),
        ({"data": [{"title": "x"}]}, "data[0]: no list 'paragraphs'"),
        ({"data": [{"paragraphs": [{"context": "x"}]}]}, "data[0].paragraphs[0]: no list 'qas'"),
        ({"data": [{"paragraphs": [{"qas": []}]}]}, "context is None"),
        ({"data": []}, "no questions; get the file again"),
    ],
)
def test_other_json(write, content, message):
    assert message in refused(write(content=content))


def test_files_that_are_no_json(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read_json(tmp_path / "absent.json")
    for name, content in (("cut.json", b'{"data": ['), ("latin.json", b'{"a": "\xe9"}')):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match="is not valid JSON"):
            read_json(tmp_path / name)
    (tmp_path / "twice.json").write_text('{"q1": "a", "q2": "b", "q1": "c"}')
    with pytest.raises(UserError, match="key 'q1' occurs twice"):
        read_json(tmp_path / "twice.json")
    (tmp_path / "mark.json").write_bytes(b'\xef\xbb\xbf{"q1": "a"}')
    assert read_json(tmp_path / "mark.json") == {"q1": "a"}
