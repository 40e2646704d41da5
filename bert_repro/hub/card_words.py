"""Results in the words of a card: what a model was made for, its facts and scores as tables, texts safe in Markdown."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from bert_repro.hub.plots import SCORES_OF, scored_details

_LONGEST_LIST = 8  # a longer list (shards, files) is given by its size
_MARKDOWN = re.compile(r"([\\`*\[\]<>|]|(?<!\w)_|_(?!\w))")
_IN_WORDS = {
    "data": ("dataset", "config", "license", "note", "text_columns", "title", "files", "example", "kind"),
    "model": ("class", "labels"),
}
"""What of a part the card says in words, not in a table."""
_NAMES = {
    "examples": "examples",
    "rows": "inputs made of them",
    "dropped": "inputs left out",
    "truncated": "inputs that were cut",
    "steps": "optimizer steps",
    "batch": "examples per step",
    "tokens": "tokens read",
    "seconds": "seconds of training",
    "flops": "FLOPs",
    "mfu": "MFU",
    "best_step": "step of the published weights",
    "num_hidden_layers": "layers",
    "num_attention_heads": "attention heads",
    "intermediate_size": "feed-forward size",
    "vocab_size": "vocabulary",
    "max_position_embeddings": "position embeddings",
    "longest_input": "longest input (tokens)",
    "hidden_act": "activation",
    "cpu_threads": "CPU threads",
    "f1": "F1",
    "macro_f1": "macro F1",
    "micro_f1": "micro F1",
    "weighted_f1": "weighted F1",
    "entity_f1": "entity F1",
    "matthews_correlation": "Matthews correlation",
    "pearson": "Pearson correlation",
    "spearmanr": "Spearman correlation",
    "has_answer_f1": "F1 where there is an answer",
    "has_answer_exact_match": "exact match where there is an answer",
    "no_answer_accuracy": "accuracy where there is none",
    "mlm_loss": "MLM loss (nats)",
    "nsp_loss": "NSP loss (nats)",
    "mlm_accuracy": "MLM accuracy",
    "mlm_perplexity": "MLM perplexity",
    "nsp_accuracy": "NSP accuracy",
}
"""Field of the results -> what the card calls it, where that is not the name with spaces."""
_ERRORS_OF_NUMBERS = ("mean_absolute_error", "root_mean_squared_error")
_UNREMARKABLE = {"sequences_per_example": 1, "compiled_graphs": 0, "dropped": 0, "processes": 1}
"""Fields that the card leaves out at this value."""
_MOST_LABELS, _MOST_CELLS, _MOST_CONFUSIONS = 30, 10, 5

_PURPOSES = {
    "ForSequenceClassification": "classifies {texts}",
    "ForTokenClassification": "tags the words of a text",
    "ForQuestionAnswering": "answers a question by a span of a passage",
    "ForMultipleChoice": "chooses the continuation of a text",
}
_PRE_TRAINED = {
    "ForPreTraining": "masked language modeling and next sentence prediction",
    "ForMaskedLM": "masked language modeling",
    "ForCausalLM": "left-to-right language modeling",
}


def purpose(results: Mapping[str, Any]) -> str:
    """Returns what the model was made for, as the rest of the sentence "A BERT that ..."; empty where not known."""
    name, task, data = results.get("model", {}).get("class", ""), results.get("task"), results.get("data", {})
    if not task:
        return ""
    for ending, objective in _PRE_TRAINED.items():
        if name.endswith(ending):
            return f"was pre-trained with {objective}"
    does = next((text for ending, text in _PURPOSES.items() if name.endswith(ending)), "was made")
    does = does.format(texts="pairs of texts" if len(data.get("text_columns", ())) == 2 else "texts")
    kinds = {"number": ("classifies", "gives a number to"), "labels": ("classifies", "gives any number of labels to")}
    if data.get("kind") in kinds:
        does = does.replace(*kinds[data["kind"]])
    title = data.get("title") or task
    on = f"custom data ({line(title)})" if task == "custom" or data.get("files") else line(title)
    return f"{does}, fine-tuned on {on}"


def score_details(results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tables of a card about what its scores consist of; empty where the run has no such details.

    Returns:
        `split`; `kind`, `columns`, `rows` and `left_out` of the scores of each label (or entity, or question word), the
        most frequent first; `labels` and `matrix` where a confusion matrix fits a page, else the most frequent
        `confusions`; `calibration_error`; `errors`: of numbers, by name; `picture`: what scores.png shows.
    """
    split, found = scored_details(results)
    if not found:
        return {}
    calibration_error = found.get("calibration_error")
    details: dict[str, Any] = {"split": split, "calibration_error": calibration_error, "picture": _picture(found)}
    if kind := next((name for name in SCORES_OF if found.get(name)), None):
        columns = list(next(iter(found[kind].values())))
        rows = sorted(found[kind].items(), key=lambda item: -item[1][columns[-1]])
        shown = [(name, [scores[column] for column in columns]) for name, scores in rows[:_MOST_LABELS]]
        details |= {"kind": SCORES_OF[kind], "columns": columns, "rows": shown, "left_out": len(rows) - len(shown)}
    if "numbers" in found:
        details["errors"] = {name.replace("_", " "): found[name] for name in _ERRORS_OF_NUMBERS}
    if matrix := found.get("confusion_matrix"):
        names = found.get("labels") or list(found["per_label"])
        if len(names) <= _MOST_CELLS:
            details |= {"labels": names, "matrix": list(zip(names, matrix, strict=True))}
        else:
            details["confusions"] = _confusions(names, matrix)
    return details


def _picture(found: Mapping[str, Any]) -> str:
    """Returns what scores.png shows of the details, in words; see `plot_scores`."""
    parts = [f"scores of each {kind}" for name, kind in SCORES_OF.items() if found.get(name)][:1]
    parts += ["confusions"] * bool(found.get("confusion_matrix"))
    parts += ["calibration"] * bool(found.get("calibration_bins"))
    parts += ["predictions against labels"] * bool(found.get("numbers"))
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]])).capitalize()


def _confusions(names: list[str], matrix: list[list[int]]) -> list[tuple[str, str, int]]:
    pairs = [
        (true, predicted, count)
        for true, counts in zip(names, matrix, strict=True)
        for predicted, count in zip(names, counts, strict=True)
        if true != predicted and count
    ]
    return sorted(pairs, key=lambda pair: -pair[2])[:_MOST_CONFUSIONS]


def facts(part: str, results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a part of the results as rows of a table, without what the card says in words."""
    words = _IN_WORDS.get(part, ())
    values = {
        name: value
        for name, value in results.get(part, {}).items()
        if name not in words and not (name in _UNREMARKABLE and _UNREMARKABLE[name] == value)
    }
    return dict(_flat(values))


def called(name: str) -> str:
    """Returns what the card calls a field of the results, ready for a table."""
    return line(_NAMES.get(name, name.replace(".", ": ").replace("_", " ")))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the scalars of a nested mapping under dotted names, without empty ones; a long list is its size."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and len(value) > _LONGEST_LIST:
            yield f"{prefix}{key}", f"{len(value)} entries"
        elif value not in (None, "", []):
            yield f"{prefix}{key}", value


def one_line(text: Any) -> str:
    """Returns a text without line breaks and control characters."""
    return " ".join("".join(part for part in word if part.isprintable()) for word in str(text).split())


def line(text: Any) -> str:
    """Returns a text as Markdown that shows it on one line and means nothing else."""
    return _MARKDOWN.sub(r"\\\1", one_line(text))
