"""The four families of tasks in miniature: a model to start from, files, and the flags of a short run."""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from running import RECIPES
from tiny_models import save_model

NAMES = ("run_glue", "run_squad", "run_swag", "run_ner")
_WORDS = "the a river stone bird light tree house green quiet small old falls runs sings grows turns".split()
_SWAG = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label"


@dataclass(frozen=True)
class Family:
    """One recipe's data.

    Args:
        recipe: its name.
        flags: what a run of it needs beside a model and an output folder.
        rows: examples in its dev set.
        predictions: file of dev predictions that a run leaves.
    """

    recipe: str
    flags: tuple[object, ...]
    rows: int
    predictions: str

    @property
    def script(self) -> Path:
        return RECIPES / f"{self.recipe}.py"

    def written(self, folder: Path) -> int:
        """How many examples the dev predictions in a run's folder are for."""
        text = (folder / self.predictions).read_text()
        if self.recipe == "run_squad":
            return len(json.loads(text))
        return text.count("\n\n") if self.recipe == "run_ner" else text.count("\n") - 1


def save_start(world: Any, folder: Path, *, dropout: float) -> Path:
    """A checkpoint without heads."""
    return save_model(world, folder, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)


def families(world: Any, root: Path) -> dict[str, Family]:
    """Writes the files and describes the runs."""
    generator = random.Random(0)
    glue = Family("run_glue", ("--task_name sst2 --data_dir", world.glue), 21, "predictions.validation.tsv")
    made = [make(root, generator) for make in (_squad, _swag, _ner)]
    return {family.recipe: family for family in (glue, *made)}


def _squad(root: Path, generator: random.Random) -> Family:
    (folder := root / "squad").mkdir()
    for name, count in (("train", 24), ("dev", 11)):
        paragraphs = []
        for number in range(count):
            words = generator.choices(_WORDS, k=generator.randint(8, 40))
            place = generator.randrange(len(words))
            answer = {"text": words[place], "answer_start": len(" ".join([*words[:place], ""]))}
            question = {"id": f"{name}{number}", "question": "what falls", "answers": [answer]}
            paragraphs.append({"context": " ".join(words), "qas": [question]})
        (folder / f"{name}-v1.1.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    shape = "--task_name squad --max_seq_length 24 --max_query_length 8 --doc_stride 6 --data_dir"
    return Family("run_squad", (shape, folder), 11, "predictions.json")


def _swag(root: Path, generator: random.Random) -> Family:
    (folder := root / "swag").mkdir()
    for name, count in (("train", 24), ("val", 7)):
        rows = [
            f"{n},v,1,x,{','.join(' '.join(generator.choices(_WORDS, k=4)) for _ in range(2))},gold,"
            f"{','.join(' '.join(generator.choices(_WORDS, k=generator.randint(1, 9))) for _ in range(4))},{n % 4}"
            for n in range(count)
        ]
        (folder / f"{name}.csv").write_text("\n".join([_SWAG, *rows]) + "\n")
    return Family("run_swag", ("--data_dir", folder), 7, "predictions.validation.csv")


def _ner(root: Path, generator: random.Random) -> Family:
    (folder := root / "ner").mkdir()
    for name, count in (("eng.train", 120), ("eng.testa", 30)):
        lines = []
        for number in range(count):
            lines += ["", "-DOCSTART- -X- O O", ""] if number % 3 == 0 else [""]
            words = generator.choices(_WORDS, k=generator.randint(1, 12))
            lines += [f"{word} X X {'I-LOC' if word in ('river', 'house') else 'O'}" for word in words]
        (folder / name).write_text("\n".join(lines) + "\n")
    return Family("run_ner", ("--max_seq_length 16 --data_dir", folder), 30, "predictions.validation.txt")
