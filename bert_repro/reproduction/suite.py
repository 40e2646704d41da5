"""The runs behind Tables 1 to 8 and Figure 5 of the paper.

Each planned run names the table entries that it fills. Two rows that need the same run share it: Table 5's base is
Table 8's 80/10/10 row, one of Table 6's sizes and the last point of Figure 5's masked curve.

Tables 1 to 4 have the rows BERT-base and, if the size preset has one, BERT-large. They are scored on dev, because only
the leaderboards have the labels of the test sets. Table 1 prints test scores, so it shows ours without a difference.
Finished models may take the place of these two pre-trainings; then each has rows of its own name.

Four things are more than a fine-tuning run for each seed:

- Table 1 with `do_predict` among the preset's settings of Table 1 predicts the test sets. AX is predicted by each MNLI
  model. `leaderboard` makes the zip.
- Table 2's ensemble answers with the models of all seeds together. Its rows with TriviaQA fine-tune on TriviaQA first.
- Table 7 searches the grid once, and the restarts of all seeds use the best configuration (5.3).
- Table 7 pre-trains on the cased corpus, if there is one (5.3).
"""

import hashlib
import json
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from bert_repro.configs import SWEPT, PretrainingConfig
from bert_repro.configs.presets import MASKING_MIXES
from bert_repro.corpus.prepared_corpus import read_manifest
from bert_repro.errors import UserError, flag
from bert_repro.hub.corpora import corpus_folder
from bert_repro.models.loading import config_file, load_config
from bert_repro.reproduction.paper_results import FEATURE_ROWS, FIGURE_5_KEY, FIGURE_5_ROWS, TABLES, Column, TableEntry
from bert_repro.reproduction.size_presets import AX, FEATURES, RTE_AFTER_MNLI, TASK_RECIPES, SizePreset
from bert_repro.tasks import TASKS
from bert_repro.utils.files import CHECKPOINTS, file_digest, json_digest

DATA_DIRS = {"run_glue": "glue_dir", "run_squad": "squad_dir", "run_swag": "swag_dir", "run_ner": "conll_dir"}
"""Recipe -> the setting of `run_study` that names the folder of its official files."""

_NO_NSP = {"next_sentence_prediction": False}
_LEFT_TO_RIGHT = {**_NO_NSP, "left_to_right": True}
_TABLE_5 = {"BERT-base": {}, "No NSP": _NO_NSP, "LTR & no NSP": _LEFT_TO_RIGHT, "LTR & no NSP + BiLSTM": _LEFT_TO_RIGHT}
_TABLE_8_FEATURES = "concat_last_four"

# BERT-large was unstable on small data sets, so the paper restarted it there and took the best run on dev (4.1).
_SMALL_TASKS = ("cola", "stsb", "mrpc", "rte")

# Tasks of the experiments that have another name than their data.
_TASK_NAMES = {FEATURES: "conll2003", RTE_AFTER_MNLI: "rte"}


CorpusName = Literal["corpus", "cased_corpus"]
"""The setting of `run_study` that names the corpus of a pre-training run."""

LARGE_ROW = "BERT-large"
ENSEMBLE = "ensemble"
TRIVIAQA = "triviaqa"


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
        ensemble: more runs whose models answer together with that of `start`.
        search: the sweep whose best configuration it uses.
        corpus: which corpus a pre-training run reads. Not part of its identity, because `data` is.
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
    ensemble: tuple["PlannedRun", ...] = ()
    search: "PlannedRun | None" = None
    corpus: CorpusName = "corpus"

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
        if self.ensemble:
            identity["ensemble"] = [member.digest for member in self.ensemble]
        if self.search:
            identity["search"] = self.search.digest
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
    def reads_triviaqa(self) -> bool:
        """Whether it is fine-tuned on TriviaQA in place of its task's official files."""
        return self.name.startswith(TRIVIAQA)

    @property
    def pretraining(self) -> "PlannedRun":
        """The pre-training run that its model comes from."""
        if self.start is None:
            return self
        return self.start.pretraining

    @property
    def models_needed(self) -> list["PlannedRun"]:
        """The runs whose models it loads: the one that it starts from, and the other members of an ensemble."""
        if self.start is None:
            return []
        return [self.start, *self.ensemble]

    @property
    def needed(self) -> list["PlannedRun"]:
        """The runs that must be done before it starts; finished models are none."""
        runs = self.models_needed
        if self.search:
            runs.append(self.search)
        return [run for run in runs if run.model is None]

    @property
    def ancestors(self) -> list["PlannedRun"]:
        """All runs that must be made before it, in the order in which they are needed."""
        ordered: dict[str, PlannedRun] = {}
        for run in self.needed:
            for earlier in (*run.ancestors, run):
                ordered[earlier.id] = earlier
        return list(ordered.values())


