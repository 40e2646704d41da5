"""Tagged words in tables: a sentence per row, or a word per row."""

import pytest
from errors import user_error

from bert_repro.tasks.data import read_file

SENTENCES = {"words": [["Ann", "sees", "Rome"], ["no", "."]], "tags": [["B-PER", "O", "B-LOC"], ["O", "O"]]}


@pytest.mark.parametrize(
    "content",
    [
        "words,tags\nAnn sees Rome,B-PER O B-LOC\nno .,O O\n",
        # pandas writes lists like this.
        "words,tags\n\"['Ann', 'sees', 'Rome']\",\"['B-PER', 'O', 'B-LOC']\"\n\"['no', '.']\",\"['O', 'O']\"\n",
        "sentence,word,tag\n1,Ann,B-PER\n1,sees,O\n1,Rome,B-LOC\n2,no,O\n2,.,O\n",
        "Sentence #,Word,POS,Tag\nSentence: 1,Ann,N,B-PER\n,sees,V,O\n,Rome,N,B-LOC\nSentence: 2,no,D,O\n,.,P,O\n",
    ],
)
def test_both_forms_are_read(tmp_path, content):
    path = tmp_path / "x.csv"
    path.write_text(content)
    assert read_file(path, tagged=True).to_dict() == SENTENCES


def test_other_columns_of_sentences_are_kept(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("id;tokens;ner_tags\n7;Ann sees Rome;B-PER O B-LOC\n8;no .;O O\n")
    columns = {"id": ["7", "8"], "tokens": SENTENCES["words"], "ner_tags": SENTENCES["tags"]}
    assert read_file(path, tagged=True).to_dict() == columns


@pytest.mark.parametrize(
    ("content", "contained"),
    [
        ("words,tags\na b,O\n", ("line 2", "2 words", "1 tags")),
        ("words,tags\n\"['a' 'b']\",\"['O' 'O']\"\n", ("line 2", "without commas")),
        ("word,tag\na,O\n", ("sentence",)),
        ("sentence,word,tag\n1,,O\n", ("line 2", "empty")),
    ],
)
def test_what_cannot_be_told_apart_is_refused(tmp_path, content, contained):
    path = tmp_path / "x.csv"
    path.write_text(content)
    with user_error(path, *contained):
        read_file(path, tagged=True)
