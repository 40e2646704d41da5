"""Files of tagged text: many programs write them, and each is read right or refused with the reason."""

import csv
import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from errors import user_error

from bert_repro.configs import NerConfig
from bert_repro.tasks import configured_task
from bert_repro.tasks.data import read_file
from bert_repro.tasks.tagging import CONLL2003, TAGS

SENTENCES = [(["Ada", "saw", "Rome"], ["B-PER", "O", "B-LOC"]), (["She", "sang"], ["O", "O"])]


def read(tmp_path: Path, content: str, name: str = "x.txt") -> datasets.Dataset:
    path = tmp_path / name
    path.write_bytes(content.encode())
    return read_file(path, tagged=True)


def sentences(dataset: datasets.Dataset) -> list[tuple[list[str], list[str]]]:
    return list(zip(dataset["words"], dataset["tags"], strict=True))


@pytest.mark.parametrize(
    "content",
    [
        "Ada B-PER\nsaw O\nRome B-LOC\n\nShe O\nsang O\n",
        "Ada\tB-PER\nsaw\tO\nRome\tB-LOC\n \t \nShe\tO\nsang\tO",
        "Ada\t\tB-PER\nsaw\tO\t\nRome\tB-LOC\n\n\nShe\tO\nsang\tO\n",  # aligned by hand
        "Ada B-PER\rsaw O\rRome B-LOC\r\rShe O\rsang O\r",  # old Mac
        "Ada B-PER\r\nsaw O\r\nRome B-LOC\r\n\r\nShe O\r\nsang O\r\n",  # Windows
        "\ufeffAda B-PER\nsaw O\nRome B-LOC\n\nShe O\nsang O\n",
        "1\tAda\tB-PER\n2\tsaw\tO\n3\tRome\tB-LOC\n\n1\tShe\tO\n2\tsang\tO\n",  # words are counted
        "0 Ada B-PER\n1 saw O\n2 Rome B-LOC\n\n0 She O\n1 sang O\n",
        "0\tAda\tB-PER\n1\tsaw\tO\n2\tRome\tB-LOC\n\n3\tShe\tO\n4\tsang\tO\n",  # through the file
        "# id 1\tdomain=en\n1\tAda\tB-PER\n2\tsaw\tO\n3\tRome\tB-LOC\n\n# a\n1\tShe\tO\n2\tsang\tO\n",
        "# id 7a3f domain=en\nAda _ _ B-PER\nsaw _ _ O\nRome _ _ B-LOC\n\n# id 9 domain=en\nShe _ _ O\nsang _ _ O\n",
        "# sent_id = 1\nAda NN X B-PER\nsaw VB X O\nRome NN X B-LOC\n\n# sent_id = 2\nShe PR X O\nsang VB X O\n",
        "Token\tTag\nAda\tB-PER\nsaw\tO\nRome\tB-LOC\n\nShe\tO\nsang\tO\n",  # names of columns
        "word pos ner\nAda NN B-PER\nsaw VB O\nRome NN B-LOC\n\nShe PR O\nsang VB O\n",
    ],
)
def test_one_text_in_many_forms(tmp_path: Path, content: str) -> None:
    assert sentences(read(tmp_path, content)) == SENTENCES


def test_words_may_contain_spaces_if_tabs_separate_the_columns(tmp_path: Path) -> None:
    dataset = read(tmp_path, "New York\tB-LOC\nhas\tO\n20 000\tO\nparks\tO\n")
    assert sentences(dataset) == [(["New York", "has", "20 000", "parks"], ["B-LOC", "O", "O", "O"])]
    with user_error("line 1", "tab", "space"):
        read(tmp_path, "New York\tB-LOC\nSan Jose\tB-LOC\n")
    with user_error("line 2", "New", "tab"):
        read(tmp_path, "in O\nNew York B-LOC\n")


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_a_file_of_a_spreadsheet_loses_its_quotes(tmp_path: Path, quoting: Any) -> None:
    words = ["He", "said", ":", '"', "No", '"', ",", 'a 3" nail']
    path = tmp_path / "x.txt"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter="\t", quoting=quoting).writerows((word, "O") for word in words)
    assert read_file(path, tagged=True)["words"][:] == [words]


def test_a_comma_in_quotes_is_excels(tmp_path: Path) -> None:
    assert read(tmp_path, 'Yes\tO\n","\tO\nAda\tB-PER\n')["words"][:] == [["Yes", ",", "Ada"]]
    assert read(tmp_path, 'Yes\n","\nAda\n')["words"][:] == [["Yes", ",", "Ada"]]


