"""The runs behind Tables 1 to 8 and Figure 5 of the paper.

Each planned run names the table entries that it fills. Two rows that need the same run share it: Table 5's base is
Table 8's 80/10/10 row, one of Table 6's sizes and the last point of Figure 5's masked curve.

Tables 1 to 4 have the rows BERT-base and, where the size preset has one, BERT-large, scored on dev: test sets without
labels are the leaderboards'. So Table 1, which is test only, shows ours on dev and no difference. Finished models may
take the place of these two pre-trainings; then each has rows of its own name.

Table 2's ensembles and its rows with TriviaQA are not among them: `run_squad --ensemble_with` and `convert_triviaqa`
make these by hand.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from bert_repro.configs import PretrainingConfig
from bert_repro.configs.presets import MASKING_MIXES
from bert_repro.corpus.prepared_corpus import read_manifest
from bert_repro.errors import UserError
from bert_repro.hub.push import corpus_folder
from bert_repro.models.loading import config_file, load_config
from bert_repro.reproduction.paper_results import FEATURE_ROWS, FIGURE_5_KEY, FIGURE_5_ROWS, TABLES, Column, TableEntry
from bert_repro.reproduction.size_presets import FEATURES, RTE_AFTER_MNLI, TASK_RECIPES, SizePreset
from bert_repro.tasks import TASKS
from bert_repro.utils.files import CHECKPOINTS, file_digest, json_digest

DATA_DIRS = {"run_glue": "glue_dir", "run_squad": "squad_dir", "run_swag": "swag_dir", "run_ner": "conll_dir"}
"""Recipe -> the setting of `run_study` that names the folder of its official files."""

_NO_NSP = {"next_sentence_prediction": False}
_LEFT_TO_RIGHT = {**_NO_NSP, "left_to_right": True}
_TABLE_5 = {"BERT-base": {}, "No NSP": _NO_NSP, "LTR & no NSP": _LEFT_TO_RIGHT, "LTR & no NSP + BiLSTM": _LEFT_TO_RIGHT}
_TABLE_8_FEATURES = "concat_last_four"
_TASK_NAMES = {FEATURES: "conll2003", RTE_AFTER_MNLI: "rte"}  # of those that are not called like their data


@dataclass(frozen=True)
class PlannedRun:
    """One run of a recipe.

    Args:
        name: what people call it.
        recipe: key of `bert_repro.recipes.RECIPES`.
        settings: settings that decide its result, folders apart.
        data: names what it learns from: the pre-training corpus, or the task's files.
        start: the run whose model it starts from; None: it is a pre-training run.
        step: the checkpoint of `start` that it starts from; None: the finished model.
        save_steps: of a pre-training run, how often it writes a checkpoint; all are kept. Not part of its identity.
        entries: the table entries that it fills. Not part of its identity.
        keeps_model: whether other runs need its model. Not part of its identity.
        model: a finished model, a folder or a Hub id, that stands for a pre-training run; None: the run is made.
        place: where the model stands among those of the study. Not part of its identity.
    """

    name: str
    recipe: str
    settings: Mapping[str, Any]
    data: str
    start: "PlannedRun | None" = None
    step: int | None = None
    save_steps: int | None = None
    entries: tuple[TableEntry, ...] = ()
    keeps_model: bool = False
    model: str | None = None
    place: int = 0

    @cached_property
    def id(self) -> str:
        """Name and a digest of all that decides the result: the same settings are the same run."""
        identity: dict[str, Any] = {
            "recipe": self.recipe,
            "settings": self.settings,
            "data": self.data,
            "start": self.start.digest if self.start else None,
            "step": self.step,
        }
        return (
            f"{self.name}-{hashlib.sha256(json.dumps(identity, sort_keys=True, default=vars).encode()).hexdigest()[:8]}"
        )

    @property
    def digest(self) -> str:
        """The part of `id` that does not depend on its name."""
        return self.id.rpartition("-")[2]

    @property
    def is_pretraining(self) -> bool:
        """Whether it starts from nothing."""
        return self.start is None

    @property
    def pretraining(self) -> "PlannedRun":
        """The pre-training run that its model comes from."""
        return self.start.pretraining if self.start else self

    @property
    def ancestors(self) -> list["PlannedRun"]:
        """All runs that must be made before it, those that others need first."""
        return [*self.start.ancestors, self.start] if self.start and self.start.model is None else []


def plan_runs(
    tables: Iterable[str],
    preset: SizePreset,
    corpus: str,
    name_data: Callable[[str], str],
    *,
    models: Sequence[PlannedRun] = (),
    tasks: Sequence[str] = (),
) -> list[PlannedRun]:
    """Returns the runs of some tables, each once, those that others need first.

    Args:
        tables: out of `paper_results.TABLE_KEYS`.
        preset: how large they are.
        corpus: names the pre-training corpus; another corpus makes other runs.
        name_data: names the files of a task, a key of `size_presets.TASK_RECIPES`; other files make other runs.
        models: what `given_models` returns, in place of all pre-training.
        tasks: only these; empty: all that the tables have, with `models` all that the preset has too.

    Raises:
        UserError: the preset has no settings for a task that a table needs, or none for pre-training.
    """
    if not (models or preset.sizes):
        raise UserError("the size preset is one for finished models; give them with --model_name_or_path")
    suite = _Suite(preset, corpus, name_data, models, frozenset(tasks or (preset.tasks if models else TASK_RECIPES)))
    merged: dict[str, PlannedRun] = {}
    for table in dict.fromkeys(tables):
        for run in suite.runs_of(table):
            known = merged.get(run.id)
            entries = tuple(dict.fromkeys((*(known.entries if known else ()), *run.entries)))
            merged[run.id] = replace(run, entries=entries)
    needed = {run.start.id for run in merged.values() if run.start}
    runs = [replace(run, keeps_model=run.id in needed) for run in merged.values() if run.model is None]
    # One seed of everything comes before the next, so that a study that is under way can be read.
    return sorted(runs, key=lambda run: (len(run.ancestors), run.settings.get("seed", 0)))


@dataclass(frozen=True)
class _Suite:
    """Makes the runs of each table; one that several rows need comes once for each."""

    preset: SizePreset
    corpus: str
    name_data: Callable[[str], str]
    models: Sequence[PlannedRun]
    tasks: Collection[str]

    def runs_of(self, table: str) -> Iterator[PlannedRun]:
        if table in ("2", "3", "4"):
            return self._table_on_dev(table)
        makers = {"1": self._table_1, "5": self._table_5, "6": self._table_6, "7": self._table_7, "8": self._table_8}
        return makers.get(table, self._figure5)()

    def _table_1(self) -> Iterator[PlannedRun]:
        for row, start in self._paper_sizes():
            for task in dict.fromkeys(column.task for column in TABLES[1].columns if column.task != "glue"):
                columns = (column for column in TABLES[1].columns if column.task == task)
                runs = list(self._finetuning(start, task, _entries("1", row, columns), **self.preset.table_1))
                yield from runs
                for run in runs[1:] if task == "mnli" and RTE_AFTER_MNLI in self.preset.tasks else ():
                    entry = TableEntry("1", f"{row}: RTE after MNLI", "RTE")
                    seeds = (run.settings["seed"],)
                    yield from self._finetuning(run, RTE_AFTER_MNLI, [entry], seeds=seeds, **self.preset.table_1)

    def _table_on_dev(self, table: str) -> Iterator[PlannedRun]:
        """Yields the runs of a table of one task, its columns on dev."""
        columns = [column for column in TABLES[int(table)].columns if column.split == "validation"]
        for row, start in self._paper_sizes():
            yield from self._finetuning(start, columns[0].task, _entries(table, row, columns))

    def _paper_sizes(self) -> Iterator[tuple[str, PlannedRun]]:
        """Yields the rows that are models of the paper's two sizes, or finished models, with their pre-training."""
        yield from ((model.name, model) for model in self.models)
        for row, size in (("BERT-base", self.preset.base), ("BERT-large", self.preset.large)):
            if size is not None and not self.models:
                yield row, self._pretraining({}, size)

    def _table_5(self) -> Iterator[PlannedRun]:
        for row, changes in _TABLE_5.items():
            start = self._pretraining(changes)
            added: dict[str, Any] = {"bilstm_size": self.preset.bilstm_size} if "BiLSTM" in row else {}
            for column in TABLES[5].columns:
                yield from self._finetuning(start, column.task, [TableEntry("5", row, column.name)], **added)

    def _table_6(self) -> Iterator[PlannedRun]:
        perplexity, *tasks = TABLES[6].columns
        for size in self.preset.sizes:
            start = self._pretraining({}, size)
            yield replace(start, entries=(TableEntry("6", size, perplexity.name),))
            for column in tasks:
                yield from self._finetuning(start, column.task, [TableEntry("6", size, column.name)])

    def _table_7(self) -> Iterator[PlannedRun]:
        for row, start in self._paper_sizes():
            entries = _entries("7", row, TABLES[7].columns)
            yield from self._finetuning(start, "conll2003", entries, **self.preset.table_7)
        bases = [(f"{model.name}: ", model) for model in self.models] or [("", self._pretraining({}))]
        for (name, start), (row, features) in product(bases, FEATURE_ROWS.items()):
            layers = load_config(start.model).num_hidden_layers if start.model else start.settings["num_hidden_layers"]
            if layers == 4 and features == "weighted_all":
                continue  # they are its last four
            entries = _entries("7", name + row, TABLES[7].columns)
            yield from self._finetuning(start, FEATURES, entries, feature_based=features)

    def _table_8(self) -> Iterator[PlannedRun]:
        mnli, finetuned, features = TABLES[8].columns
        for row, (mask, _, random) in zip(TABLES[8].rows, MASKING_MIXES, strict=True):
            start = self._pretraining({"mask_replace_prob": mask, "random_replace_prob": random})
            yield from self._finetuning(start, "mnli", [TableEntry("8", row, mnli.name)])
            yield from self._finetuning(start, "conll2003", [TableEntry("8", row, finetuned.name)])
            entry = TableEntry("8", row, features.name)
            yield from self._finetuning(start, FEATURES, [entry], feature_based=_TABLE_8_FEATURES)

    def _figure5(self) -> Iterator[PlannedRun]:
        for row, changes in zip(FIGURE_5_ROWS, ({}, _LEFT_TO_RIGHT), strict=True):
            start = self._pretraining(changes)
            for step in self.preset.checkpoints:
                reached = None if step == self.preset.pretraining_steps else step
                yield from self._finetuning(start, "mnli", [TableEntry(FIGURE_5_KEY, row, str(step))], reached)

    def _pretraining(self, changes: Mapping[str, Any], size: str | None = None) -> PlannedRun:
        """Returns a pre-training run; a change to what is the default anyway makes no other run."""
        defaults = {item.name: item.default for item in fields(PretrainingConfig)}
        changes = {name: value for name, value in changes.items() if value != defaults[name]}
        name = f"pretraining-{size or self.preset.base}"
        if "left_to_right" in changes:
            name += "-left-to-right"
        elif "next_sentence_prediction" in changes:
            name += "-no-nsp"
        else:
            name += "".join(f"-{key.split('_')[0]}-{100 * value:.0f}" for key, value in changes.items())
        shape = self.preset.sizes[size or self.preset.base]
        settings = {**self.preset.pretraining, **shape, **changes}
        save_steps = math.gcd(*self.preset.checkpoints)
        return PlannedRun(name, "run_pretraining", settings, self.corpus, save_steps=save_steps)

    def _finetuning(
        self,
        start: PlannedRun,
        task: str,
        entries: list[TableEntry],
        step: int | None = None,
        seeds: tuple[int, ...] = (),
        **changes: Any,
    ) -> Iterator[PlannedRun]:
        """Yields a fine-tuning run for each seed, after the run that it starts from; nothing of a task not wanted."""
        if task not in self.tasks:
            return
        yield start
        if task not in self.preset.tasks:
            where = " and ".join(dict.fromkeys(f"--table {entry.table}" for entry in entries))
            raise UserError(f"the size preset's tasks lack {task}, which {where} needs; give it an entry, if only {{}}")
        recipe, data = TASK_RECIPES[task], self.name_data(task)
        given = {"task_name": _TASK_NAMES.get(task, task), "do_train": True, "do_eval": True}
        if recipe == "run_ner":
            given["do_predict"] = True  # its test set is labelled
        for seed in seeds or self.preset.seeds:
            settings = {**given, **self.preset.tasks[task], **changes, "seed": seed}
            yield PlannedRun(f"{task}-seed{seed}", recipe, settings, data, start, step, entries=tuple(entries))


