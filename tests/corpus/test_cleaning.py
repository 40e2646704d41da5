import hashlib
import json
import textwrap
from collections import Counter

import pytest

from bert_repro.corpus.cleaning import RULES, RULES_VERSION, passages, repair

SENTENCE = "The mountain lies in the north of the country and is climbed by many people every year."
FILLER = SENTENCE + " Its first ascent was made in 1865 by a party of seven, four of whom died on the way down."


def find_passages(text, title=None):
    """Returns the passages, the lines that each rule dropped, and how many lines were repaired."""
    counts = Counter()
    kept = passages(text, title, counts)
    dropped = {rule: counts[f"dropped_{rule}"] for rule in RULES if f"dropped_{rule}" in counts}
    return kept, dropped, counts["lines_repaired"]


def test_wikipedia_extract_keeps_passages_only():
    text = (
        f"Mountain\n\n{FILLER}\nHistory.\nFirst ascent.\n{FILLER}\n1,234 m (4,049 ft)\n]\nSee also\n{{{{#if:\n{FILLER}"
    )
    kept, dropped, _ = find_passages(text, "Mountain")
    assert kept == [FILLER] * 3
    assert dropped == {"title": 1, "heading": 3, "symbols": 1, "markup": 2}


def test_short_lines_are_headings_in_articles_and_dialogue_elsewhere():
    lines = [FILLER, '"Who is there?"', '"No."', "Nobody answered her."]
    text = "\n".join(lines)
    assert passages(text) == lines
    assert passages("Night\n" + text, "Night") == [FILLER]


@pytest.mark.parametrize(
    "line",
    [
        "CHAPTER I.",
        "Chapter XII. In which Harry pays off an old debt, and incurs some new ones.",
        "I. BRETTON",
        "THE END.",
        "by George Eliot",
        "External links",
    ],
)
def test_headings_and_front_matter_are_dropped(line):
    kept, dropped, _ = find_passages(f"{FILLER}\n{line}\n{FILLER}")
    assert kept == [FILLER, FILLER] and dropped == {"heading": 1}


@pytest.mark.parametrize(
    "line",
    [
        "Part-time students may take the laptops home.",
        "Chapter XV of his book discusses what he called relations.",
        '"GET OUT!"',
        "Book reviews are what he lived on.",
        "And he said:",
        "她在山上住了很多年，每天早上都去河边打水，直到战争开始。",
    ],
)
def test_text_that_looks_like_a_heading_is_kept(line):
    assert passages(f"{FILLER}\n{line}") == [FILLER, line]


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("• Improved access to health care for the people of all the poorer regions.", "list"),
        ("- Wash hands before and after cooking for at least thirty seconds or more", "list"),
        ("| name = value of a template that spans many lines and more", "markup"),
        ("[[File:Mountain.jpg|thumb|right|The mountain as seen from the south side in winter]]", "markup"),
        ("[Illustration: The mountain as seen from the south side in winter]", "markup"),
        ("* * * * *", "symbols"),
        ("formula_12", "markup"),
    ],
)
def test_lists_tables_and_debris_are_dropped(line, rule):
    kept, dropped, _ = find_passages(f"{FILLER}\n{line}")
    assert kept == [FILLER] and dropped == {rule: 1}


@pytest.mark.parametrize(
    ("line", "repaired"),
    [
        ('German ("Deutsch" ]) is spoken.', 'German ("Deutsch" ) is spoken.'),
        ("The mass formula_2 divided by formula_13 is it.", "The mass divided by is it."),
        ("The [[Closure (computer science)|closure]] of [[Rome]].", "The closure of Rome."),
        ("Sürgün in Turkish () is this.", "Sürgün in Turkish is this."),
        ("He said so.[12] And left.[citation needed]", "He said so. And left."),
        ("Ernst &amp; Young<br>of <i>London</i>", "Ernst & Young of London"),
        ("a bore of {{convert|83|mm|in}} and more", "a bore of and more"),
        ("A list x[1] and f() stay as they are.", "A list x and f() stay as they are."),
        ("* * * * * It was now.", "It was now."),
    ],
)
def test_repairs(line, repaired):
    assert repair(line) == repaired


PARAGRAPHS = [
    FILLER,
    '"Who is there?" she asked, and her voice was so low that nobody in the whole of the long dark room heard her.',
    "Nobody answered her, for the good-natured old gamekeeper had gone down to the village with all of the others.",
]


def test_hard_wrapped_paragraphs_are_joined_with_and_without_blank_lines():
    wrapped = [textwrap.fill(paragraph, 60) for paragraph in PARAGRAPHS * 3]
    assert passages("\n\n".join(wrapped)) == PARAGRAPHS * 3
    kept, dropped, _ = find_passages("\n".join(["CHAPTER I.", "The Mountain", *wrapped]))
    assert kept == PARAGRAPHS * 3 and dropped == {"heading": 2}


def test_a_line_broken_at_a_hyphen_is_joined_without_a_space():
    lines = [
        "He had heard that the old mill stood upon the sun-",
        "lit side of the valley, and that the road to it was as",
    ]
    found = passages("\n".join([*lines, "good as any other road in the country he knew so well"] * 3))
    assert found[0].count("sun-lit") == 3


def test_one_sentence_per_line_is_left_alone():
    lines = [f"Sentence number {i} of this document is about as long as this, and it ends." for i in range(20)]
    assert passages("\n".join(lines)) == lines
    wrapped = textwrap.wrap(FILLER, 60) * 2
    assert passages("\n".join(wrapped), unwrap=False) == wrapped


def test_changed_rules_change_their_version():
    # Another digest means that the rules keep, drop or repair other lines than before: raise RULES_VERSION and write
    # the new digest down, or parts made by both would be mixed.
    lines = [
        "Mountain", FILLER, "A heading", "* a bullet", "- a dash", "{{template}}", "12 34 56", "CHAPTER IV", "THE END",
        "A [[link|text]] and <b>bold</b> words [1] go on &amp; on until the long sentence ends right here.",
        "Was this said, he wondered, by one who had seen the {{convert|3|km}} of road (, ) and formula_12 himself?",
        "«Nobody,» she said,", "二千十九年四月、桜の花が咲いている間に、私たちは山へ行った。",
    ]  # fmt: skip
    wrapped = textwrap.wrap(" ".join([FILLER] * 5), 70)
    texts = ((lines, "Mountain"), (lines, None), (wrapped, None), (["Too short."], None))
    found = []
    for text, title in texts:
        kept, dropped, repaired = find_passages("\n".join(text), title)
        found.append({"kept": kept, "dropped": dropped, "repaired": repaired})
    digest = hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16]
    assert (RULES_VERSION, digest) == (1, "f7d8180c2133f4dd")
