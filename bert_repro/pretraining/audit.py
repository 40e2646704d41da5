"""Measures the examples that a corpus and settings give, checks them against the settings, and reports.

Examples come from the stream and the collator that training uses. A failed check ends the process with exit code 2, as
bad input does: the corpus or the settings are not fit to train on.
"""

import logging
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from bert_repro.configs import AuditConfig
from bert_repro.corpus.prepared_corpus import PreparedCorpus
from bert_repro.corpus.tokenizer import load_tokenizer
from bert_repro.errors import UserError
from bert_repro.hub.corpora import corpus_folder
from bert_repro.pretraining.audit_checks import (
    LENGTH_BINS,
    ExampleCounts,
    Sample,
    Vocabulary,
    corpus_checks,
    example_checks,
)
from bert_repro.pretraining.dataset import ExampleStream, Position
from bert_repro.pretraining.masking import DataCollatorForBertPreTraining
from bert_repro.utils import process
from bert_repro.utils.files import SAMPLE_INDEX, atomic_path, write_json, write_text

logger = logging.getLogger("bert_repro")

_BATCH = 8192
_BINS = 8
_BAR = 40


def audit_pretraining_data(config: AuditConfig) -> dict[str, Any]:
    """Audits a corpus: writes audit.json, audit.txt and audit.png and reports the table.

    Returns:
        What audit.json holds: `passed`, `checks`, `statistics`, `settings`.

    Raises:
        UserError: bad input; or a check failed (exit code 2, the line names each failed check).
    """
    output_dir = Path(config.output_dir)
    if not process.is_free_folder(output_dir) and not config.overwrite_output_dir:
        raise UserError(f"--output_dir {output_dir} is not empty; choose another or give --overwrite_output_dir")
    folder = corpus_folder(config.corpus)
    corpus = PreparedCorpus.load(folder)
    process.claim_folder(output_dir)
    tokenizer = load_tokenizer(folder / "tokenizer")
    counted = ExampleCounts(
        config, config.max_seq_length, config.max_predictions_per_seq, Vocabulary.of(tokenizer), corpus.num_documents
    )
    try:
        for sample in _samples(config, corpus, tokenizer, output_dir / SAMPLE_INDEX):
            counted.add(sample)
    finally:
        shutil.rmtree(output_dir / SAMPLE_INDEX, ignore_errors=True)
    checks = [*corpus_checks(corpus), *example_checks(counted)]
    report = {
        "passed": all(check.passed for check in checks),
        "checks": [check.as_json() for check in checks],
        "statistics": {**corpus_statistics(corpus, config.max_seq_length), **example_statistics(counted)},
        "settings": asdict(config),
    }
    text = text_report(report)
    write_json(output_dir / "audit.json", report)
    write_text(output_dir / "audit.txt", text)
    plot_audit(report, output_dir / "audit.png")
    logger.info("%s", text)
    failed = [str(check) for check in checks if not check.passed]
    if failed:
        raise UserError(f"{config.corpus}: {len(failed)} of {len(checks)} checks failed: {'; '.join(failed)}")
    return report


def _samples(config: AuditConfig, corpus: PreparedCorpus, tokenizer: Any, indexes: Path) -> Iterator[Sample]:
    """Yields the first sequences of the first epoch, in the order of training."""
    stream = ExampleStream(
        corpus,
        np.arange(corpus.num_documents),
        config,
        max_seq_length=config.max_seq_length,
        seed=config.seed,
        phase=0,
        folder=indexes,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
    )
    collator = DataCollatorForBertPreTraining(
        tokenizer, config, max_predictions_per_seq=config.max_predictions_per_seq, packing=True, seed=config.seed
    )
    left, position = min(config.num_sequences, len(stream.indexes.get(0))), Position()
    while left:
        ids, position = stream.take(position, min(left, _BATCH))
        left -= len(ids)
        examples = stream.read(ids)
        batch = collator(examples)
        yield Sample(
            rows=stream.indexes.get(0).rows[ids[:, 1]],
            tokens=examples.tokens.astype(np.int64),
            inputs=batch["input_ids"][0].numpy(),
            labels=batch["labels"][0].numpy(),
            lengths=examples.lengths,
            not_next=examples.next_sentence_labels,
        )


