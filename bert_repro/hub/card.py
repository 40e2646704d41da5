"""Model cards: README.md of a published folder, made from the results of its run. A card claims what they say, no more.

The results are what results.json holds (`bert_repro.results.RunResults`; every key may be missing), and what
`recipes/make_card.py` adds:

    data             {dataset, config, license, language, note ...}   `dataset`: id on the Hub; None: it has none
    license          of the weights
    converted_from   the checkpoint of a conversion
"""

import dataclasses
import json
import logging
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from bert_repro import configs
from bert_repro.errors import UserError
from bert_repro.results import read_results
from bert_repro.utils.files import CARD, write_text
from bert_repro.utils.readers import redacted, without_machine_paths

logger = logging.getLogger("bert_repro")

TEMPLATE = "card_template.md.jinja"
THRESHOLD = "null_score_diff_threshold"


@dataclass(frozen=True)
class HubTask:
    """What a model class is to the Hub.

    Args:
        auto_class: the class of transformers that loads it.
        pipeline_tag: the Hub's name for its task; None: the Hub has none.
        example: an input that quotes nobody, for where the run's data has none to show.
        widget: the inputs of the Hub's widget; (): it has none.
    """

    auto_class: str
    pipeline_tag: str | None = None
    example: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    widget: tuple[str, ...] = ()


_MASKED, _REVIEW = {"text": "Paris is the [MASK] of France."}, {"text": "A film that never lets you go."}
_NAMES_OF = {"text": "Marie Curie worked in Paris."}
_PAIR = {"text": "She opened the window.", "text_pair": "Fresh air came in."}
_CHOICE = {"prompt": "She opened the window", "choices": ["and fresh air came in.", "and swallowed the key."]}
_QUESTION = {"text": "Where did Marie Curie work?", "context": "Marie Curie worked in Paris."}
HUB_TASKS: Mapping[str, HubTask] = {
    "ForPreTraining": HubTask("AutoModelForPreTraining", "fill-mask", _MASKED, ("text",)),
    "ForMaskedLM": HubTask("AutoModelForMaskedLM", "fill-mask", _MASKED, ("text",)),
    "ForCausalLM": HubTask("AutoModelForCausalLM", "text-generation"),
    "ForNextSentencePrediction": HubTask("AutoModelForNextSentencePrediction", None, _PAIR),
    "ForSequenceClassification": HubTask(
        "AutoModelForSequenceClassification", "text-classification", _REVIEW, ("text",)
    ),
    "ForTokenClassification": HubTask("AutoModelForTokenClassification", "token-classification", _NAMES_OF, ("text",)),
    "ForQuestionAnswering": HubTask("AutoModelForQuestionAnswering", "question-answering", _QUESTION, tuple(_QUESTION)),
    "ForMultipleChoice": HubTask("AutoModelForMultipleChoice", "multiple-choice", _CHOICE),
    "Model": HubTask("AutoModel", "feature-extraction"),
}
"""By the ending of the class name, ours and transformers' alike."""
_PURPOSES = {
    "ForPreTraining": "was pre-trained with masked language modeling and next sentence prediction",
    "ForMaskedLM": "was pre-trained with masked language modeling",
    "ForCausalLM": "was pre-trained with left-to-right language modeling",
    "ForSequenceClassification": "classifies {texts}, fine-tuned on {data}",
    "number": "gives {texts} a number, fine-tuned on {data}",
    "ForTokenClassification": "tags the words of a text, fine-tuned on {data}",
    "ForQuestionAnswering": "answers a question by a span of a passage, fine-tuned on {data}",
    "ForMultipleChoice": "chooses the continuation of a text, fine-tuned on {data}",
}
_IN_WORDS = frozenset({
    "model_name_or_path", "hub_model_id", "output_dir", "resume_from_checkpoint", "seed", "data_dir", "corpus",
    "phases", "logging_steps", "eval_steps", "save_steps", "save_total_limit", "allow_changed_settings",
    "overwrite_output_dir", "do_train", "do_eval", "do_predict", "task_name",
})  # fmt: skip
"""Settings that a card says elsewhere, or that mean nothing to its reader."""
_ALWAYS = ("learning_rate", "num_train_epochs")
_NAMES = {
    "examples": "training rows", "rows": "training inputs", "steps": "optimizer steps", "batch": "examples per step",
    "tokens": "tokens read", "best_step": "step of the published weights", "seconds": "seconds of training",
    "mfu": "MFU (share of the peak FLOPs)",
    "f1": "F1", "macro_f1": "macro F1", "micro_f1": "micro F1", "weighted_f1": "weighted F1", "entity_f1": "entity F1",
    "matthews_correlation": "Matthews correlation", "pearson": "Pearson correlation",
    "spearmanr": "Spearman correlation", "has_answer_f1": "F1 where there is an answer",
    "has_answer_exact_match": "exact match where there is an answer",
    "no_answer_accuracy": "accuracy where there is none",
    "mlm_loss": "MLM loss (nats)", "nsp_loss": "NSP loss (nats)", "mlm_accuracy": "MLM accuracy",
    "mlm_perplexity": "MLM perplexity", "nsp_accuracy": "NSP accuracy",
}  # fmt: skip
"""Field of the results -> what the card calls it, where that is not the name with spaces."""
_MARKDOWN = re.compile(r"([\\`*\[\]<>|]|(?<!\w)_|_(?!\w))")


