"""What the rows of Tables 1 to 8 and of Figure 5 are, and the runs that make them.

A plan is a list of runs, each with the cells of the paper's tables that it fills. Two rows that need the same run share
it: Table 5's base is Table 8's 80/10/10 row, one of Table 6's sizes and the last point of Figure 5's masked curve.

Tables 1 to 4 have the rows BERT-base and, where the scale has one, BERT-large, scored on dev: test sets without labels
are the leaderboards'. So Table 1, which is test only, shows ours on dev and no difference. No plan makes the ensembles
and the TriviaQA step of Table 2; `run_squad --ensemble_with` and `convert_triviaqa` make them by hand.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from bert_repro.configs import PretrainingConfig, first_names
from bert_repro.errors import UserError
from bert_repro.paper_results import TABLES, Column
from bert_repro.presets import MASKING_MIXES
from bert_repro.reproduction.size_presets import TASK_RECIPES, Scale, as_settings

FIGURE_5 = "figure5"
STUDIES = ("1", "2", "3", "4", "5", "6", "7", "8", FIGURE_5)

_NO_NSP = {"next_sentence_prediction": False}
_LEFT_TO_RIGHT = {**_NO_NSP, "left_to_right": True}
_TABLE_5: Mapping[str, tuple[Mapping[str, Any], bool]] = {  # row -> pre-training, and whether a BiLSTM is added
    "BERT-base": ({}, False),
    "No NSP": (_NO_NSP, False),
    "LTR & no NSP": (_LEFT_TO_RIGHT, False),
    "LTR & no NSP + BiLSTM": (_LEFT_TO_RIGHT, True),
}
_FEATURE_ROWS = {  # Table 7's row -> what `--feature_based` calls it
    "Embeddings": "embeddings",
    "Second-to-last hidden": "second_to_last",
    "Last hidden": "last",
    "Weighted sum last four hidden": "weighted_last_four",
    "Concat last four hidden": "concat_last_four",
    "Weighted sum all 12 layers": "weighted_all",
}
_TABLE_8_FEATURES = "concat_last_four"


@dataclass(frozen=True)
class Cell:
    """A place in a table of the paper, or a point of Figure 5.

    Args:
        table: one of `STUDIES`.
        row: name of the row, as in `paper_results`; in Figure 5 MLM or LTR.
        column: name of the column; in Figure 5 the step.
    """

    table: str
    row: str
    column: str


@dataclass(frozen=True)
class Run:
    """One run of a recipe.

    Args:
        name: what people call it.
        recipe: key of `recipes.RECIPES`.
        settings: settings that decide its result, folders apart.
        data: names what it learns from: the pre-training corpus, or the task's files.
        start: the pre-training run whose model it starts from.
        step: the checkpoint of `start` that it starts from; None: the finished model.
        save_steps: of a pre-training run, how often it writes a checkpoint; all are kept. Makes it no other run.
        cells: what it fills. They do not make it another run.
    """

    name: str
    recipe: str
    settings: Mapping[str, Any]
    data: str
    start: "Run | None" = None
    step: int | None = None
    save_steps: int | None = None
    cells: tuple[Cell, ...] = ()

    @cached_property
    def id(self) -> str:
        """Name and a digest of all that decides the result: the same settings are the same run."""
        identity = {
            "recipe": self.recipe,
            "settings": as_settings(first_names(self.settings)),  # so that renamed settings make no other run
            "data": self.data,
            "start": self.start.digest if self.start else None,
            "step": self.step,
        }
        return f"{self.name}-{hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]}"

    @property
    def digest(self) -> str:
        """The part of `id` that does not depend on its name."""
        return self.id.rpartition("-")[2]

    @property
    def pretrains(self) -> bool:
        """Whether other runs start from it."""
        return self.start is None


def expand(studies: Iterable[str], scale: Scale, corpus: str, data_of: Callable[[str], str]) -> list[Run]:
    """The runs of some studies, each once, those that others start from first.

    Args:
        studies: out of `STUDIES`.
        scale: how large they are.
        corpus: names the pre-training corpus; another corpus makes other runs.
        data_of: names the files of a task, a key of `scales.TASK_RECIPES`; other files make other runs.

    Raises:
        UserError: the scale has no settings for a task that a study needs.
    """
    rows = _Rows(scale, corpus, data_of)
    merged: dict[str, Run] = {}
    for study in dict.fromkeys(studies):
        for run in rows.of(study):
            known = merged.get(run.id)
            cells = tuple(dict.fromkeys((*(known.cells if known else ()), *run.cells)))
            merged[run.id] = replace(run, cells=cells)
    return sorted(merged.values(), key=lambda run: not run.pretrains)


class _Rows:
    """Makes the runs of each study; one that several rows need comes once for each."""

    def __init__(self, scale: Scale, corpus: str, data_of: Callable[[str], str]) -> None:
        self.scale, self.corpus, self.data_of = scale, corpus, data_of

    def of(self, study: str) -> Iterator[Run]:
        makers = {"1": self._table_1, "2": self._table_2, "3": self._table_3, "4": self._table_4}
        makers |= {"5": self._table_5, "6": self._table_6, "7": self._table_7, "8": self._table_8}
        return makers.get(study, self._figure_5)()

    def _table_1(self) -> Iterator[Run]:
        for row, start in self._models():
            for task in dict.fromkeys(column.task for column in TABLES[1].columns if column.task != "glue"):
                columns = (column for column in TABLES[1].columns if column.task == task)
                yield from self._finetuning(start, task, _cells("1", row, columns), **self.scale.table_1)

    def _table_2(self) -> Iterator[Run]:
        return self._on_dev("2")

    def _table_3(self) -> Iterator[Run]:
        return self._on_dev("3")

    def _table_4(self) -> Iterator[Run]:
        return self._on_dev("4")

    def _on_dev(self, table: str) -> Iterator[Run]:
        """A table of one task, its columns on dev."""
        columns = [column for column in TABLES[int(table)].columns if column.split == "validation"]
        for row, start in self._models():
            yield from self._finetuning(start, columns[0].task, _cells(table, row, columns))

    def _models(self) -> Iterator[tuple[str, Run]]:
        """The rows that are models of the paper's two sizes, with their pre-training."""
        for row, size in (("BERT-base", self.scale.base), ("BERT-large", self.scale.large)):
            if size is not None:
                yield row, self._pretraining({}, size)

    def _table_5(self) -> Iterator[Run]:
        for row, (changes, with_bilstm) in _TABLE_5.items():
            start = self._pretraining(changes)
            added = {"bilstm_size": self.scale.bilstm_size} if with_bilstm else {}
            for column in TABLES[5].columns:
                yield from self._finetuning(start, column.task, [Cell("5", row, column.name)], **added)

    def _table_6(self) -> Iterator[Run]:
        perplexity, *tasks = TABLES[6].columns
        for size in self.scale.sizes:
            start = self._pretraining({}, size)
            yield replace(start, cells=(Cell("6", size, perplexity.name),))
            for column in tasks:
                yield from self._finetuning(start, column.task, [Cell("6", size, column.name)])

    def _table_7(self) -> Iterator[Run]:
        for row, start in self._models():
            yield from self._finetuning(start, "conll2003", _cells("7", row, TABLES[7].columns))
        start = self._pretraining({})
        for row, features in _FEATURE_ROWS.items():
            cells = _cells("7", row, TABLES[7].columns)
            yield from self._finetuning(start, "features", cells, feature_based=features)

    def _table_8(self) -> Iterator[Run]:
        mnli, finetuned, features = TABLES[8].columns
        for row, (mask, _, random) in zip(TABLES[8].rows, MASKING_MIXES, strict=True):
            start = self._pretraining({"mask_replace_prob": mask, "random_replace_prob": random})
            yield from self._finetuning(start, "mnli", [Cell("8", row, mnli.name)])
            yield from self._finetuning(start, "conll2003", [Cell("8", row, finetuned.name)])
            cell = Cell("8", row, features.name)
            yield from self._finetuning(start, "features", [cell], feature_based=_TABLE_8_FEATURES)

    def _figure_5(self) -> Iterator[Run]:
        for row, changes in (("MLM", {}), ("LTR", _LEFT_TO_RIGHT)):
            start = self._pretraining(changes)
            for step in self.scale.checkpoints:
                reached = None if step == self.scale.pretraining_steps else step
                yield from self._finetuning(start, "mnli", [Cell(FIGURE_5, row, str(step))], reached)

    def _pretraining(self, changes: Mapping[str, Any], size: str | None = None) -> Run:
        """A pre-training run; changes to what is the default anyway make no other run."""
        defaults = {item.name: item.default for item in fields(PretrainingConfig)}
        changes = {name: value for name, value in changes.items() if value != defaults[name]}
        shape = self.scale.sizes[size or self.scale.base]
        return Run(
            _name("pretraining", size or self.scale.base, changes),
            "run_pretraining",
            {**self.scale.pretraining, **shape, **changes},
            self.corpus,
            save_steps=self.scale.checkpoints[0],
        )

    def _finetuning(
        self, start: Run, task: str, cells: list[Cell], step: int | None = None, **changes: Any
    ) -> Iterator[Run]:
        """A fine-tuning run for each seed, with the runs that it needs."""
        yield start
        if task not in self.scale.tasks:
            where = " and ".join(dict.fromkeys(f"--table {cell.table}" for cell in cells))
            raise UserError(f"the scale's tasks lack {task}, which {where} needs; give it an entry, if only {{}}")
        recipe, data = TASK_RECIPES[task], self.data_of(task)
        told = {"task_name": "conll2003" if task == "features" else task, "do_train": True, "do_eval": True}
        if recipe == "run_ner":
            told["do_predict"] = True  # its test set is labelled
        for seed in self.scale.seeds:
            settings = {**told, **self.scale.tasks[task], **changes, "seed": seed}
            yield Run(f"{task}-seed{seed}", recipe, settings, data, start, step, cells=tuple(cells))


def _cells(table: str, row: str, columns: Iterable[Column]) -> list[Cell]:
    return [Cell(table, row, column.name) for column in columns]


def _name(kind: str, size: str, changes: Mapping[str, Any]) -> str:
    if "left_to_right" in changes:
        return f"{kind}-{size}-left-to-right"
    if "next_sentence_prediction" in changes:
        return f"{kind}-{size}-no-nsp"
    if changes:
        defaults = {item.name: item.default for item in fields(PretrainingConfig)}
        mask, random = (changes.get(name, defaults[name]) for name in ("mask_replace_prob", "random_replace_prob"))
        percent = round(100 * mask), round(100 * (1 - mask - random)), round(100 * random)
        return f"{kind}-{size}-masks-" + "-".join(map(str, percent))
    return f"{kind}-{size}"