def corpus_statistics(corpus: PreparedCorpus, max_seq_length: int) -> dict[str, Any]:
    """Returns the sizes of a corpus and the shares of its short documents."""
    tokens, sentences = np.diff(corpus.document_starts), np.diff(corpus.document_sentences)
    return {
        "documents": corpus.num_documents,
        "sentences": corpus.num_sentences,
        "tokens": corpus.num_tokens,
        "documents_of_one_sentence": float((sentences == 1).mean()),
        "documents_shorter_than_a_sequence": float((tokens < max_seq_length - 3).mean()),
        "documents_too_short_for_an_example": int((tokens < 2).sum()),
    }


def example_statistics(counted: ExampleCounts) -> dict[str, Any]:
    """Returns shares and histograms of the examples that were counted."""
    counts, sequences = counted.counts, counted.counts["sequences"]
    room = sequences * counted.max_seq_length
    return {
        "sequences": sequences,
        "mean_length": counts["tokens"] / sequences,
        "not_next_share": counts["not_next"] / sequences,
        "forced_not_next_share": counts["forced"] / sequences,
        "predictions_per_sequence": counts["predictions"] / sequences,
        "mask_share": counts["masked"] / counts["predictions"],
        "random_share": counts["random"] / counts["predictions"],
        "same_share": counts["same"] / counts["predictions"],
        "random_draws_of_special_tokens": counts["random_reserved"] / max(1, counts["random"]),
        "padding": {
            "padded to max_seq_length": 1 - counts["tokens"] / room,
            f"{LENGTH_BINS} bins by length": 1 - counts["tokens"] / counts["binned_tokens"],
            "packed": 0.0,
        },
        "length_histogram": counted.arrays["lengths"].tolist(),
        "predictions_histogram": np.trim_zeros(counted.arrays["predictions"], "b").tolist(),
    }


def text_report(report: dict[str, Any]) -> str:
    """Returns the report as text, for the screen and audit.txt.

    Args:
        report: what audit.json holds.
    """
    statistics = report["statistics"]
    lines = [f"{'check':<46} {'found':>12}   {'must be':<22} result"]
    lines += [_check_line(check) for check in report["checks"]]
    lines += ["", f"{'statistic':<46} {'value':>12}"]
    lines += [f"{name:<46} {value:>12}" for name, value in _statistics_lines(statistics)]
    lines += ["", f"{'length':<14} {'share':>7}", *_histogram_lines(statistics["length_histogram"])]
    failed = sum(not check["passed"] for check in report["checks"])
    total = len(report["checks"])
    lines += ["", f"All {total} checks passed." if not failed else f"{failed} of {total} checks FAILED."]
    return "\n".join(lines) + "\n"


def plot_audit(report: dict[str, Any], path: Path) -> None:
    """Draws lengths, predictions, replacements and padding.

    Args:
        report: what audit.json holds.
        path: PNG file to write.
    """
    from matplotlib.figure import Figure

    statistics, config = report["statistics"], report["settings"]
    figure = Figure(figsize=(11, 7), layout="constrained")
    lengths, predictions, shares, padding = figure.subplots(2, 2).ravel()
    _plot_counts(lengths, statistics["length_histogram"], "tokens of a sequence", bins=32)
    lengths.set_title(f"Lengths: mean {statistics['mean_length']:.1f} of {config['max_seq_length']}")
    _plot_counts(predictions, statistics["predictions_histogram"], "predicted tokens of a sequence", bins=None)
    predictions.set_title(f"Predictions: mean {statistics['predictions_per_sequence']:.2f}")
    _plot_shares(shares, report)
    names = [fill(name, 14) for name in statistics["padding"]]
    values = list(statistics["padding"].values())
    bars = padding.barh(names, [100 * value for value in values], color="tab:blue")
    padding.bar_label(bars, fmt="%.1f%%", padding=3)
    padding.set_xlim(0, max(10.0, 125 * max(values)))
    padding.set_xlabel("padding, % of all tokens")
    padding.set_title("Padding by layout")
    padding.invert_yaxis()
    failed = sum(not check["passed"] for check in report["checks"])
    verdict = "all checks passed" if not failed else f"{failed} of {len(report['checks'])} checks failed"
    figure.suptitle(f"{statistics['sequences']:,} sequences of {statistics['documents']:,} documents: {verdict}")
    with atomic_path(path) as unfinished:
        figure.savefig(unfinished, dpi=120)


