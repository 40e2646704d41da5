"""Model cards: README.md of a published folder, made from the results of its run. A card claims what they say, no more.

The results are what results.json holds (`bert_repro.results.RunResults`; every key may be missing), and what
`recipes/make_card.py` adds:

    data       {dataset, config, license, language, note ...}   `dataset`: id on the Hub; None: it has none
    runs       [{seed, splits}]                                 the same run with other seeds
    license                                                     of the weights
    converted_from                                              the checkpoint of a conversion
    revision                                                    of a checkpoint on the Hub
"""

import json
import logging
import re
import statistics
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from bert_repro.configs import CardConfig
from bert_repro.errors import UserError
from bert_repro.hub.card_words import called, facts, line, one_line, purpose, score_details
from bert_repro.hub.metadata import (
    THRESHOLD,
    card_metadata,
    eval_result_entries,
    example_of,
    find_card_errors,
    hub_task_of,
    scores,
    threshold_was_tuned,
)
from bert_repro.hub.plots import plot_scores
from bert_repro.results import read_results
from bert_repro.utils.files import CARD, RESULTS, SCORES_PLOT, write_text
from bert_repro.utils.readers import shown
from bert_repro.utils.redaction import redacted, without_machine_paths

logger = logging.getLogger("bert_repro")

TEMPLATE = "card_template.md.jinja"
EVAL_RESULTS = ".eval_results"
"""Folder of a published folder that the Hub's benchmarks read."""


@dataclass(frozen=True)
class Spread:
    """One score over several seeds; `deviation` is that of a sample."""

    split: str
    metric: str
    runs: int
    mean: float
    deviation: float


def make_card(results: Mapping[str, Any], model_id: str, *, pictures: Collection[str] = ()) -> str:
    """Returns the text of README.md for a published folder, metadata block included.

    Args:
        results: what is known of the run; see the module's docstring.
        model_id: how the snippets name the model: its id on the Hub, or the folder.
        pictures: names of the plots beside the card, which it then shows.

    Returns:
        Markdown. Credentials are taken out, and of paths outside the run all but the last part. No text of the results
        (names of labels, models, files) can change the structure of the card or of its snippets.
    """
    import jinja2

    clean = redacted(results)
    known = without_machine_paths(clean)
    class_name = known.get("model", {}).get("class")
    settings = known.get("settings", {})
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.ChainableUndefined
    )
    filters = {"cell": _cell, "line": line, "code": _code, "fenced": _fenced, "score": _score, "called": called}
    environment.filters |= {**filters, "literal": _literal}
    template = environment.from_string(resources.files("bert_repro.hub").joinpath(TEMPLATE).read_text("utf-8"))
    text = template.render(
        metadata=card_metadata(clean, model_id),
        title=line(model_id),
        where=_location(model_id, known.get("revision")),
        class_name=class_name,
        task=hub_task_of(class_name) if class_name else None,
        loads_upstream=known.get("model", {}).get("model_type", "bert") == "bert",
        pair=len(known.get("data", {}).get("text_columns", ())) == 2,
        base=known.get("base_model"),
        local_base=settings.get("model_name_or_path"),
        purpose=purpose(known),
        example=example_of(clean),
        pictures=pictures,
        details=score_details(known),
        kind=known.get("data", {}).get("kind"),
        resumed=bool(settings.get("resume_from_checkpoint")),
        results=known,
        facts={name: facts(name, known) for name in ("model", "data", "train", "hardware", "settings")},
        scores=list(scores(known)),
        unanswerable=THRESHOLD in known.get("metrics", {}),
        tuned=threshold_was_tuned(known),
        seeds=[known.get("seed"), *(run["seed"] for run in known.get("runs", []))],
        spreads=list(spreads(known)),
    )
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def renamed(card: str, model_id: str) -> str:
    """Returns a card of `make_card` with another name of the model: in its title, metadata and snippets.

    Args:
        card: Markdown; one without a title stays as it is.
        model_id: the new name.
    """
    title = re.search(r"^# (.+)$", card, re.MULTILINE)
    if title is None or title[1] == line(model_id):
        return card
    old, short = re.sub(r"\\(.)", r"\1", title[1]), model_id.rsplit("/", 1)[-1]
    metadata, body = card[: title.start()], card[title.end() :]
    metadata = metadata.replace(f"\n- name: {old.rsplit('/', 1)[-1]}\n", f"\n- name: {short}\n")
    body = re.sub(
        r"^```python\n.*?^```",
        lambda code: code[0].replace(_literal(old), _literal(model_id)),
        body,
        flags=re.M | re.S,
    )
    return f"{metadata}# {line(model_id)}{body}"


def spreads(results: Mapping[str, Any]) -> Iterator[Spread]:
    """Yields mean and deviation of every score over the seeds, where there are several."""
    if not results.get("runs"):
        return
    values: dict[tuple[str, str], list[float]] = {}
    for run in (results, *results["runs"]):
        for score in scores(run):
            if score.value is not None:
                values.setdefault((score.split, score.metric), []).append(score.value)
    for (split, metric), found in values.items():
        if len(found) > 1:
            yield Spread(split, metric, len(found), statistics.mean(found), statistics.stdev(found))


def write_eval_results(folder: Path, results: Mapping[str, Any]) -> None:
    """Writes what the Hub's benchmarks read of a run, in the place of what an earlier one claimed there.

    Args:
        folder: published folder; its `.eval_results` is removed where there is nothing to claim.
        results: see the module's docstring.
    """
    import shutil

    import yaml

    shutil.rmtree(folder / EVAL_RESULTS, ignore_errors=True)
    if entries := eval_result_entries(results):
        path = folder / EVAL_RESULTS / f"{results['task']}.yaml"
        write_text(path, yaml.safe_dump(entries, sort_keys=False))


