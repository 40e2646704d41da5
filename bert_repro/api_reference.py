"""The reference of the Python API, docs/reference/api.md, made from the docstrings of the public names."""

import inspect
import re
import typing
from types import MappingProxyType
from typing import Any

import bert_repro
from bert_repro.configs import Config

_SUBJECTS = MappingProxyType({
    "Run from Python": ("pretrain", "finetune", "prepare_corpus", "train_tokenizer", "train_wordpiece", "read_results",
                        "load_metric", "export_checkpoint"),
    "Models": ("BertReproConfig", "BertReproModel", "BertReproForPreTraining", "BertReproForMaskedLM",
               "BertReproForCausalLM", "BertReproForNextSentencePrediction", "BertReproForSequenceClassification",
               "BertReproForTokenClassification", "BertReproForQuestionAnswering", "BertReproForMultipleChoice"),
    "Data": ("DataCollatorForBertPreTraining",),
    "Pipelines": ("ExtractiveQuestionAnsweringPipeline", "NextSentencePipeline", "SentenceScoringPipeline"),
})  # fmt: skip
_SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Source|Attributes):\s*(.*)$")
_ITEM = re.compile(r"^( *)([\w.*, ]+): (.*)$")


def api_reference() -> str:
    """Returns the reference in Markdown: every public name once, settings by a link to the configuration reference."""
    parts = [
        "# Python API",
        "*Generated from the docstrings; change those and run `make docs`.*",
        "Everything here is imported from `bert_repro`; heavy libraries load when a name is first used.",
    ]
    listed = {name for names in _SUBJECTS.values() for name in names}
    others = [name for name in sorted(bert_repro.__all__) if name not in listed and not name.startswith("__")]
    settings = [name for name in others if _is_settings(getattr(bert_repro, name))]
    for subject, names in _SUBJECTS.items():
        parts += [f"## {subject}", *(_entry(name) for name in names)]
    rest = [name for name in others if name not in settings]
    if rest:
        parts += ["## Others", *(_entry(name) for name in rest)]
    links = "\n".join(f"- `{name}`: {_summary(getattr(bert_repro, name))}" for name in settings)
    parts += ["## Settings", "Fields, defaults and units are in [CONFIGURATION.md](../CONFIGURATION.md).", links]
    return "\n\n".join(parts) + "\n"


def _is_settings(item: Any) -> bool:
    return isinstance(item, type) and issubclass(item, Config)


def _summary(item: Any) -> str:
    return (inspect.getdoc(item) or "").split("\n\n")[0].replace("\n", " ")


def _entry(name: str) -> str:
    item = getattr(bert_repro, name)
    if not callable(item):
        return f"### {name}\n\nA mapping with the keys {', '.join(f'`{key}`' for key in item)}."
    text = _markdown(inspect.getdoc(item) or "")
    if typing.is_typeddict(item):
        return f"### {name}\n\n{text} Its fields are in the [JSON schema](../results.schema.json)."
    return f"### {name}\n\n```text\n{_call(name, item)}\n```\n\n{text}"


def _call(name: str, item: Any) -> str:
    try:
        signature = inspect.signature(item)
    except (TypeError, ValueError):
        return name
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    shown = str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))
    return f"{name}{shown}"


def _markdown(docstring: str) -> str:
    """Turns the sections of a Google-style docstring into bold headings and lists; examples stay code."""
    lines: list[str] = []
    section = ""
    for line in docstring.splitlines():
        found = _SECTION.match(line)
        item = _ITEM.match(line)
        if found:
            section = found[1]
            lines += [f"**{section}**{': ' + found[2] if found[2] else ''}", ""]
        elif section in ("Args", "Raises", "Attributes") and item and len(item[1]) == 4:
            lines.append(f"- `{item[2]}`: {item[3]}")
        elif section:
            lines.append(line[4:] if section in ("Returns", "Yields") else f"  {line.strip()}".rstrip())
        else:
            lines.append(line)
    return "\n".join(lines).strip()
