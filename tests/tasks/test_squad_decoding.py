"""Decoding and answer texts against a second implementation that walks through spans and characters one by one."""

import itertools
import json
import math
import random

import numpy as np
import pytest
from transformers.models.bert.tokenization_bert_legacy import BasicTokenizer

from bert_repro.models.loading import SPECIAL_TOKENS, build_tokenizer
from bert_repro.tasks.squad_decoding import CERTAIN_NULL, Decoder, OriginalText, text_by_offsets
from bert_repro.tasks.squad_windows import fullest_windows, tokenize_passages, window_spans

LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
PIECES = [*LETTERS, *(f"##{letter}" for letter in LETTERS), *"0123456789", *(f"##{digit}" for digit in range(10))]
MARKS = list("()[]'\".,-$%“”’«»–!?;:&/")
OTHERS = ["the", "of", "##ing", "北", "京", "大", "学", "東", "ß", "##ß", "##и", "и", "э", "##э", "о", "##о"]


def tokenizer_of(entries, lowercase=True):
    return build_tokenizer({entry: number for number, entry in enumerate([*SPECIAL_TOKENS, *entries])}, lowercase)


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizer_of([*PIECES, *MARKS, *OTHERS])


@pytest.fixture(scope="module")
def cased():
    return tokenizer_of([*PIECES, *MARKS, *(piece.upper() for piece in PIECES[:52]), "é", "##é"], lowercase=False)


def passage_of(tokenizer, context):
    return next(tokenize_passages(tokenizer, [context]))


# ---------------------------------------------------------------------------------------------------------------- texts


def aligned_text(passage, first, last, lowercase):
    """The original alignment, character by character, on the tokenizer library's slow first stage."""
    words = [passage.context[a:b] for a, b in passage.words]
    complete = " ".join(words[passage.word_of[first] : passage.word_of[last] + 1])
    predicted = " ".join(passage.pieces[first : last + 1]).replace(" ##", "").replace("##", "")
    predicted = " ".join(predicted.split())
    split = " ".join(BasicTokenizer(do_lower_case=lowercase).tokenize(complete))
    begin = split.find(predicted)
    if begin == -1:
        return complete
    finish = begin + len(predicted) - 1
    origin, other = {}, {}
    for place, character in enumerate(complete):
        if character != " ":
            origin[len(origin)] = place
    for place, character in enumerate(split):
        if character != " ":
            other[place] = len(other)
    if len(origin) != len(other):
        return complete
    return complete[origin[other[begin]] : origin[other[finish]] + 1]


FRAGMENTS = [
    "the", "The", "of", "U.S.", "don't", "naïve", "Beyonce\u0301", "北京大学", "“Hi”", "(x)", "$5.00", "1990s", "a-b-c",
    "weiß", "☃", "a☃b", "\u200b", "a\u00a0b", "это", "--", "ing", "singing", "the-the", "'quoted'", "ÉCOLE", "İstanbul",
    "x²",
]  # fmt: skip


def random_context(generator, fragments=FRAGMENTS):
    parts = []
    for _ in range(generator.randint(1, 14)):
        parts.append("".join(generator.choices(fragments, k=generator.choice([1, 1, 1, 2]))))
        parts.append(generator.choice([" ", " ", " ", "  ", "\n", "\t", "\u202f"]))
    return "".join(parts)


@pytest.mark.parametrize("lowercase", [True, False])
def test_texts_equal_the_character_by_character_alignment(tokenizer, cased, lowercase):
    chosen = tokenizer if lowercase else cased
    generator = random.Random(7)
    recover, compared, trimmed = OriginalText(chosen), 0, 0
    # The slow first stage of transformers composes characters in cased text; the release and the fast one do not.
    fragments = FRAGMENTS if lowercase else [fragment for fragment in FRAGMENTS if "\u0301" not in fragment]
    for _ in range(300):
        passage = passage_of(chosen, random_context(generator, fragments))
        for _ in range(8):
            if len(passage.ids):
                first = generator.randrange(len(passage.ids))
                last = min(len(passage.ids) - 1, first + generator.randrange(8))
                expected = aligned_text(passage, first, last, lowercase)
                assert recover(passage, first, last) == expected
                compared += 1
                trimmed += expected != " ".join(passage.words_between(first, last))
    assert compared > 2000 and trimmed > 300


