"""Minimal pairs: how often a masked language model prefers the acceptable sentence (BLiMP, Warstadt et al., 2020).

Files are those of BLiMP, or of the same form: JSON lines (also .gz, .xz) with `sentence_good` and `sentence_bad`, and
where they are there `UID` (the paradigm), `linguistics_term` (the phenomenon) and `field`.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

from bert_repro.configs import SentenceScoringConfig
from bert_repro.errors import UserError
from bert_repro.inference.sentence_scoring import score_with
from bert_repro.utils.files import RESULTS, write_json, write_text
from bert_repro.utils.tables import read_json_lines

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger("bert_repro")

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.xz")
TABLE_FILE = "minimal_pairs.txt"
_LEVELS = {"paradigm": "UID", "phenomenon": "linguistics_term", "field": "field"}


@dataclass(frozen=True)
class MinimalPair:
    """Two sentences that differ in one respect, and what it is.

    Args:
        good: the acceptable sentence.
        bad: the other one.
        place: file and line, for messages.
        levels: its `paradigm`, `phenomenon` and `field`; None where the file does not say.
    """

    good: str
    bad: str
    place: str
    levels: dict[str, str | None]


def find_pair_files(names: Sequence[str]) -> list[Path]:
    """Resolves files and folders of minimal pairs, the files of a folder sorted by name.

    Raises:
        UserError: a name leads nowhere, or a folder holds no such file.
    """
    found: list[Path] = []
    for name in names:
        path = Path(name)
        files = sorted(file for file in path.iterdir() if file.name.endswith(SUFFIXES)) if path.is_dir() else [path]
        if not files:
            raise UserError(f"--minimal_pairs {name}: holds no file that ends in {', '.join(SUFFIXES)}")
        for file in files:
            if not file.is_file():
                raise UserError(f"--minimal_pairs {file}: no such file or folder")
        found += files
    return found


def read_pairs(path: Path) -> list[MinimalPair]:
    """Reads the pairs of one file; without `UID` the file's name is the paradigm.

    Raises:
        UserError: the file is damaged, or a row lacks a sentence.
    """
    table = read_json_lines(path, ("sentence_good", "sentence_bad"), optional=tuple(_LEVELS.values()))
    pairs = []
    for row, line in enumerate(table.lines):
        levels = {level: table.columns[name][row] if name in table.columns else None for level, name in _LEVELS.items()}
        levels["paradigm"] = levels["paradigm"] or path.name.split(".")[0]
        good, bad = (table.columns[name][row] for name in ("sentence_good", "sentence_bad"))
        for name, text in (("sentence_good", good), ("sentence_bad", bad)):
            if not text.strip():
                raise table.error(row, f"field {name!r} is empty; give a sentence")
        pairs.append(MinimalPair(good, bad, f"{path}, line {line}", levels))
    return pairs


def score_minimal_pairs(
    config: SentenceScoringConfig, model: Any, tokenizer: "PreTrainedTokenizerBase"
) -> dict[str, Any]:
    """Scores every pair of `config.minimal_pairs`; writes results.json and a table into `config.output_dir`.

    Returns:
        What results.json holds.

    Raises:
        UserError: a file or row is bad; nothing is written.
        NonFiniteError: the model's output is not finite.
    """
    began = time.perf_counter()
    by_file = [read_pairs(path) for path in find_pair_files(config.minimal_pairs)]  # all, before hours of scoring
    margins: list[tuple[MinimalPair, float]] = []
    for pairs in tqdm(by_file, unit="file"):
        sentences = [sentence for pair in pairs for sentence in (pair.good, pair.bad)]
        names = [pair.place for pair in pairs for _ in range(2)]
        totals = [score.total for score in score_with(config, model, tokenizer, sentences, names)]
        margins += [(pair, good - bad) for pair, good, bad in zip(pairs, totals[::2], totals[1::2], strict=True)]
    results = {
        "task": "minimal pairs",
        "settings": asdict(config),
        "method": config.method,
        "mixed_precision": config.mixed_precision,
        "rows_scored": len(margins),
        **accuracies(margins),
        "wall_time_seconds": round(time.perf_counter() - began, 1),
    }
    folder = Path(config.output_dir)
    write_json(folder / RESULTS, results)
    table = accuracy_table(results)
    write_text(folder / TABLE_FILE, table)
    logger.info("%s", table.rstrip())
    return results


def accuracies(margins: Sequence[tuple[MinimalPair, float]]) -> dict[str, Any]:
    """Computes the accuracy per paradigm, phenomenon and field, and over all pairs.

    Args:
        margins: each pair with the score of its good sentence less that of its bad one; equal scores count as wrong.

    Returns:
        `metrics` (`accuracy` over pairs, `mean_paradigm_accuracy`, `ties`) and, by level, `paradigm`, `phenomenon` and
        `field`: name -> `accuracy` and `pairs`; of paradigms also the other two levels.
    """
    tallies: dict[str, dict[str, list[bool]]] = {level: defaultdict(list) for level in _LEVELS}
    above: dict[str, dict[str, str | None]] = {}
    for pair, margin in margins:
        for level, name in pair.levels.items():
            if name is not None:
                tallies[level][name].append(margin > 0)
        paradigm = pair.levels["paradigm"] or ""
        above[paradigm] = {level: name for level, name in pair.levels.items() if level != "paradigm" and name}
    levels: dict[str, dict[str, dict[str, Any]]] = {
        level: {
            name: {"accuracy": sum(right) / len(right), "pairs": len(right)} for name, right in sorted(tally.items())
        }
        for level, tally in tallies.items()
    }
    for name, entry in levels["paradigm"].items():
        entry |= above[name]
    paradigms = [entry["accuracy"] for entry in levels["paradigm"].values()]
    metrics = {
        "accuracy": sum(margin > 0 for _, margin in margins) / len(margins),
        "mean_paradigm_accuracy": sum(paradigms) / len(paradigms),
        "ties": sum(margin == 0 for _, margin in margins),
    }
    return {"metrics": metrics, **levels}


def accuracy_table(results: dict[str, Any]) -> str:
    """Returns the accuracies as text: over all pairs, per phenomenon, per paradigm."""
    rows = [("all pairs", results["metrics"]["accuracy"], results["rows_scored"])]
    for level in ("phenomenon", "paradigm"):
        rows.append((f"by {level}", None, None))
        rows += [(f"  {name}", entry["accuracy"], entry["pairs"]) for name, entry in results[level].items()]
    width = max(len(name) for name, *_ in rows)
    lines = [
        name if accuracy is None else f"{name:<{width}}  {100 * accuracy:5.1f}  {pairs:>6}"
        for name, accuracy, pairs in rows
    ]
    return f"{'':<{width}}  {'acc.':>5}  {'pairs':>6}\n" + "\n".join(lines) + "\n"