def _check_line(check: dict[str, Any]) -> str:
    low, high = check["low"], check["high"]
    if low == high == 0:
        bounds = "none"
    elif high is None:
        bounds = f"at least {low:g}"
    else:
        bounds = f"{low:.4f} to {high:.4f}" if low else f"at most {high:.4g}"
    found = f"{check['found']:,}" if isinstance(check["found"], int) else f"{check['found']:.4f}"
    return f"{check['name']:<46} {found:>12}   {bounds:<22} {'pass' if check['passed'] else 'FAIL'}"


def _statistics_lines(statistics: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in statistics.items():
        if name == "padding":
            yield from ((f"padding, {layout}", f"{share:.2%}") for layout, share in value.items())
        elif isinstance(value, int):
            yield name.replace("_", " "), f"{value:,}"
        elif isinstance(value, float):
            is_mean = name in ("mean_length", "predictions_per_sequence")
            yield name.replace("_", " "), f"{value:.2f}" if is_mean else f"{value:.3%}"


def _histogram_lines(histogram: list[int]) -> Iterator[str]:
    edges = np.linspace(0, len(histogram) - 1, _BINS + 1).astype(int)
    total = sum(histogram)
    for low, high in pairwise(edges):
        share = sum(histogram[low + 1 : high + 1]) / total
        yield f"{f'{low + 1} to {high}':<14} {share:>7.2%} {'#' * round(_BAR * share)}".rstrip()


def _plot_counts(axis: Any, histogram: list[int], label: str, bins: int | None) -> None:
    values = np.arange(len(histogram))
    edges = np.arange(len(histogram) + 1) - 0.5 if bins is None else np.linspace(0, len(histogram) - 1, bins + 1) + 0.5
    axis.hist(values, edges, weights=100 * np.array(histogram) / sum(histogram), color="tab:blue", edgecolor="white")
    axis.set_xlabel(label)
    axis.set_ylabel("% of sequences")
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.grid(axis="y", alpha=0.3)


def _plot_shares(axis: Any, report: dict[str, Any]) -> None:
    """Draws measured shares as bars, and as a mark the range of 99.9% of correct samples."""
    wanted = {
        "NotNext": "NotNext, share",
        "[MASK]": "replaced by [MASK], share",
        "random": "replaced by a random token, share",
        "same": "left as they are, share",
    }
    checks = {check["name"]: check for check in report["checks"]}
    shown = {label: checks[name] for label, name in wanted.items() if name in checks}
    found = [100 * check["found"] for check in shown.values()]
    colors = ["tab:blue" if check["passed"] else "tab:red" for check in shown.values()]
    bars = axis.bar(list(shown), found, color=colors)
    axis.bar_label(bars, fmt="%.2f%%", padding=2)
    if "NotNext" in shown and (forced := report["statistics"]["forced_not_next_share"]):
        axis.bar(["NotNext"], [100 * forced], color="tab:gray", label="no choice")
    middle = [50 * (check["low"] + check["high"]) for check in shown.values()]
    spread = [50 * (check["high"] - check["low"]) for check in shown.values()]
    axis.errorbar(
        list(shown), middle, spread, fmt="_", color="black", capsize=6, markersize=14, label="expected, 99.9%"
    )
    axis.set_ylim(0, 1.15 * max(found + middle))
    axis.set_ylabel("% of sequences or predictions")
    axis.set_title("Shares")
    axis.legend()