@pytest.mark.parametrize("words", [['"', "a", '"'], ['"Yes', ",", '"'], ['"Yes"', "no"], ['""', "a"]])
def test_quotation_marks_of_a_text_stay(tmp_path: Path, words: list[str]) -> None:
    content = "".join(f"{word}\tO\n" for word in words)
    assert read(tmp_path, content)["words"][:] == [words]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1 Ada\n2 saw\n3 Rome\n\n1 She\n2 sang\n", ("first column", "number")),
        ("0\tAda\tO\n0\tsaw\tO\n0\tRome\tO\n1\tShe\tO\n1\tsang\tO\n", ("first column", "number")),  # of the sentence
        ("1\tIm\tO\n1-2\tIn dem\tO\n2\tHaus\tO\n", ("first column", "number")),
        (
            "".join(f"{place}\t{word}\t{word}\tNN\tNN\t_\t0\troot\t_\t_\n" for place, word in enumerate("abc", 1)),
            ("CoNLL-U",),
        ),
        (
            "".join(f"{n}\tab\tab\tNN\tNN\t_\t0\tx\t_\t{m}\n" for n, m in ((1, "SpaceAfter=No"), (2, "_"), (3, "_"))),
            ("CoNLL-U",),
        ),
        ("".join(f"bc/a {place} w{place} O\n" for place in range(9)) + "\nbc/a 0 w O\n", ("first column", "bc/a")),
        (
            "".join(f"s{row} w{place} O\n{'' if place % 4 else chr(10)}" for row in range(3) for place in range(1, 5)),
            ("first column", "s0"),
        ),
        ("Ada B-PER\nsaw\n", ("line 2", "saw")),
        ("Ada B-PER\n\tO\n", ("line 2",)),
        ("Sentence: 1\tAda\tB-PER\n\tsaw\tO\n", ("line 2",)),
        ("word tag\n", ("no rows",)),
        ("", ("no rows",)),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, content: str, message: tuple[str, ...]) -> None:
    with user_error("x.txt", *message):
        read(tmp_path, content)


def test_a_last_column_without_tags_is_left_out(tmp_path: Path) -> None:
    assert read(tmp_path, "Ada NN _\nsaw VB _\n").column_names == ["words"]


def test_numbers_are_words_if_they_do_not_count(tmp_path: Path) -> None:
    assert read(tmp_path, "1984 B-WORK\n\n12 O\n")["words"][:] == [["1984"], ["12"]]
    assert read(tmp_path, "1 O O\n2 B-X O\n3 I-X O\n")["words"][:] == [["1", "2", "3"]]
    assert read(tmp_path, "1 Ada B-PER\nsaw it O\n")["words"][:] == [["1", "saw"]]


def test_a_hash_sign_is_a_word_if_it_has_a_tag(tmp_path: Path) -> None:
    content = "# O\nwow O\n\n#rome B-LOC\n! O\n"
    assert read(tmp_path, content)["words"][:] == [["#", "wow"], ["#rome", "!"]]


def test_a_file_without_empty_lines_is_read_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = "".join(f"w{place} O\n" for place in range(3000))
    assert len(read(tmp_path, content)) == 1
    assert "3000" in caplog.text and "empty line" in caplog.text


NASTY = [["New York", "is", "\t", "big"], [], ["", " ", "\n", "a\u00a0b", "c\u2028d"], ["#", "1"], ["1", "2", "3"]]


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("words", [NASTY, [["1", "2", "3"], ["1", "2"]], [["#a", "b"]], [["word", "x"]]])
def test_what_is_written_can_be_read_back(tmp_path: Path, labelled: bool, words: list[list[str]]) -> None:
    tags = [[(place + len(row)) % 9 for place in range(len(row))] for row in words]
    columns: dict[str, Any] = {"words": words, "tags": tags} if labelled else {"words": words}
    split = datasets.Dataset.from_dict(columns, features=None)
    predicted = [[TAGS[(tag + 1) % 9] for tag in row] for row in tags]
    shares = [[0.5] * len(row) for row in words]
    predictions = {"prediction": predicted, "probabilities": shares}
    path, lines = CONLL2003.write_predictions(tmp_path, "test", split, predictions)

    # As the statistics read it.
    if labelled:
        assert len(CONLL2003.example_scores("test", split, tmp_path)["entity_f1"]) == len(words)

    # As data of another run: the last column is the prediction.
    again = read_file(path, tagged=True)
    assert again["tags"][:] == [row for row in predicted if row]
    exact = [word for row in words for word in row if word.strip() and word not in "\t\n"]
    assert [word for row in again["words"] for word in row if word != "_"] == exact

    rows = [json.loads(line) for line in lines.read_text(encoding="utf-8").split("\n") if line]
    assert [row["words"] for row in rows] == words
    if labelled:
        config = NerConfig(model_name_or_path="m", do_train=True, train_file=str(lines))
        task = configured_task(config)
        assert task.load(None, ["train"])["train"]["words"][:] == words
