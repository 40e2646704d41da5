"""Size presets of the experiments: the sizes of the models, the length of pre-training, the fine-tuning of each task.

The rows of a table do not depend on the preset; `suite` has them. A custom preset is a YAML file with the fields of
`SizePreset`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from bert_repro.arguments import read_yaml_mapping, settings_from
from bert_repro.configs import GlueConfig, NerConfig, Phase, PretrainingConfig
from bert_repro.configs.presets import MODEL_SIZES, PAPER_LEARNING_RATE, PAPER_PHASES, PAPER_WARMUP_STEPS, PRESETS
from bert_repro.errors import UserError, flag
from bert_repro.recipes import RECIPES
from bert_repro.utils.readers import quoted
from bert_repro.utils.schema import conform

FEATURES = "features"
"""CoNLL-2003 by the feature-based approach (5.3); `conll2003` fine-tunes."""
RTE_AFTER_MNLI = "rte_after_mnli"
"""RTE from the model of the MNLI run with the same seed; footnote 14 reports a gain from training on both."""

AX = "ax"
"""GLUE's diagnostic set, which only MNLI models predict; it has no fine-tuning settings."""

TASK_RECIPES: Mapping[str, str] = {
    **dict.fromkeys(("mnli", "qqp", "qnli", "sst2", "cola", "stsb", "mrpc", "rte", RTE_AFTER_MNLI), "run_glue"),
    "squad": "run_squad",
    "squad_v2": "run_squad",
    "swag": "run_swag",
    "conll2003": "run_ner",
    FEATURES: "run_ner",
}
"""Task of the experiments -> the recipe that fine-tunes and scores it."""

MEAN_TOKENS: Mapping[str, int] = {
    "mnli": 39, "qqp": 31, "qnli": 50, "sst2": 13, "cola": 11, "stsb": 31, "mrpc": 53, "rte": 68, "squad": 161,
    "squad_v2": 161, "swag": 140, "conll2003": 24, "ax": 39,
}  # fmt: skip
"""Task -> mean tokens of a row of its training set, SWAG's four sequences together; for estimates of cost."""


_LARGEST_SEED = 2**32 - 1  # also larger than every step


@dataclass(frozen=True)
class SizePreset:
    """One size of all experiments, or of those on finished models.

    Args:
        description: one line for people.
        tasks: task -> settings of its fine-tuning runs; keys of `TASK_RECIPES`, at least those of the asked tables.
        seeds: one fine-tuning run for each.
        base: the model size that takes the place of BERT-base in every table and in Figure 5, a key of `sizes`.
        sizes: Table 6's rows, name -> settings of the model's shape; empty: for finished models alone.
        pretraining: settings of every pre-training run.
        checkpoints: optimizer steps at which Figure 5 fine-tunes, the last one the end of pre-training. Every greatest
            common divisor of them a checkpoint is written.
        figure_5_tasks: tasks besides MNLI that Figure 5 fine-tunes, with the first seed, for the mean of the tasks.
        bilstm_size: size per direction of the BiLSTM in Table 5's last row.
        large: the model size in the place of BERT-large in Tables 1 to 4 and 7, a key of `sizes`; None: no such rows.
        table_1: settings of Table 1's runs in addition to their task's, such as the paper's learning rate sweep (4.1).
        table_7: settings of Table 7's fine-tuning runs in addition to their task's. A grid among them, such as A.3's,
            is searched once with the first seed.
        large_restarts: random restarts of Table 1's BERT-large row on the small sets CoLA, STS-B, MRPC and RTE, of
            which the best on dev counts (4.1); 1: a run for each seed, as for the other sets.
    """

    description: str
    tasks: Mapping[str, Mapping[str, Any]]
    seeds: tuple[int, ...]
    base: str = ""
    sizes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    pretraining: Mapping[str, Any] = field(default_factory=dict)
    checkpoints: tuple[int, ...] = (0,)
    figure_5_tasks: tuple[str, ...] = ()
    bilstm_size: int = 768
    large: str | None = None
    table_1: Mapping[str, Any] = field(default_factory=dict)
    table_7: Mapping[str, Any] = field(default_factory=dict)
    large_restarts: int = 1

    def __post_init__(self) -> None:
        if self.checkpoints[-1] != self.pretraining_steps:
            raise UserError(
                f"checkpoints: {list(self.checkpoints)} must end with the last step of pre-training, "
                f"{self.pretraining_steps}."
            )

    @property
    def pretraining_steps(self) -> int:
        """Optimizer steps of every pre-training run."""
        phases = self.pretraining.get("phases")
        return sum(phase.steps for phase in phases) if phases else int(self.pretraining.get("max_steps", 0))