def _entries(table: str, row: str, columns: Iterable[Column]) -> list[TableEntry]:
    return [TableEntry(table, row, column.name) for column in columns]


def given_models(names: Sequence[str]) -> list[PlannedRun]:
    """Returns finished models as starts of fine-tuning runs, each named by its folder or Hub id.

    A folder is known by the content of its files, an id of the Hub by its commit: other weights make other runs.

    Raises:
        UserError: one is not the checkpoint of a BERT, or two have the same name.
    """
    models: list[PlannedRun] = []
    for place, name in enumerate(names):
        load_config(name)  # refuses what is no BERT
        label, data = name, f"{name} {config_file(name).parent.name}"
        if Path(name).is_dir():
            folder = Path(os.path.abspath(name))
            in_run = folder.parent.name == CHECKPOINTS
            label = f"{folder.parents[1].name}/{folder.name}" if in_run else folder.name
            patterns = ("config.json", "*.safetensors", "tokenizer.json", "vocab.txt")
            data = json_digest([file_digest(path) for pattern in patterns for path in sorted(folder.glob(pattern))])
        if label in [model.name for model in models]:
            raise UserError(f"--model_name_or_path {name}: another model is called {label} too; rename its folder")
        models.append(PlannedRun(label, "", {}, data, model=name, place=place))
    return models


