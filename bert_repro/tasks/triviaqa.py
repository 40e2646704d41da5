"""TriviaQA as questions in SQuAD's JSON, to fine-tune on before SQuAD v1.1 (paper 4.2, Table 2, footnote 12).

TriviaQA (Joshi et al., 2017; https://nlp.cs.washington.edu/triviaqa) gives a question, the names of its answer, and
documents that may hold it, but not where. As in the paper, a passage is the beginning of a document; it becomes an
example if it holds one of the names, and is left out otherwise.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_repro.configs import TriviaqaConfig
from bert_repro.errors import UserError
from bert_repro.utils.files import atomic_file
from bert_repro.utils.readers import read_json, read_utf8

logger = logging.getLogger("bert_repro")

PAGES = {"EntityPages": "wikipedia", "SearchResults": "web"}
"""The lists of a question's documents, and the folder of evidence that each is in."""
_TOKEN = re.compile(r"\w+|[^\w\s]")
_BOUND = r"(?<!\w)(?:{})(?!\w)"


def convert_triviaqa(config: TriviaqaConfig) -> dict[str, int]:
    """Writes the questions of a file of TriviaQA, one for every document that answers it, as SQuAD v1.1's JSON.

    Ids are `QuestionId--Filename`. The first answer is the first place that holds a name; others are the other
    spellings found.

    Returns:
        Counts: `questions` read, their `documents`, and of these the `examples` written, those `without_answer` at
        their beginning, `missing` files, and those that are `repeated` for one question.

    Raises:
        UserError: a file is not as TriviaQA's are, or no example came of it, or the output cannot be written.
    """
    source, target = Path(config.qa_file), Path(config.output_file)
    evidence = Path(config.evidence_dir)
    counts = Counter({name: 0 for name in ("questions", "documents", "examples", "without_answer", "missing")})
    with atomic_file(target) as file:
        articles = list(_articles(read_json(source)["Data"], evidence, config.max_tokens, counts))
        json.dump({"version": "1.1", "data": articles}, file, ensure_ascii=False)
        if not counts["examples"]:
            raise UserError(f"{source}: no example came of {dict(counts)}; name the right --evidence_dir")
    logger.info("%s: %s", target, ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in counts.items()))
    return dict(counts)


def first_tokens(text: str, limit: int) -> str:
    """Returns the beginning of a text, up to the end of its `limit`-th token: a word, or a punctuation mark."""
    for number, token in enumerate(_TOKEN.finditer(text), start=1):
        if number == limit:
            return text[: token.end()]
    return text


def find_answers(context: str, names: Sequence[str]) -> list[dict[str, Any]]:
    """Finds names of an answer in a text, as SQuAD's answers; each spelling once, the first place first.

    Case and the kind of white space do not count, and a name is a name only between other characters than letters and
    digits. Where several begin, the longest counts.
    """
    # No name that cannot be there, however long, becomes a pattern.
    fitting = {name.strip() for name in names if len("".join(name.split())) <= len(context)}
    longest_first = sorted(fitting - {""}, key=lambda name: (-len(name), name))
    if not longest_first:
        return []
    patterns = (r"\s+".join(map(re.escape, name.split())) for name in longest_first)
    found: dict[str, int] = {}
    for match in re.finditer(_BOUND.format("|".join(patterns)), context, re.IGNORECASE):
        found.setdefault(match.group(), match.start())
    return [{"text": text, "answer_start": start} for text, start in found.items()]


def _articles(
    questions: Sequence[Any], evidence: Path, max_tokens: int, counts: Counter[str]
) -> Iterator[dict[str, Any]]:
    """Yields an article of one paragraph and one question for every document that answers its question."""
    for question in questions:
        answer = question["Answer"]
        names = [answer["Value"], *answer.get("Aliases", []), *answer.get("HumanAnswers", [])]
        counts["questions"] += 1
        seen: set[str | None] = set()
        for folder, page in ((folder, page) for key, folder in PAGES.items() for page in question.get(key, [])):
            counts["documents"] += 1
            name = page.get("Filename")  # None: a search result of which TriviaQA keeps no text
            if name is not None and name in seen:
                counts["repeated"] += 1
                continue
            seen.add(name)
            path = evidence / folder / (name or "")
            if not path.is_file():
                counts["missing"] += 1
                continue
            context = first_tokens(read_utf8(path), max_tokens)
            answers = find_answers(context, names)
            if not answers:
                counts["without_answer"] += 1
                continue
            counts["examples"] += 1
            entry = {"id": f"{question['QuestionId']}--{name}", "question": question["Question"], "answers": answers}
            yield {"title": page.get("Title", name), "paragraphs": [{"context": context, "qas": [entry]}]}