def plan_runs(
    tables: Iterable[str],
    preset: SizePreset,
    corpus: str,
    name_data: Callable[[str], str],
    *,
    models: Sequence[PlannedRun] = (),
    tasks: Sequence[str] = (),
    cased_corpus: str | None = None,
    triviaqa: str | None = None,
) -> list[PlannedRun]:
    """Returns the runs of some tables, each once, those that others need first.

    Args:
        tables: keys out of `paper_results.TABLE_KEYS`.
        preset: how large they are.
        corpus: identifies the pre-training corpus; another corpus makes other runs.
        name_data: task (a key of `size_presets.TASK_RECIPES`) -> identifies its files; other files make other runs.
        models: the result of `given_models`, in place of all pre-training.
        tasks: only these; empty: all that the tables have and, with `models`, the preset has.
        cased_corpus: identifies the corpus of Table 7's pre-training; None: the same as for the other tables.
        triviaqa: identifies the questions of TriviaQA; None: Table 2 has no rows with TriviaQA.

    Raises:
        UserError: the preset has no settings for a task that a table needs, or none for pre-training.
    """
    if not (models or preset.sizes):
        raise UserError(
            f"This size preset is for finished models. Pass them with {flag('model_name_or_path')}.",
            setting="model_name_or_path",
        )
    all_tasks = preset.tasks if models else TASK_RECIPES
    suite = _Suite(preset, corpus, cased_corpus, triviaqa, name_data, models, frozenset(tasks or all_tasks))

    # A run that several tables need is planned once and fills the entries of all.
    planned: dict[str, PlannedRun] = {}
    for table in dict.fromkeys(tables):
        for run in suite.runs_of(table):
            entries = list(planned[run.id].entries) if run.id in planned else []
            entries += [entry for entry in run.entries if entry not in entries]
            planned[run.id] = replace(run, entries=tuple(entries))

    needed: set[str] = set()
    for run in planned.values():
        needed.update(model.id for model in run.models_needed)
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
    cased_corpus: str | None
    triviaqa: str | None
    name_data: Callable[[str], str]
    models: Sequence[PlannedRun]
    tasks: Collection[str]

    def runs_of(self, table: str) -> Iterator[PlannedRun]:
        """Yields the runs of one table; a run comes after the run that it starts from."""
        match table:
            case "1":
                return self._table_1()
            case "2":
                return self._table_2()
            case "3" | "4":
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
                runs = list(self._table_1_task(row, start, task, columns))
                yield from runs
                if task == "mnli":
                    # The first of the runs is the pre-training.
                    yield from self._predicted_ax(runs[1:])
                    if RTE_AFTER_MNLI in self.preset.tasks:
                        yield from self._rte_after_mnli(row, runs[1:])

    def _table_1_task(self, row: str, start: PlannedRun, task: str, columns: Sequence[Column]) -> Iterator[PlannedRun]:
        """Yields one task of Table 1; for BERT-large on a small set one run, the best of several restarts on dev."""
        restarts = self.preset.large_restarts
        if restarts > 1 and row == LARGE_ROW and task in _SMALL_TASKS:
            seeds = self.preset.seeds[:1]
            changes = {**self.preset.table_1, "num_restarts": restarts}
            yield from self._finetuning(start, task, _entries("1", row, columns), seeds=seeds, **changes)
        else:
            yield from self._finetuning(start, task, _entries("1", row, columns), **self.preset.table_1)

    def _predicted_ax(self, mnli_runs: Sequence[PlannedRun]) -> Iterator[PlannedRun]:
        """Yields the prediction of the diagnostic set AX by each MNLI model, if Table 1 predicts its test sets."""
        if not self.preset.table_1.get("do_predict"):
            return
        for run in mnli_runs:
            settings = {"task_name": AX, "do_predict": True, "seed": run.settings["seed"]}
            if "max_seq_length" in run.settings:
                settings["max_seq_length"] = run.settings["max_seq_length"]
            yield PlannedRun(f"{AX}-seed{run.settings['seed']}", "run_glue", settings, self.name_data(AX), run)

    def _rte_after_mnli(self, row: str, mnli_runs: Sequence[PlannedRun]) -> Iterator[PlannedRun]:
        """Yields RTE started from each MNLI run, with its seed."""
        entry = TableEntry("1", f"{row}: RTE after MNLI", "RTE")
        for run in mnli_runs:
            seeds = (run.settings["seed"],)
            yield from self._finetuning(run, RTE_AFTER_MNLI, [entry], seeds=seeds, **self.preset.table_1)

    def _table_2(self) -> Iterator[PlannedRun]:
        """Yields SQuAD v1.1: single models, their ensemble, and both again with TriviaQA before SQuAD."""
        columns = [column for column in TABLES[2].columns if column.split == "validation"]
        for row, start in self._paper_sizes():
            runs = list(self._finetuning(start, "squad", _entries("2", row, columns)))
            yield from runs
            # Rows of a finished model are named "its name: variant".
            name = f"{row}:" if self.models else row
            yield from self._ensemble(f"{name} ensemble", columns, runs[1:])
            if self.triviaqa is None or not runs:
                continue
            after_triviaqa = []
            for seed in self.preset.seeds:
                first = self._triviaqa(start, self.triviaqa, seed)
                entries = _entries("2", f"{name} + TriviaQA", columns)
                after_triviaqa += list(self._finetuning(first, "squad", entries, seeds=(seed,)))
            yield from after_triviaqa
            members = [run for run in after_triviaqa if run.entries]
            yield from self._ensemble(f"{name} ensemble + TriviaQA", columns, members)

    def _triviaqa(self, start: PlannedRun, data: str, seed: int) -> PlannedRun:
        """Returns the fine-tuning on TriviaQA that comes before SQuAD, with SQuAD's settings."""
        settings = {"task_name": "squad", "do_train": True, **self.preset.tasks["squad"], "seed": seed}
        return PlannedRun(f"{TRIVIAQA}-seed{seed}", "run_squad", settings, data, start)

    def _ensemble(self, row: str, columns: Sequence[Column], members: Sequence[PlannedRun]) -> Iterator[PlannedRun]:
        """Yields the run that answers with the mean of several models; nothing if there is only one."""
        if len(members) < 2:
            return
        first, *others = members
        settings = {**first.settings, "do_train": False}
        yield PlannedRun(
            f"{ENSEMBLE}-squad",
            "run_squad",
            settings,
            first.data,
            first,
            entries=tuple(_entries("2", row, columns)),
            ensemble=tuple(others),
        )

    def _table_on_dev(self, table: str) -> Iterator[PlannedRun]:
        """Yields the runs of a table of one task, for its columns on dev."""
        columns = [column for column in TABLES[int(table)].columns if column.split == "validation"]
        for row, start in self._paper_sizes():
            yield from self._finetuning(start, columns[0].task, _entries(table, row, columns))

    def _paper_sizes(self, *, cased: bool = False) -> Iterator[tuple[str, PlannedRun]]:
        """Yields the rows that are models of the paper's two sizes, or finished models, with their pre-training."""
        if self.models:
            for model in self.models:
                yield model.name, model
            return
        for row, size in (("BERT-base", self.preset.base), (LARGE_ROW, self.preset.large)):
            if size is not None:
                yield row, self._pretraining({}, size, cased=cased)

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
        for row, start in self._paper_sizes(cased=True):
            yield from self._restarts_after_search(start, _entries("7", row, TABLES[7].columns))
        bases = [(f"{model.name}: ", model) for model in self.models] or [("", self._pretraining({}, cased=True))]
        for name, start in bases:
            for row, features in FEATURE_ROWS.items():
                # All layers of a model of four are its last four, which have a row already.
                if features == "weighted_all" and _num_layers(start) == 4:
                    continue
                entries = _entries("7", name + row, TABLES[7].columns)
                yield from self._finetuning(start, FEATURES, entries, feature_based=features)

    def _restarts_after_search(self, start: PlannedRun, entries: list[TableEntry]) -> Iterator[PlannedRun]:
        """Yields CoNLL-2003 for each seed; if the preset has a grid, it is searched once, with the first seed (5.3)."""
        grid = {name: value for name, value in self.preset.table_7.items() if name in SWEPT and value}
        if not grid:
            yield from self._finetuning(start, "conll2003", entries, **self.preset.table_7)
            return
        searches = list(self._finetuning(start, "conll2003", [], seeds=self.preset.seeds[:1], **self.preset.table_7))
        yield from searches
        # The values of the grid come from the search, all other settings are those of its runs.
        fixed = {name: value for name, value in self.preset.table_7.items() if name not in grid}
        for run in self._finetuning(start, "conll2003", entries, **fixed):
            yield run if run.is_pretraining or run.model else replace(run, search=searches[-1])

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

    def _pretraining(self, changes: Mapping[str, Any], size: str | None = None, *, cased: bool = False) -> PlannedRun:
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
        if cased and self.cased_corpus is not None:
            name += "-cased"
            return PlannedRun(
                name, "run_pretraining", settings, self.cased_corpus, save_steps=save_steps, corpus="cased_corpus"
            )
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