def corpus_fingerprint(corpus: str) -> str:
    """Names a prepared corpus by its content: tokens and vocabulary.

    Raises:
        UserError: there is no prepared corpus.
    """
    manifest = read_manifest(corpus_folder(corpus))
    parts = [part["sha256"] for part in manifest["parts"]]
    return json_digest([parts, manifest["tokenizer_fingerprint"]])[:16]


def task_fingerprint(name: str, data_dir: str | None) -> str:
    """Names what a task is fine-tuned and scored on: the content of the files read, or the Hub's data set.

    Args:
        name: a key of `size_presets.TASK_RECIPES`.
        data_dir: the folder of the official files; None: the Hub.

    Raises:
        UserError: the folder holds none of the task's files.
    """
    task = TASKS[_TASK_NAMES.get(name, name)]
    if data_dir is None:
        description = task.data_description()
        return f"Hub {description.get('dataset', '')} {description.get('config', task.name)}"
    paths = task.data_files(Path(data_dir))
    digests = {path.name: file_digest(path) for path in paths if path.is_file()}
    if not digests:
        flag, names = DATA_DIRS[TASK_RECIPES[name]], ", ".join(map(str, paths))
        raise UserError(f"--{flag} {data_dir}: holds none of {names}; name the folder of {task.title}'s official files")
    return json_digest(digests)[:16]