@dataclass(frozen=True)
class Score:
    """One row of the result table.

    Args:
        whole: whether all rows of the published split, or of the user's own file, were scored.
    """

    split: str
    metric: str
    value: float | None
    rows: int | None
    whole: bool = False


def make_card(results: Mapping[str, Any], model_id: str, *, pictures: Collection[str] = ()) -> str:
    """Returns the text of README.md for a published folder, metadata block included.

    Args:
        results: what is known of the run; see the module's docstring.
        model_id: how the snippets name the model: its id on the Hub, or the folder.
        pictures: names of the plots in the same folder, which the card then shows.

    Returns:
        Markdown. No text of the results (names of labels, models, files) can change the structure of the card or of its
        snippets.
    """
    import jinja2

    known: Mapping[str, Any] = without_machine_paths(redacted(results))
    class_name = known.get("model", {}).get("class")
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.ChainableUndefined
    )
    filters = {"cell": _cell, "line": line, "code": _code, "fenced": _fenced, "score": _score, "literal": _literal}
    environment.filters |= {**filters, "called": lambda name: line(_NAMES.get(name, name.replace("_", " ")))}
    template = environment.from_string(resources.files("bert_repro.hub").joinpath(TEMPLATE).read_text("utf-8"))
    text = template.render(
        metadata=card_metadata(known, model_id),
        title=line(model_id),
        where=_literal(model_id),
        class_name=class_name,
        task=hub_task_of(class_name) if class_name else None,
        loads_upstream=known.get("model", {}).get("model_type", "bert") == "bert",
        purpose=_purpose(known),
        example=example_of(known),
        results=known,
        scores=list(scores(known)),
        notes=list(_notes(known)),
        facts=_facts(known),
        settings=_changed_settings(known),
        pictures=pictures,
    )
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def name_of_folder(folder: Path) -> str:
    """Returns how a card names a folder: by its relative path, which loads as it is typed, else by its last name."""
    return folder.resolve().name if folder.is_absolute() or ".." in folder.parts else folder.as_posix()


def renamed(card: str, model_id: str) -> str:
    """Returns a card of `make_card` with another name of the model in its title, metadata and snippets."""
    title = re.search(r"^# (.+)$", card, re.MULTILINE)
    if title is None:
        return card
    old = re.sub(r"\\(.)", r"\1", title[1])
    card = card.replace(title[0], f"# {line(model_id)}", 1).replace(_literal(old), _literal(model_id))
    return card.replace(f"\n- name: {old.rsplit('/', 1)[-1]}\n", f"\n- name: {model_id.rsplit('/', 1)[-1]}\n")


def write_card(config: configs.CardConfig) -> Path:
    """Writes the card of a finished run again, from its results.json and the facts given (recipes/make_card.py).

    Returns:
        The file.

    Raises:
        UserError: the folder has no results of a training run.
    """
    folder = Path(config.folder)
    results: dict[str, Any] = dict(read_results(folder))
    if "train" not in results:
        raise UserError(f"--folder {folder}: its run made no model, it scored others; name a training run's folder")
    data = results["data"] = dict(results.get("data", {}))
    data |= {name: value for name, value in {"language": list(config.language), "note": config.note}.items() if value}
    given = {"base_model": config.base_model, "license": config.license}
    results |= {name: value for name, value in given.items() if value}
    name = config.hub_model_id or results.get("settings", {}).get("hub_model_id") or name_of_folder(folder)
    path = folder / CARD
    write_text(path, make_card(results, name, pictures={picture.name for picture in folder.glob("*.png")}))
    logger.info("wrote %s", path)
    return path


