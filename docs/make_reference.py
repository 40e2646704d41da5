"""Writes the generated pages from settings, docstrings, claims and the table of transformers' flags: `make docs`."""

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import measured

import bert_repro
from bert_repro import configs
from bert_repro.configs.base import choices_of, help_of
from bert_repro.configs.presets import PRESETS
from bert_repro.configs.upstream_flags import UPSTREAM_FLAGS
from bert_repro.reproduction.claims import claims_page

DOCS = Path(__file__).resolve().parent
INTRODUCTION = """# Configuration reference

*Generated from `bert_repro/configs/`; change that and run `make docs`.*

Every setting is a flag (`--learning_rate 1e-4`; true or false may be left out or given: `--do_train`, `--packing
false`), a key of a YAML file (`--config FILE.yaml`) and an argument in Python. Flags win over the file, the file over
`--preset NAME`, the preset over the defaults below. Unknown flags and keys are refused. Where a default departs from
the paper or the original implementation: [DEVIATIONS.md](DEVIATIONS.md)."""


def configuration_reference() -> str:
    """Returns the settings of every class that declares some, each once, and the presets."""
    parts = [INTRODUCTION]
    for config_class in config_classes():
        if own_settings(config_class):
            bases = [base.__name__ for base in config_class.__mro__[1:] if own_settings(base)]
            also = (
                f" Has the settings of {', '.join(f'[{base}](#{base.lower()})' for base in bases)} too."
                if bases
                else ""
            )
            rows = [row(config_class, setting) for setting in own_settings(config_class)]
            settings = table("Setting", "Default", "What it does", rows)
            parts += [f"## {config_class.__name__}", summary(config_class) + also, settings]
    presets = [(f"`{name}`", preset.source, preset.description) for name, preset in PRESETS.items()]
    return "\n\n".join([*parts, "## Presets", table("Name", "Source", "What it is", presets)]) + "\n"


def config_classes() -> list[type[configs.Config]]:
    """Returns the configurations in the order in which a person needs them."""
    found = []
    for room in "corpus training pretraining named_data finetuning tasks inference hub conversion reproduction".split():
        module = getattr(configs, room)
        own = [item for item in vars(module).values() if getattr(item, "__module__", None) == module.__name__]
        found += [item for item in own if isinstance(item, type) and issubclass(item, configs.Config)]
    return found


def own_settings(config_class: Any) -> list[str]:
    """Returns the names of the settings that a class declares or changes itself."""
    if not issubclass(config_class, configs.Config):
        return []
    return [item.name for item in fields(config_class) if item.name in inspect.get_annotations(config_class)]


def row(config_class: Any, name: str) -> tuple[str, str, str]:
    """Returns a setting's name, default and help with its choices."""
    item, choices = config_class.__dataclass_fields__[name], choices_of(config_class, name)
    default = " ".join(map(str, item.default)) if isinstance(item.default, tuple) else str(item.default)
    default = default.lower() if isinstance(item.default, bool) else default
    text = help_of(config_class, name)
    if choices:
        text += f" One of {', '.join(f'`{choice}`' for choice in choices)}."
    return f"`{name}`", f"`{default}`" if default not in ("", "None") else "", text


def table(*cells: Any) -> str:
    """Returns a Markdown table; the last argument holds the rows."""
    *titles, rows = cells
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def summary(item: Any) -> str:
    """Returns the first paragraph of a docstring."""
    return " ".join((inspect.getdoc(item) or "").split("\n\n")[0].split())


def api_reference() -> str:
    """Returns every public name with its signature and docstring."""
    parts = ["# Python API", "*Generated from the docstrings; change those and run `make docs`.*"]
    for name in sorted(set(bert_repro.__all__) - {"__version__", "HEADS"}):
        item = getattr(bert_repro, name)
        call = name
        if inspect.isfunction(item):
            plain = [one.replace(annotation=one.empty) for one in inspect.signature(item).parameters.values()]
            call += str(inspect.Signature(plain))
        is_config = isinstance(item, type) and issubclass(item, configs.Config)
        text = (
            f"{summary(item)} [Its settings](../CONFIGURATION.md#{name.lower()})."
            if is_config
            else inspect.getdoc(item)
        )
        parts += [f"## {name}", *([] if is_config else [f"```text\n{call}\n```"]), text or ""]
    return "\n\n".join(parts) + "\n"


UPSTREAM_INTRODUCTION = """# Coming from transformers' scripts

*Generated from `bert_repro/configs/upstream_flags.py`; change that and run `make docs`.*

Flags such as `--model_name_or_path`, `--train_file`, `--learning_rate`, `--num_train_epochs`, `--max_seq_length`,
`--per_device_train_batch_size`, `--output_dir`, `--seed` and `--push_to_hub` are the same as in run_glue.py, run_mlm.py
and TrainingArguments. The tables list those that differ. If you type one of them, the message says the same."""


def upstream_page() -> str:
    """Returns the page that names our flags for those of transformers' scripts."""
    parts = [UPSTREAM_INTRODUCTION]
    for section, flags in UPSTREAM_FLAGS.items():
        rows = [(f"`--{flag.name}`", f"`{flag.ours}`" if flag.ours else "", flag.note) for flag in flags]
        parts += [f"## {section}", table("There", "Here", "What is different", rows)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    (DOCS / "CONFIGURATION.md").write_text(configuration_reference(), encoding="utf-8")
    (DOCS / "reference" / "api.md").write_text(api_reference(), encoding="utf-8")
    (DOCS / "how-to" / "from_transformers.md").write_text(upstream_page(), encoding="utf-8")
    (DOCS / "report" / "claims.md").write_text(claims_page(), encoding="utf-8")
    (DOCS / "report" / "numbers.md").write_text(measured.list_of_scores(), encoding="utf-8")