# --- The recipe -----------------------------------------------------------------------------------------------------


def write_card(config: CardConfig) -> Path:
    """Writes the card of a finished run again, from its results.json and the facts given (recipes/make_card.py).

    With the folder's own README.md, what the folder claims in `.eval_results` is written again too: a push sends both.

    Returns:
        The file.

    Raises:
        UserError: the folder has no results, runs that should be the same are not, or a fact given is not as the Hub
            wants it.
    """
    folder = Path(config.folder)
    results: dict[str, Any] = dict(read_results(folder))
    if "train" not in results:
        raise UserError(
            f"--folder {folder}: its run made no model, it scored others; name the folder of a training run"
        )
    results["data"] = _data(results.get("data", {}), config)
    if config.example:
        results["data"]["example"] = _given_example(config.example, results)
    given = {"base_model": config.base_model, "license": config.license}
    results |= {name: value for name, value in given.items() if value}
    results["runs"] = [_same_run(Path(name), results) for name in config.same_runs]
    name = config.hub_model_id or results.get("settings", {}).get("hub_model_id") or folder.resolve().name
    path = Path(config.output_file) if config.output_file else folder / CARD
    beside_run = path.resolve() == (folder / CARD).resolve()
    if beside_run:
        plot_scores(folder / SCORES_PLOT, results)
    pictures = {picture.name for picture in folder.glob("*.png")} if beside_run else set()
    try:
        card = make_card(results, name, pictures=pictures)
    except UserError:
        raise
    except Exception as error:  # fields that no run writes, which fail wherever they are used
        raise UserError(
            f"{folder / RESULTS}: its fields make no card ({type(error).__name__}: {error}); copy the file again"
        ) from error
    if errors := find_card_errors(card):
        raise UserError(f"the card would not be right: {errors[0]}")
    write_text(path, card)
    if beside_run:
        write_eval_results(folder, results)
    logger.info("wrote %s", path)
    return path


def _data(known: Mapping[str, Any], config: CardConfig) -> dict[str, Any]:
    """Returns the facts about the data: those of the run, less what another dataset makes untrue, and those given."""
    data = dict(known)
    if config.dataset is not None:
        published = data.get("dataset") is not None  # then language and license are facts about that dataset
        for name in ("config", "language", "license") if published else ("config",):
            data.pop(name, None)
        data["dataset"] = None if config.dataset == "none" else config.dataset
    given = {"language": list(config.language), "license": config.data_license, "note": config.note}
    return data | {name: value for name, value in given.items() if value}


def _given_example(texts: tuple[str, ...], results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `--example` as the input of the model's task; empty where a neutral sentence is asked for."""
    if texts == ("none",):
        return {}
    names = list(example_of({**results, "data": {**results["data"], "example": None}}))
    if "choices" in names:
        return {"prompt": texts[0], "choices": list(texts[1:])}
    if len(texts) != len(names):
        raise UserError(f"--example: {len(texts)} texts; this model takes {len(names)}: {', '.join(names)}")
    return dict(zip(names, texts, strict=True))


def _same_run(folder: Path, results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns seed and scores of a run that differs from another by its seed alone."""
    other: dict[str, Any] = dict(read_results(folder))
    for name in ("task", "settings"):
        mine, yours = _comparable(results.get(name)), _comparable(other.get(name))
        if mine != yours:
            raise UserError(
                f"--same_runs {folder}: its {_difference(name, mine, yours)}; name runs of other seeds only"
            )
    if other.get("seed") == results.get("seed"):
        raise UserError(f"--same_runs {folder}: has the same seed {other.get('seed')}; name runs of other seeds only")
    return {name: other[name] for name in ("seed", "split", "splits", "metrics", "rows_scored") if name in other}


def _comparable(value: Any) -> Any:
    apart = ("seed", "output_dir", "overwrite_output_dir", "resume_from_checkpoint", "save_steps", "logging_steps",
             "report_to", "run_name", "project")  # fmt: skip
    return {name: item for name, item in value.items() if name not in apart} if isinstance(value, dict) else value


def _difference(name: str, mine: Any, yours: Any) -> str:
    if not (isinstance(mine, dict) and isinstance(yours, dict)):
        return f"{name} is {shown(yours)}, not {shown(mine)}"
    key = min(key for key in {*mine, *yours} if mine.get(key) != yours.get(key))
    return f"{key} is {shown(yours.get(key))}, not {shown(mine.get(key))}"


# --- Values in the text ---------------------------------------------------------------------------------------------


def _code(text: Any) -> str:
    """Returns a text as a Markdown code span."""
    code = one_line(text)
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", code)), default=0))
    return f"{ticks} {code} {ticks}" if "`" in code else f"`{code}`"


def _fenced(text: Any) -> str:
    """Returns a text as a Markdown code block."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", str(text))), default=0))
    return f"{fence}\n{one_line(text)}\n{fence}"


def _literal(text: str) -> str:
    """Returns a text as a Python string that cannot end the code block around it."""
    return json.dumps(text, ensure_ascii=False).replace("`", r"\x60")


def _location(model_id: str, revision: str | None) -> str:
    """Returns the arguments by which a snippet names the model."""
    return _literal(model_id) + (f", revision={_literal(revision)}" if revision else "")


def _score(value: Any) -> str:
    """Returns a score in a table; "-" where there is none."""
    return f"{value:.4f}" if isinstance(value, int | float) else "-"


def _cell(value: Any) -> str:
    """Returns a value in a Markdown table."""
    if isinstance(value, list):
        return ", ".join(_cell(element) for element in value)
    if isinstance(value, float) and value >= 1e6:
        return f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else line(value)
