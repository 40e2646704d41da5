"""The runs behind Tables 1 to 8 and Figure 5 of the paper.

Each planned run names the table entries that it fills. Two rows that need the same run share it: Table 5's base is
Table 8's 80/10/10 row, one of Table 6's sizes and the last point of Figure 5's masked curve.

Tables 1 to 4 have the rows BERT-base and, if the size preset has one, BERT-large. They are scored on dev, because only
the leaderboards have the labels of the test sets. Table 1 prints test scores, so it shows ours without a difference.
Finished models may take the place of these two pre-trainings; then each has rows of its own name.

Table 2's ensembles and its rows with TriviaQA are made by hand, with `run_squad --ensemble_with` and
`convert_triviaqa`.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from bert_repro.configs import PretrainingConfig
from bert_repro.configs.presets import MASKING_MIXES
from bert_repro.corpus.prepared_corpus import read_manifest
from bert_repro.errors import UserError, flag
from bert_repro.hub.corpora import corpus_folder
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

# Tasks of the experiments that have another name than their data.
_TASK_NAMES = {FEATURES: "conll2003", RTE_AFTER_MNLI: "rte"}


@dataclass(frozen=True)
class PlannedRun:
    """One run of a recipe.

    Args:
        name: its readable name.
        recipe: key of `bert_repro.recipes.RECIPES`.
        settings: the settings that decide its result, without folders.
        data: identifies the data it learns from: the pre-training corpus, or the task's files.
        start: the run whose model it starts from; None: it is a pre-training run.
        step: the checkpoint of `start` that it starts from; None: the finished model.
        save_steps: how often a pre-training run writes a checkpoint; all are kept. Not part of its identity.
        entries: the table entries that it fills. Not part of its identity.
        keeps_model: whether other runs need its model. Not part of its identity.
        model: a finished model, a folder or a Hub id, that stands for a pre-training run; None: the run is made.
        place: the position of the finished model among those of the study. Not part of its identity.
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
        """Its name and a digest of everything that decides the result: equal settings are the same run."""
        identity: dict[str, Any] = {
            "recipe": self.recipe,
            "settings": self.settings,
            "data": self.data,
            "start": self.start.digest if self.start else None,
            "step": self.step,
        }
        text = json.dumps(identity, sort_keys=True, default=vars)
        return f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    @property
    def digest(self) -> str:
        """The part of `id` that does not depend on its name."""
        return self.id.rpartition("-")[2]

    @property
    def is_pretraining(self) -> bool:
        """Whether it starts from scratch."""
        return self.start is None

    @property
    def pretraining(self) -> "PlannedRun":
        """The pre-training run that its model comes from."""
        if self.start is None:
            return self
        return self.start.pretraining

    @property
    def ancestors(self) -> list["PlannedRun"]:
        """All runs that must be made before it, in the order in which they are needed."""
        if self.start is None or self.start.model is not None:
            return []
        return [*self.start.ancestors, self.start]


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
        tables: keys out of `paper_results.TABLE_KEYS`.
        preset: how large they are.
        corpus: identifies the pre-training corpus; another corpus makes other runs.
        name_data: task (a key of `size_presets.TASK_RECIPES`) -> identifies its files; other files make other runs.
        models: the result of `given_models`, in place of all pre-training.
        tasks: only these; empty: all that the tables have and, with `models`, the preset has.

    Raises:
        UserError: the preset has no settings for a task that a table needs, or none for pre-training.
    """
    if not (models or preset.sizes):
        raise UserError(
            f"This size preset is for finished models. Pass them with {flag('model_name_or_path')}.",
            setting="model_name_or_path",
        )
    all_tasks = preset.tasks if models else TASK_RECIPES
    suite = _Suite(preset, corpus, name_data, models, frozenset(tasks or all_tasks))

    # A run that several tables need is planned once and fills the entries of all.
    planned: dict[str, PlannedRun] = {}
    for table in dict.fromkeys(tables):
        for run in suite.runs_of(table):
            entries = list(planned[run.id].entries) if run.id in planned else []
            entries += [entry for entry in run.entries if entry not in entries]
            planned[run.id] = replace(run, entries=tuple(entries))

    needed = {run.start.id for run in planned.values() if run.start}
    runs = [replace(run, keeps_model=run.id in needed) for run in planned.values() if run.model is None]
    # One seed of everything comes before the next seed, so that a study can be read while it is under way.
    return sorted(runs, key=lambda run: (len(run.ancestors), run.settings.get("seed", 0)))


@dataclass(frozen=True)
class _Suite:
    """Makes the runs of each table; a run that several rows need is yielded once for each.

    Args: see `plan_runs`.
    """

    preset: SizePreset
    corpus: str
    name_data: Callable[[str], str]
    models: Sequence[PlannedRun]
    tasks: Collection[str]

    def runs_of(self, table: str) -> Iterator[PlannedRun]:
        """Yields the runs of one table; a run comes after the run that it starts from."""
        match table:
            case "1":
                return self._table_1()
            case "2" | "3" | "4":
                return self._table_on_dev(table)
            case "5":
                return self._table_5()
            case "6":
                return self._table_6()
            case "7":
                return self._table_7()
            case "8":
                return self._table_8()
            case _:
                return self._figure_5()

    def _table_1(self) -> Iterator[PlannedRun]:
        tasks = dict.fromkeys(column.task for column in TABLES[1].columns if column.task != "glue")
        for row, start in self._paper_sizes():
            for task in tasks:
                columns = [column for column in TABLES[1].columns if column.task == task]
                runs = list(self._finetuning(start, task, _entries("1", row, columns), **self.preset.table_1))
                yield from runs
                if task == "mnli" and RTE_AFTER_MNLI in self.preset.tasks:
                    # The first of the runs is the pre-training.
                    yield from self._rte_after_mnli(row, runs[1:])

    def _rte_after_mnli(self, row: str, mnli_runs: Sequence[PlannedRun]) -> Iterator[PlannedRun]:
        """Yields RTE started from each MNLI run, with its seed."""
        entry = TableEntry("1", f"{row}: RTE after MNLI", "RTE")
        for run in mnli_runs:
            seeds = (run.settings["seed"],)
            yield from self._finetuning(run, RTE_AFTER_MNLI, [entry], seeds=seeds, **self.preset.table_1)

    def _table_on_dev(self, table: str) -> Iterator[PlannedRun]:
        """Yields the runs of a table of one task, for its columns on dev."""
        columns = [column for column in TABLES[int(table)].columns if column.split == "validation"]
        for row, start in self._paper_sizes():
            yield from self._finetuning(start, columns[0].task, _entries(table, row, columns))

    def _paper_sizes(self) -> Iterator[tuple[str, PlannedRun]]:
        """Yields the rows that are models of the paper's two sizes, or finished models, with their pre-training."""
        if self.models:
            for model in self.models:
                yield model.name, model
            return
        for row, size in (("BERT-base", self.preset.base), ("BERT-large", self.preset.large)):
            if size is not None:
                yield row, self._pretraining({}, size)

    def _table_5(self) -> Iterator[PlannedRun]:
        for row, changes in _TABLE_5.items():
            start = self._pretraining(changes)
            head: dict[str, Any] = {"bilstm_size": self.preset.bilstm_size} if "BiLSTM" in row else {}
            for column in TABLES[5].columns:
                yield from self._finetuning(start, column.task, [TableEntry("5", row, column.name)], **head)

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
        for name, start in bases:
            for row, features in FEATURE_ROWS.items():
                # All layers of a model of four are its last four, which have a row already.
                if features == "weighted_all" and _num_layers(start) == 4:
                    continue
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

    def _figure_5(self) -> Iterator[PlannedRun]:
        for row, changes in zip(FIGURE_5_ROWS, ({}, _LEFT_TO_RIGHT), strict=True):
            start = self._pretraining(changes)
            for step in self.preset.checkpoints:
                checkpoint = None if step == self.preset.pretraining_steps else step
                yield from self._finetuning(start, "mnli", [TableEntry(FIGURE_5_KEY, row, str(step))], checkpoint)
                # More tasks fill no entry; the report averages them along pre-training.
                for task in self.preset.figure_5_tasks:
                    yield from self._finetuning(start, task, [], checkpoint, seeds=self.preset.seeds[:1])

    def _pretraining(self, changes: Mapping[str, Any], size: str | None = None) -> PlannedRun:
        """Returns a pre-training run; a change to a value that is the default anyway makes no other run."""
        defaults = {item.name: item.default for item in fields(PretrainingConfig)}
        changes = {name: value for name, value in changes.items() if value != defaults[name]}
        name = f"pretraining-{size or self.preset.base}"
        if "left_to_right" in changes:
            name += "-left-to-right"
        elif "next_sentence_prediction" in changes:
            name += "-no-nsp"
        else:
            for setting, value in changes.items():
                name += f"-{setting.split('_')[0]}-{100 * value:.0f}"
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
        """Yields the run to start from and a fine-tuning run for each seed; nothing if the task is not wanted."""
        if task not in self.tasks:
            return
        yield start
        if task not in self.preset.tasks:
            tables = " and ".join(dict.fromkeys(flag("table", entry.table) for entry in entries))
            raise UserError(
                f"The size preset has no tasks entry {task}, which {tables} needs. Add one; it may be empty: {{}}.",
                setting="size_preset",
            )
        recipe = TASK_RECIPES[task]
        data = self.name_data(task)
        given: dict[str, Any] = {"task_name": _TASK_NAMES.get(task, task), "do_train": True, "do_eval": True}
        if recipe == "run_ner":
            # CoNLL's test set has labels.
            given["do_predict"] = True
        for seed in seeds or self.preset.seeds:
            settings = {**given, **self.preset.tasks[task], **changes, "seed": seed}
            yield PlannedRun(f"{task}-seed{seed}", recipe, settings, data, start, step, entries=tuple(entries))