# ------------------------------------------------------------------------------------------------------------ contents


def hub_task_of(class_name: str) -> HubTask:
    """Returns the entry of `HUB_TASKS` for a model class.

    Raises:
        ValueError: the class is none of the BERT family.
    """
    for ending, task in HUB_TASKS.items():
        if class_name.endswith(ending) and class_name.isidentifier():
            return task
    raise ValueError(f"{class_name} is no BERT model; its name must end in one of: {', '.join(HUB_TASKS)}")


def example_of(results: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the input of a card's snippet: an example of the run's own data, or a neutral one for the task."""
    class_name, data = results.get("model", {}).get("class"), results.get("data", {})
    neutral = dict(hub_task_of(class_name).example) if class_name else {}
    if class_name and class_name.endswith("ForSequenceClassification") and len(data.get("text_columns", ())) == 2:
        neutral = {"text": "A man is playing a guitar.", "text_pair": "Someone makes music."}
    own = data.get("example")
    return own if isinstance(own, Mapping) and own.keys() == neutral.keys() else neutral


def scores(results: Mapping[str, Any]) -> Iterator[Score]:
    """Yields the scores of a run, one per split and metric; a split that was not scored has the value None."""
    splits = results.get("splits") or {results.get("split", "validation"): results}
    own, limit = results.get("data", {}).get("files"), results.get("settings", {}).get("max_eval_samples")
    for name, split in splits.items():
        if split.get("missing"):
            yield Score(name, "any", None, None)
        rows = split.get("rows_scored")
        for metric, value in split.get("metrics", {}).items():
            whole = rows is not None and (rows != limit if own else rows == split.get("published_rows"))
            yield Score(name, metric, float(value), rows, whole=whole)


def card_metadata(results: Mapping[str, Any], model_id: str) -> str:
    """Returns the metadata of a card as YAML, without the lines of dashes around it.

    A score is tagged as that of a split only where all of its rows were scored, and that of the user's own data as one
    of `custom` data, by the file's name and rows. See huggingface.co/docs/hub/model-cards.

    Args:
        results: what is known of the run; see the module's docstring.
        model_id: how the card names the model.
    """
    from huggingface_hub import EvalResult, ModelCardData

    data, class_name = results.get("data", {}), results.get("model", {}).get("class")
    task = hub_task_of(class_name) if class_name else HubTask("AutoModel")
    example, task_name, files = example_of(results), results.get("task"), data.get("files")
    # The Hub's classification widget has one field of text.
    widget = {name: example[name] for name in task.widget} if "text_pair" not in example else {}
    claims = [
        EvalResult(
            task_type=task.pipeline_tag or "other",
            dataset_type="custom" if files else data["dataset"],
            dataset_name=files.get(score.split, f"held out of {files.get('train')}") if files else task_name,
            dataset_config=data.get("config"),
            dataset_split=score.split,
            dataset_args={"rows": score.rows} if files else None,
            metric_type=score.metric,
            metric_value=score.value,
        )
        for score in scores(results)
        if (files or data.get("dataset"))
        and score.whole
        and math.isfinite(score.value or 0)
        and score.metric != THRESHOLD
    ]
    fields: dict[str, Any] = {
        "library_name": "transformers",
        "license": results.get("license"),
        "language": data.get("language"),
        "datasets": [data["dataset"]] if data.get("dataset") else None,
        "base_model": results.get("base_model"),
        "pipeline_tag": task.pipeline_tag,
        "tags": ["bert", "bert-repro", *([task_name] if task_name and not data.get("files") else [])],
        "widget": [widget] if widget else None,
    }
    if claims:
        fields |= {"model_name": model_id.rsplit("/", 1)[-1], "eval_results": claims}
    return str(ModelCardData(**fields).to_yaml())


def _purpose(results: Mapping[str, Any]) -> str:
    """Returns what the model was made for, as the rest of the sentence "A BERT that ..."; empty where not known."""
    name, data = results.get("model", {}).get("class", ""), results.get("data", {})
    if not results.get("task"):
        return ""
    if len(results.get("model", {}).get("labels", ())) == 1:
        name = "number"
    # The class does not say whether next sentence prediction was an objective, so the run does.
    if "objective" in results:
        return f"was pre-trained with {line(str(results['objective']))}"
    purpose = next((words for ending, words in _PURPOSES.items() if name.endswith(ending)), "was made for {data}")
    title = line(data.get("title") or results["task"])
    own = results["task"] == "custom" or data.get("files")
    pairs = len(data.get("text_columns", ())) == 2
    return purpose.format(texts="pairs of texts" if pairs else "texts", data=f"custom data ({title})" if own else title)


def _notes(results: Mapping[str, Any]) -> Iterator[str]:
    """Yields what a reader of the scores must know."""
    settings, train = results.get("settings", {}), results.get("train", {})
    if train.get("examples", 0) < (train.get("published_rows") or 0):
        yield f"Trained on {train['examples']:,} of the {train['published_rows']:,} published rows."
    if settings.get(THRESHOLD) is None and "train" in results and THRESHOLD in results.get("metrics", {}):
        yield "The threshold for no answer was chosen on the split that is scored here, which flatters it a little."
    rows, share = results.get("rows_scored"), results.get("metrics", {}).get("accuracy")
    # Of tags, which are scored by word, the words are not independent.
    if rows and share is not None and not str(results.get("model", {}).get("class")).endswith("ForTokenClassification"):
        half = 1.96 * math.sqrt(share * (1 - share) / rows)
        yield f"The 95% interval of an accuracy over {rows:,} rows is ± {half:.3f} (binomial); other seeds add to it."
    metric, baselines = results.get("primary_metric"), results.get("baselines", {})
    if ahead := [name for name in baselines if baselines[name][metric] >= results["metrics"][metric]]:
        yield f"The model is not ahead of {' and '.join(ahead)}."
    if results.get("degenerate"):
        yield "**This run is degenerate**: the model gives the same answer for every row, or none that is right."


def _facts(results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the rows of the table about training."""
    train, hardware = results.get("train", {}), results.get("hardware", {})
    facts = {name: train[name] for name in _NAMES if name in train}
    if counts := results.get("data", {}).get("counts"):
        facts["corpus"] = f"{counts.get('documents', 0):,} documents, {counts.get('words', 0):,} words"
    if phases := train.get("phases"):
        facts["phases"] = [
            f"{phase.get('steps', 0):,} steps of {phase.get('batch')} sequences of {phase.get('max_seq_length')} tokens"
            for phase in phases
        ]
    if hardware:
        place = hardware.get("processor") or hardware.get("device") or "not recorded"
        facts["hardware"] = f"{hardware.get('processes', 1)} x {place}"
    if results.get("versions"):
        facts["versions"] = ", ".join(f"{name} {version}" for name, version in results["versions"].items() if version)
    return facts | ({"commit": results["git_commit"]} if results.get("git_commit") else {})


def default_settings(results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of runs that make such a model, with their defaults."""
    name = results.get("model", {}).get("class", "")
    kind = next((family for end, family in configs.FAMILIES.items() if name.endswith(end)), configs.PretrainingConfig)
    return {field.name: field.default for field in dataclasses.fields(kind)}


def _changed_settings(results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of the run that differ from their defaults, and those that everybody asks for."""
    defaults = default_settings(results)
    unused = {"num_train_epochs"} if results.get("settings", {}).get("max_steps") else set()
    return {
        name: value
        for name, value in results.get("settings", {}).items()
        if name in defaults.keys() - _IN_WORDS - unused
        and (name in _ALWAYS or (tuple(value) if isinstance(value, list) else value) != defaults[name])
    }


# --------------------------------------------------------------------------------------------------- texts in Markdown


def line(text: Any) -> str:
    """Returns a text as Markdown that shows it on one line and means nothing else."""
    return _MARKDOWN.sub(r"\\\1", _one_line(text))


def _one_line(text: Any) -> str:
    return " ".join("".join(filter(str.isprintable, word)) for word in str(text).split())


def _code(text: Any) -> str:
    code = _one_line(text)
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", code)), default=0))
    return f"{ticks} {code} {ticks}" if "`" in code else f"`{code}`"


def _fenced(text: Any) -> str:
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", str(text))), default=0))
    return f"{fence}\n{_one_line(text)}\n{fence}"


def _literal(text: str) -> str:
    """Returns a text as a Python string that cannot end the code block around it."""
    return json.dumps(text, ensure_ascii=False).replace("```", r"\x60\x60\x60")


def _score(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, int | float) else "-"


def _cell(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(_cell(element) for element in value)
    if isinstance(value, float) and value >= 1e3:
        return f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else line(value)
