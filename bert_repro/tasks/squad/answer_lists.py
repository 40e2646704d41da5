"""Files of answers: those of the official scripts, and for people a question on each line, the surest errors, scores by
what is asked for."""

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_repro.tasks.predictions import surest_errors, write_json_lines
from bert_repro.tasks.squad import scoring
from bert_repro.utils.files import atomic_file

if TYPE_CHECKING:
    import datasets

Record = dict[str, Any]

QUESTION_WORDS = ("what", "who", "when", "where", "which", "why", "how")
OTHER = "other"


def answer_records(
    dataset: "datasets.Dataset", answers: Sequence[str], nbest: Iterable[list[Record]]
) -> Iterator[Record]:
    """Yields a record for each question: id, question, context, `label` (the right answers, of a labelled split),
    prediction and its probability among the n best.

    Args:
        dataset: the split.
        answers: of the model; "" for none.
        nbest: the n-best list of each question.
    """
    labelled = "answers" in dataset.column_names
    for example, text, best in zip(dataset, answers, nbest, strict=True):
        record = {name: example[name] for name in ("id", "question", "context")}
        if labelled:
            record["label"] = list(dict.fromkeys(example["answers"]["text"]))
        shares = (entry["probability"] for entry in best if entry["text"] == text)
        yield {**record, "prediction": text, "probability": round(next(shares, 0.0), 6)}


def write_answers(
    folder: Path, split: str, records: Callable[[], Iterable[Record]], *, unanswerable: bool
) -> list[Path]:
    """Writes predictions.SPLIT.jsonl, a question with its passage and answer on each line, and of a labelled split
    predictions.SPLIT.errors.jsonl, the hundred entirely wrong answers that the model was surest of.

    Args:
        folder: an existing folder.
        split: name of the split.
        records: gives its records, from the first one at each call: they are not held in memory.
        unanswerable: count as the script of v2.0 does.

    Returns:
        The files written.
    """

    def is_wrong(record: Mapping[str, Any]) -> bool:
        scores = scoring.score_questions([record["prediction"]], [record["label"]], unanswerable=unanswerable)
        return not scores.f1[0]  # no word of a right answer

    path = folder / f"predictions.{split}.jsonl"
    write_json_lines(path, records())
    if "label" not in next(iter(records())):
        return [path]
    errors = folder / f"predictions.{split}.errors.jsonl"
    write_json_lines(errors, surest_errors(records(), is_wrong))
    return [path, errors]


def details_by_question_word(
    answers: Sequence[str], dataset: "datasets.Dataset", *, unanswerable: bool
) -> dict[str, Any]:
    """Returns `per_question_word`: exact match, F1 and number of the questions that ask what, who, when ...

    Args:
        answers: of the model; "" for none.
        dataset: a labelled split.
        unanswerable: count as the script of v2.0 does.
    """
    scores = scoring.score_questions(answers, scoring.answer_texts(dataset), unanswerable=unanswerable)
    asked = np.array([question_word(question) for question in dataset["question"]])
    rows = {word: asked == word for word in (*QUESTION_WORDS, OTHER) if (asked == word).any()}
    return {
        "per_question_word": {
            word: {
                "exact_match": float(scores.exact_match[places].mean()),
                "f1": float(scores.f1[places].mean()),
                "questions": int(places.sum()),
            }
            for word, places in rows.items()
        }
    }


def question_word(question: str) -> str:
    """Returns the first word of a question that says what it asks for, or `other`."""
    words = (word.strip("?,.\"'") for word in question.lower().split())
    return next((word for word in words if word in QUESTION_WORDS), OTHER)


def write_by_id(path: Path, ids: Iterable[str], values: Iterable[Any]) -> None:
    """Writes a JSON object of one value per question as the official scripts read it, a question at a time.

    Args:
        path: the file.
        ids: at least one question id.
        values: the value of each.
    """
    with atomic_file(path) as file:
        before = "{"
        for identity, value in zip(ids, values, strict=True):
            text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False).replace("\n", "\n ")
            file.write(f"{before}\n {json.dumps(identity, ensure_ascii=False)}: {text}")
            before = ","
        file.write("\n}\n")


class ListsOnDisk:
    """N-best lists in a temporary file, read back in order: those of a large set do not fit into memory."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 (it goes with the object)

    def append(self, best: list[dict[str, Any]]) -> None:
        """Adds the list of the next question."""
        self._file.write(json.dumps(best) + "\n")

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        self._file.seek(0)
        return map(json.loads, self._file)
