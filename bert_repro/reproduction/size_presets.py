"""Size presets of the experiments: how large their models are, how long they pre-train, what they are fine-tuned on.

What the rows of a table are does not depend on the preset (`bert_repro.reproduction.suite`). A custom preset is a YAML
file with the fields of `SizePreset`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bert_repro.arguments import read_yaml_mapping, settings_from
from bert_repro.configs import GlueConfig, NerConfig, Phase, PretrainingConfig
from bert_repro.configs.presets import MODEL_SIZES, PAPER_LEARNING_RATE, PAPER_PHASES, PAPER_WARMUP_STEPS, PRESETS
from bert_repro.errors import UserError
from bert_repro.recipes import RECIPES
from bert_repro.utils.readers import shown

FEATURES = "features"
"""CoNLL-2003 by the feature-based approach (5.3); `conll2003` fine-tunes."""
RTE_AFTER_MNLI = "rte_after_mnli"
"""RTE from the model of the MNLI run with the same seed; footnote 14 reports a gain from training on both."""

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
    "squad_v2": 161, "swag": 140, "conll2003": 24,
}  # fmt: skip
"""Task -> mean tokens of a row of its training set, SWAG's four sequences together; for estimates of cost."""


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
        bilstm_size: size per direction of the BiLSTM in Table 5's last row.
        large: the model size in the place of BERT-large in Tables 1 to 4 and 7, a key of `sizes`; None: no such rows.
        table_1: settings of Table 1's runs in addition to their task's, such as the paper's learning rate sweep (4.1).
        table_7: settings of Table 7's fine-tuning runs in addition to their task's, such as the grid of A.3.
    """

    description: str
    tasks: Mapping[str, Mapping[str, Any]]
    seeds: tuple[int, ...]
    base: str = ""
    sizes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    pretraining: Mapping[str, Any] = field(default_factory=dict)
    checkpoints: tuple[int, ...] = (0,)
    bilstm_size: int = 768
    large: str | None = None
    table_1: Mapping[str, Any] = field(default_factory=dict)
    table_7: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.checkpoints[-1] != self.pretraining_steps:
            raise UserError(
                f"checkpoints is {list(self.checkpoints)}; the last must be the end of pre-training, "
                f"{self.pretraining_steps}"
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
        table_1=PRESETS["glue-sweep"].values,
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
        UserError: no such preset or file, an unknown field, settings that do not fit, or a file name that cannot name
            a preset.
    """
    if name in SIZE_PRESETS:
        return SIZE_PRESETS[name]
    if not name.endswith((".yaml", ".yml")) or Path(name).stem in SIZE_PRESETS:
        names = ", ".join(SIZE_PRESETS)
        raise UserError(
            f"--size_preset is {shown(name)}; choose one of: {names}, or name a YAML file, but not like them"
        )
    return _read_size_preset(Path(name))


def _read_size_preset(path: Path) -> SizePreset:
    document, where = read_yaml_mapping(path, "--size_preset"), f"--size_preset {path}"
    tasks = {
        task: settings_from(given or {}, RECIPES[TASK_RECIPES[task]].config, f"{where}: tasks: {task}")
        for task, given in document["tasks"].items()
    }
    read: dict[str, Any] = {name: tuple(document[name]) for name in ("checkpoints", "seeds") if name in document}
    for name, config in (("pretraining", PretrainingConfig), ("table_1", GlueConfig), ("table_7", NerConfig)):
        read[name] = settings_from(document.get(name) or {}, config, f"{where}: {name}")
    return SizePreset(**{**document, **read, "tasks": tasks})


for _name in ("trial", "evaluation"):
    SIZE_PRESETS[_name] = _read_size_preset(Path(__file__).with_name(f"{_name}.yaml"))