# --------------------------------------------------------------------------------------------------------------- search


def walk(passage, windows, scores, passage_at, settings):
    """Candidates and n-best list by loops; the order of equal scores is that in which spans are met."""
    fullest = fullest_windows(windows, len(passage.ids))
    met, null = [], None
    for number, ((start_piece, size), values) in enumerate(zip(windows, scores, strict=True)):
        if null is None or values[0, 0] + values[0, 1] < sum(null):
            null = (values[0, 0], values[0, 1])
        ranks = [sorted(range(len(values)), key=lambda place, side=side: -values[place, side]) for side in (0, 1)]
        tried = [range(len(values))] * 2 if settings.exact else [rank[: settings.n_best_size] for rank in ranks]
        for start, end in itertools.product(*tried):
            first, last = start - passage_at, end - passage_at
            if not (0 <= first <= last < size) or last - first >= settings.max_answer_length:
                continue
            if fullest[start_piece + first] == number:
                met.append((start_piece + first, start_piece + last, values[start, 0], values[end, 1]))
    if settings.nullable:
        met.append((None, None, *null))
    best, texts = [], set()
    for first, last, start, end in sorted(met, key=lambda span: -(span[2] + span[3])):
        if len(best) == settings.n_best_size:
            break
        text = "" if first is None else settings.text_of(passage, first, last)
        if text not in texts:
            texts.add(text)
            best.append((text, start, end))
    if settings.nullable and "" not in texts:
        best.append(("", *null))
    return best or [("empty", 0.0, 0.0)], sum(null)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("nullable", [False, True])
@pytest.mark.parametrize("levels", [3, 1000])
def test_answers_equal_the_walk_through_all_spans(tokenizer, exact, nullable, levels):
    """With three levels of scores nearly all are equal, so the order among equals shows."""
    generator, numbers = random.Random(levels), np.random.default_rng(levels)
    settings = {"exact": exact, "n_best_size": 5, "max_answer_length": 4, "nullable": nullable}
    decoder = Decoder(**settings, text_of=OriginalText(tokenizer))
    for _ in range(60):
        passage = passage_of(tokenizer, random_context(generator))
        windows = window_spans(len(passage.ids), room=12, stride=5)
        passage_at = generator.randint(2, 6)
        scores = [numbers.integers(levels, size=(passage_at + size + 1, 2)).astype(float) for _, size in windows]
        answer = decoder.answer(passage, windows, scores, passage_at)
        expected, null = walk(passage, windows, scores, passage_at, decoder)
        assert [(entry["text"], entry["start_logit"], entry["end_logit"]) for entry in answer.best] == expected
        assert math.isclose(sum(entry["probability"] for entry in answer.best), 1)
        assert sum(expected[0][1:]) == answer.best[0]["start_logit"] + answer.best[0]["end_logit"]
        if nullable:
            spans = [entry for entry in expected if entry[0]]
            assert answer.null_odds == (null - spans[0][1] - spans[0][2] if spans else CERTAIN_NULL)
            assert answer.text == (answer.best[0]["text"] or answer.best[-1]["text"] or answer.text)


@pytest.mark.parametrize("length", [0, 3])
def test_without_a_span_there_is_no_answer_and_no_crash(tokenizer, length):
    passage = passage_of(tokenizer, "abc"[:length])
    values = np.zeros((length + 5, 2))
    values[1:4] = 5
    settings = {"exact": False, "n_best_size": 3, "max_answer_length": 30, "text_of": text_by_offsets}
    answer = Decoder(**settings, nullable=True).answer(passage, [(0, length)], [values], 4)
    assert (answer.text, answer.null_odds) == ("", CERTAIN_NULL)
    assert answer.best == [{"text": "", "probability": 1.0, "start_logit": 0.0, "end_logit": 0.0}]
    assert json.loads(json.dumps(answer.best, allow_nan=False)) == answer.best
    assert Decoder(**settings, nullable=False).answer(passage, [(0, length)], [values], 4).text == "empty"