def _num_layers(start: PlannedRun) -> int:
    if start.model is not None:
        return int(load_config(start.model).num_hidden_layers)
    return int(start.settings["num_hidden_layers"])


def _entries(table: str, row: str, columns: Iterable[Column]) -> list[TableEntry]:
    return [TableEntry(table, row, column.name) for column in columns]


# --- What identifies models and data ----------------------------------------------------------------------------------


def given_models(names: Sequence[str]) -> list[PlannedRun]:
    """Returns finished models as starts of fine-tuning runs, each named by its folder or Hub id.

    A folder is identified by the content of its files, a Hub id by its commit: other weights make other runs.

    Raises:
        UserError: one is not a BERT checkpoint, or two have the same name.
    """
    models: list[PlannedRun] = []
    for place, name in enumerate(names):
        # Raises UserError for anything that is not a BERT.
        load_config(name)
        label = name
        data = f"{name} {config_file(name).parent.name}"
        if Path(name).is_dir():
            folder = Path(os.path.abspath(name))
            is_checkpoint = folder.parent.name == CHECKPOINTS
            label = f"{folder.parents[1].name}/{folder.name}" if is_checkpoint else folder.name
            data = _digest_of_model(folder)
        if label in [model.name for model in models]:
            raise UserError(
                f"{flag('model_name_or_path', name)}: another model is called {label} too. Rename its folder.",
                setting="model_name_or_path",
            )
        models.append(PlannedRun(label, "", {}, data, model=name, place=place))
    return models


