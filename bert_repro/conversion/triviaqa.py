"""Converts TriviaQA's questions to SQuAD's form, for the training step before SQuAD (paper 4.2, Table 2, footnote 12).

TriviaQA (Joshi et al., 2017; https://nlp.cs.washington.edu/triviaqa) gives a question, the names of its answer, and
documents that may contain the answer, but not where it is. As in the paper, the passage is the beginning of a document.
It becomes an example if it contains one of the names, and is left out otherwise.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_repro.configs import TriviaqaConfig
from bert_repro.errors import UserError, flag
from bert_repro.utils.files import atomic_file
from bert_repro.utils.readers import read_json, read_utf8

logger = logging.getLogger("bert_repro")

EVIDENCE_FOLDERS = {"EntityPages": "wikipedia", "SearchResults": "web"}
"""The lists of documents that a question has, and the folder of evidence that contains each list's files."""
_COUNTS = ("questions", "documents", "examples", "without_answer", "missing")
_TOKEN = re.compile(r"\w+|[^\w\s]")
# A name counts only between characters that are neither letters nor digits.
_COMPLETE_NAME = r"(?<!\w)(?:{})(?!\w)"


@dataclass(frozen=True)
class _Document:
    """One document of a question.

    Args:
        folder: the folder of evidence.
        name: the file in it; None for a search result whose text TriviaQA does not contain.
        title: title of the page.
    """

    folder: str
    name: str | None
    title: str | None

    def path(self, evidence: Path) -> Path | None:
        """Returns the path of the file, or None if there is no such file in the folder."""
        if self.name is None:
            return None
        path = evidence / self.folder / self.name
        # A name in a data file must not lead to files elsewhere on this machine.
        is_inside = path.resolve().is_relative_to((evidence / self.folder).resolve())
        return path if is_inside and path.is_file() else None


@dataclass(frozen=True)
class _Question:
    """One question of a file of TriviaQA.

    Args:
        identity: the question's id.
        text: the question.
        names: the names of its answer.
        documents: the documents that may contain the answer.
    """

    identity: str
    text: str
    names: tuple[str, ...]
    documents: tuple[_Document, ...]


def convert_triviaqa(config: TriviaqaConfig) -> dict[str, int]:
    """Writes a file of TriviaQA as SQuAD v1.1's JSON, with an example for every document that contains the answer.

    The id of an example is `QuestionId--Filename`. Its first answer is the first place that contains a name; the other
    answers are the other spellings that occur.

    Returns:
        Counts: `questions` read, their `documents`, and of these the `examples` written, those `without_answer` in
        their beginning, `missing` files, and those `repeated` for one question.

    Raises:
        UserError: the file is not in TriviaQA's form, no document contains an answer, or the output cannot be written.
    """
    source = Path(config.qa_file)
    output_file = Path(config.output_file)
    questions = _read_questions(source)
    counts = Counter(dict.fromkeys(_COUNTS, 0))
    with atomic_file(output_file) as file:
        articles = list(_articles(questions, Path(config.evidence_dir), config.max_tokens, counts))
        json.dump({"version": "1.1", "data": articles}, file, ensure_ascii=False)
        # An error inside the block leaves no output file behind.
        if not counts["examples"]:
            raise UserError(
                f"{source}: no document of {flag('evidence_dir', config.evidence_dir)} contains an answer "
                f"({_describe(counts)}). Choose the folder that belongs to this file.",
                setting="evidence_dir",
            )
    logger.info("%s: %s", output_file, _describe(counts))
    return dict(counts)


def _describe(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in counts.items())


def _read_questions(path: Path) -> list[_Question]:
    content = read_json(path)
    questions = []
    try:
        for entry in content["Data"]:
            questions.append(_question(entry))
    except (AttributeError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: question {len(questions) + 1} is not in TriviaQA's form ({error!r}). Choose one of TriviaQA's "
            "files qa/*.json that contain answers.",
            setting="qa_file",
        ) from None
    return questions


def _question(entry: Mapping[str, Any]) -> _Question:
    """Returns a question of TriviaQA's JSON.

    Raises:
        AttributeError, KeyError, TypeError: the entry is not in TriviaQA's form.
    """
    answer = entry["Answer"]
    documents = []
    for key, folder in EVIDENCE_FOLDERS.items():
        for page in entry.get(key, []):
            name = page.get("Filename")
            documents.append(_Document(folder, name, page.get("Title", name)))
    return _Question(
        identity=entry["QuestionId"],
        text=entry["Question"],
        names=(answer["Value"], *answer.get("Aliases", []), *answer.get("HumanAnswers", [])),
        documents=tuple(documents),
    )


def _articles(
    questions: Sequence[_Question], evidence: Path, max_tokens: int, counts: Counter[str]
) -> Iterator[dict[str, Any]]:
    """Yields an article with one paragraph and one question for every document that contains an answer.

    Args:
        questions: the questions.
        evidence: folder of the documents.
        max_tokens: tokens of a passage.
        counts: what `convert_triviaqa` returns; this function counts in it.
    """
    for question in questions:
        counts["questions"] += 1
        earlier_names: set[str | None] = set()
        for document in question.documents:
            counts["documents"] += 1
            if document.name is not None and document.name in earlier_names:
                counts["repeated"] += 1
                continue
            earlier_names.add(document.name)
            path = document.path(evidence)
            if path is None:
                counts["missing"] += 1
                continue

            context = first_tokens(read_utf8(path), max_tokens)
            answers = find_answers(context, question.names)
            if not answers:
                counts["without_answer"] += 1
                continue
            counts["examples"] += 1
            identity = f"{question.identity}--{document.name}"
            entry = {"id": identity, "question": question.text, "answers": answers}
            yield {"title": document.title, "paragraphs": [{"context": context, "qas": [entry]}]}


def first_tokens(text: str, limit: int) -> str:
    """Returns the beginning of a text, to the end of its `limit`-th token. A token is a word or a punctuation mark."""
    for number, token in enumerate(_TOKEN.finditer(text), start=1):
        if number == limit:
            return text[: token.end()]
    return text


def find_answers(context: str, names: Sequence[str]) -> list[dict[str, Any]]:
    """Finds the names of an answer in a text.

    Case and the kind of white space make no difference. A name is not found inside a longer word. If several names
    begin at one place, the longest one is taken.

    Returns:
        SQuAD's answers (`text` and `answer_start`): each spelling once, in the order of their first places.
    """
    # Very long names would make very long patterns, so names that are longer than the text are left out first.
    candidates = {name.strip() for name in names if len("".join(name.split())) <= len(context)}
    longest_first = sorted(candidates - {""}, key=lambda name: (-len(name), name))
    if not longest_first:
        return []
    patterns = []
    for name in longest_first:
        patterns.append(r"\s+".join(map(re.escape, name.split())))

    first_places: dict[str, int] = {}
    for match in re.finditer(_COMPLETE_NAME.format("|".join(patterns)), context, re.IGNORECASE):
        first_places.setdefault(match.group(), match.start())
    return [{"text": text, "answer_start": start} for text, start in first_places.items()]