_TABLE_6 = ("3-768-12", "6-768-3", "6-768-12", "base", "12-1024-16", "large")
_PAPER_TASKS: Mapping[str, Mapping[str, Any]] = {
    **{task: PRESETS["glue"].values for task, recipe in TASK_RECIPES.items() if recipe == "run_glue"},
    "squad": PRESETS["squad-v1"].values,
    "squad_v2": PRESETS["squad-v2"].values,
    "swag": PRESETS["swag"].values,
    RTE_AFTER_MNLI: PRESETS["glue"].values,
    "conll2003": {"train_batch_size": 32, "num_train_epochs": 3.0, "learning_rate": 5e-5},  # A.3's grid
    FEATURES: {"train_batch_size": 32, "num_train_epochs": 10.0, "learning_rate": 1e-3},  # ours
}
_FAST = {"mixed_precision": "bf16"}
SIZE_PRESETS: dict[str, SizePreset] = {
    "paper": SizePreset(
        "the paper's own sizes and settings; 1,000,000 steps for every row",
        base="base",
        sizes={name: MODEL_SIZES[name] for name in _TABLE_6},
        pretraining={
            # The full batch of the larger models is too much for one device; the update is the same.
            "phases": tuple(replace(phase, per_device_batch=16_384 // phase.max_seq_length) for phase in PAPER_PHASES),
            "learning_rate": PAPER_LEARNING_RATE,
            "warmup_steps": PAPER_WARMUP_STEPS,
            "mixed_precision": "bf16",
        },
        checkpoints=(200_000, 400_000, 500_000, 600_000, 800_000, 1_000_000),  # Figure 5; C.1 speaks of 500k too
        tasks=_PAPER_TASKS,
        seeds=(1, 2, 3, 4, 5),  # Tables 6 and 7: mean of 5
        large="large",
        table_1={**PRESETS["glue-sweep"].values, "do_predict": True},
        large_restarts=5,  # the paper: several
        table_7={**PRESETS["finetuning-grid"].values, "train_batch_size": None},
    ),
    "one-gpu": SizePreset(
        "about a day on one modern GPU: BERT-base for 4% of the paper's steps, full training sets, three seeds",
        base="base",
        sizes={name: MODEL_SIZES[name] for name in _TABLE_6[:4]},
        pretraining={
            "phases": (Phase(128, 36_000, 256, 20), Phase(512, 4_000, 256, 77, 64)),
            "learning_rate": 5e-4,
            "warmup_steps": 2_000,
            "bias_correction": True,
            **_FAST,
        },
        checkpoints=(8_000, 16_000, 24_000, 32_000, 40_000),
        tasks={task: {**settings, **_FAST} for task, settings in _PAPER_TASKS.items()},
        seeds=(1, 2, 3),
    ),
}


def find_size_preset(name: str) -> SizePreset:
    """Returns a size preset by its name, or reads one from a YAML file.

    Raises:
        UserError: no such preset or file, an unknown field, settings that do not fit, or a file with the name of a
            preset.
    """
    if name in SIZE_PRESETS:
        return SIZE_PRESETS[name]
    if not name.endswith((".yaml", ".yml")):
        raise UserError(
            f"{flag('size_preset', quoted(name))} is neither a preset nor a YAML file. Choose one of: "
            f"{', '.join(SIZE_PRESETS)}.",
            setting="size_preset",
        )
    if Path(name).stem in SIZE_PRESETS:
        raise UserError(
            f"{flag('size_preset', name)} has the name of a preset, so its results could not be told apart. Rename the "
            "file.",
            setting="size_preset",
        )
    return _read_size_preset(Path(name))


def _read_size_preset(path: Path) -> SizePreset:
    """Reads a preset; its settings are checked like those of the recipes that they belong to."""
    where = f"--size_preset {path}"
    document = _checked_fields(read_yaml_mapping(path, "--size_preset"), where)

    read: dict[str, Any] = {}
    for name in ("checkpoints", "seeds", "figure_5_tasks"):
        if name in document:
            read[name] = tuple(document[name])
    for name, config in (("pretraining", PretrainingConfig), ("table_1", GlueConfig), ("table_7", NerConfig)):
        read[name] = settings_from(document.get(name) or {}, config, f"{where}: {name}")
    read["tasks"] = {}
    for task, settings in document["tasks"].items():
        config_class = RECIPES[TASK_RECIPES[task]].config
        read["tasks"][task] = settings_from(settings or {}, config_class, f"{where}: tasks: {task}")
    return SizePreset(**{**document, **read})


def _checked_fields(document: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns the fields of a file with their types checked.

    Refuses unknown and missing fields, unknown tasks, and sizes that do not exist or have names that are no names of
    folders.
    """
    known = sorted(item.name for item in fields(SizePreset))
    for name in document:
        if name not in known:
            raise UserError(f"{where}: unknown field {quoted(name)}. Known fields: {', '.join(known)}.")
    for name in ("description", "tasks", "seeds"):
        if document.get(name) is None:
            raise UserError(f"{where}: the field {name} is missing.")
    if isinstance(document["tasks"], dict):
        # A task without settings of its own is written as `mrpc:`, which YAML reads as null.
        tasks = {task: {} if settings is None else settings for task, settings in document["tasks"].items()}
        document = {**document, "tasks": tasks}
    content: dict[str, Any] = conform(document, SizePreset, where, "Correct the file.")

    for name in ("seeds", "checkpoints"):
        numbers = content.get(name, [0])
        if not numbers or min(numbers) < 0 or max(numbers) > _LARGEST_SEED:
            raise UserError(f"{where}: {name} is {quoted(numbers)}. Write one or more numbers of at least 0.")
    for task in (*content["tasks"], *content.get("figure_5_tasks", ())):
        if task not in TASK_RECIPES:
            raise UserError(f"{where}: unknown task {quoted(task)}. Known tasks: {', '.join(TASK_RECIPES)}.")
    _check_sizes(content, where)
    return content


def _check_sizes(document: Mapping[str, Any], where: str) -> None:
    sizes = document.get("sizes", {})
    for name in sizes:
        # The name becomes part of the names of runs, so it must not lead out of the study's folder.
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise UserError(f"{where}: sizes: {quoted(name)} may contain only letters, digits, '.', '_' and '-'.")
    for field_name in ("base", "large"):
        name = document.get(field_name)
        if sizes and name not in sizes and (name or field_name == "base"):
            raise UserError(f"{where}: {field_name} is {quoted(name)}, which is not one of the sizes.")


for _name in ("trial", "mini-study", "evaluation"):
    SIZE_PRESETS[_name] = _read_size_preset(Path(__file__).with_name(f"{_name}.yaml"))