def _digest_of_model(folder: Path) -> str:
    digests = []
    for pattern in ("config.json", "*.safetensors", "tokenizer.json", "vocab.txt"):
        digests += [file_digest(path) for path in sorted(folder.glob(pattern))]
    return json_digest(digests)


def corpus_fingerprint(corpus: str) -> str:
    """Returns a digest of a prepared corpus: its tokens and vocabulary.

    Raises:
        UserError: there is no prepared corpus.
    """
    manifest = read_manifest(corpus_folder(corpus))
    parts = [part["sha256"] for part in manifest["parts"]]
    return json_digest([parts, manifest["tokenizer_fingerprint"]])[:16]


def task_fingerprint(name: str, data_dir: str | None) -> str:
    """Identifies the data that a task is fine-tuned and scored on: a digest of its files, or its Hub dataset.

    Args:
        name: a key of `size_presets.TASK_RECIPES`.
        data_dir: the folder of the official files; None: the Hub.

    Raises:
        UserError: the folder has none of the task's files.
    """
    task = TASKS[_TASK_NAMES.get(name, name)]
    if data_dir is None:
        description = task.data_description()
        return f"Hub {description.get('dataset', '')} {description.get('config', task.name)}"
    paths = task.data_files(Path(data_dir))
    digests = {path.name: file_digest(path) for path in paths if path.is_file()}
    if not digests:
        setting = DATA_DIRS[TASK_RECIPES[name]]
        names = ", ".join(map(str, paths))
        raise UserError(
            f"{flag(setting, data_dir)} contains none of {names}. Pass the folder with the official files of "
            f"{task.title}, or choose other tasks with {flag('tasks')}.",
            setting=setting,
        )
    return json_digest(digests)[:16]
