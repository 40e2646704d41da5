"""Shows the examples that a corpus and settings give: some of them decoded, and the shares of all that were drawn.

Examples come from the stream and the collator that training uses. That the sampler draws what the paper says is tested
in tests/pretraining. The audit is about the corpus: does it contain running text, in documents long enough for pairs?
"""

import logging
import shutil
from collections import Counter
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from bert_repro.configs import AuditConfig
from bert_repro.corpus.prepared_corpus import PreparedCorpus
from bert_repro.hub.corpora import corpus_folder
from bert_repro.models.loading import load_tokenizer
from bert_repro.pretraining.collator import DataCollatorForBertPreTraining, ExampleBatch
from bert_repro.pretraining.dataset import ExampleStream, Position
from bert_repro.pretraining.segment_pairs import FORCED
from bert_repro.training.batches import IGNORE_INDEX
from bert_repro.utils import process
from bert_repro.utils.arrays import Int64Array, row_starts
from bert_repro.utils.files import SAMPLE_INDEX, write_json, write_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

logger = logging.getLogger("bert_repro")

_BATCH = 8192  # examples that are drawn at a time
_EXAMPLES_SHOWN = 4

Statistics = dict[str, int | float]


class AuditReport(TypedDict):
    """The content of audit.json.

    `statistics` are counts and shares by name, `examples` have a `label` and a `text`, `settings` are those of the
    audit.
    """

    statistics: Statistics
    examples: list[dict[str, str]]
    settings: dict[str, object]


def audit_pretraining_data(config: AuditConfig) -> AuditReport:
    """Writes audit.json and audit.txt about a corpus, and shows the text.

    Returns:
        The content of audit.json.

    Raises:
        UserError: the folder is not a prepared corpus.
    """
    output_dir = Path(config.output_dir)
    folder = corpus_folder(config.corpus)
    corpus = PreparedCorpus.load(folder)
    process.claim_folder(output_dir)
    tokenizer = load_tokenizer(folder / "tokenizer")
    # The sample index is only needed here, and it is as large as the corpus has pairs.
    try:
        example_statistics, examples = _draw(config, corpus, tokenizer, output_dir / SAMPLE_INDEX)
    finally:
        shutil.rmtree(output_dir / SAMPLE_INDEX, ignore_errors=True)

    # Statistics of the corpus come first, then those of its examples.
    statistics = {**_corpus_statistics(corpus, config.max_seq_length), **example_statistics}
    report: AuditReport = {"statistics": statistics, "examples": examples, "settings": asdict(config)}
    text = text_report(report)
    write_json(output_dir / "audit.json", report)
    write_text(output_dir / "audit.txt", text)
    logger.info("%s", text)
    return report


def _draw(
    config: AuditConfig, corpus: PreparedCorpus, tokenizer: "PreTrainedTokenizerFast", indexes: Path
) -> tuple[Statistics, list[dict[str, str]]]:
    """Draws the first sequences of the first epoch, in the order of training; returns their shares and some of them."""
    stream = ExampleStream(
        corpus,
        np.arange(corpus.num_documents),
        config,
        tokenizer,
        max_seq_length=config.max_seq_length,
        seed=config.seed,
        phase=0,
        folder=indexes,
    )
    collator = DataCollatorForBertPreTraining(
        tokenizer, config, max_predictions_per_seq=config.max_predictions_per_seq, packing=True
    )

    # Draw batch after batch, as training would.
    counts: Counter[str] = Counter()
    shown: list[dict[str, str]] = []
    position = Position()
    left = min(config.num_sequences, len(stream.indexes.get(0)))
    while left:
        ids, position = stream.take(position, min(left, _BATCH))
        left -= len(ids)
        examples = stream.read(ids)
        batch = collator(examples)
        tokens = batch["input_ids"][0].numpy()
        labels = batch["labels"][0].numpy()
        _count(counts, stream, ids, examples, tokens, labels, tokenizer)
        if not shown:
            shown = _decoded(examples, tokens, labels, tokenizer)
    return _example_statistics(counts, config.max_seq_length), shown


def _count(
    counts: Counter[str],
    stream: ExampleStream,
    ids: Int64Array,
    examples: ExampleBatch,
    tokens: Int64Array,
    labels: Int64Array,
    tokenizer: "PreTrainedTokenizerFast",
) -> None:
    """Adds a batch to the counts.

    Args:
        counts: counts so far.
        stream: stream of the examples.
        ids: their ids, int64 [B, 2].
        examples: the examples before masking.
        tokens: ids that the model reads, int64 [T].
        labels: ids that it predicts, -100 where it predicts nothing, int64 [T].
        tokenizer: tokenizer of the corpus.
    """
    counts["sequences"] += len(ids)
    counts["tokens"] += int(examples.lengths.sum())
    counts["unknown"] += int((examples.tokens == tokenizer.unk_token_id).sum())
    counts["not_next"] += int(examples.next_sentence_labels.sum())
    counts["forced"] += int(np.count_nonzero(stream.indexes.get(0)[ids[:, 1]]["flags"] & FORCED))

    # Compare what the model reads with what it predicts.
    is_predicted = labels != IGNORE_INDEX
    counts["predictions"] += int(is_predicted.sum())
    counts["masked"] += int((tokens[is_predicted] == tokenizer.mask_token_id).sum())
    counts["same"] += int((tokens[is_predicted] == labels[is_predicted]).sum())


def _decoded(
    examples: ExampleBatch, tokens: Int64Array, labels: Int64Array, tokenizer: "PreTrainedTokenizerFast"
) -> list[dict[str, str]]:
    """Returns the first examples of a batch as label and text."""
    decoded: list[dict[str, str]] = []
    borders = list(pairwise(row_starts(examples.lengths)))
    for number, (start, end) in enumerate(borders[:_EXAMPLES_SHOWN]):
        label = "NotNext" if examples.next_sentence_labels[number] else "IsNext"
        decoded.append({"label": label, "text": marked_text(tokens[start:end], labels[start:end], tokenizer)})
    return decoded


def marked_text(tokens: Int64Array, labels: Int64Array, tokenizer: "PreTrainedTokenizerFast") -> str:
    """Returns a sequence as text, every predicted token as {what is read -> what is to be predicted}.

    Args:
        tokens: ids that the model reads, int64 [T].
        labels: ids that it is to predict, -100 where it predicts nothing, int64 [T].
        tokenizer: tokenizer of the corpus.
    """
    pieces = tokenizer.convert_ids_to_tokens(tokens.tolist())
    for place in np.flatnonzero(labels != IGNORE_INDEX):
        target = tokenizer.convert_ids_to_tokens(int(labels[place]))
        pieces[place] = f"{{{pieces[place]} -> {target}}}"

    # Join the pieces of a word, but keep the ## of predicted ones.
    text = ""
    for piece in pieces:
        text += piece.removeprefix("##") if piece.startswith("##") else f" {piece}"
    return text.strip()


def _corpus_statistics(corpus: PreparedCorpus, max_seq_length: int) -> Statistics:
    # Lengths of all documents, in tokens and in sentences.
    tokens = np.diff(corpus.document_starts)
    sentences = np.diff(corpus.document_sentences)
    statistics: Statistics = {
        "documents": corpus.num_documents,
        "documents with a text that occurs before": corpus.num_documents - len(np.unique(corpus.document_keys)),
        "documents of one sentence": float((sentences == 1).mean()),
        "documents shorter than a sequence": float((tokens < max_seq_length - 3).mean()),
        "sentences": corpus.manifest["counts"]["sentences"],
        "tokens": corpus.num_tokens,
    }
    for source in corpus.manifest.get("sources", ()):
        statistics[f"tokens of {Path(source['input']).name}"] = source["share"]
    return statistics


def _example_statistics(counts: Counter[str], max_seq_length: int) -> Statistics:
    sequences = counts["sequences"]
    predictions = max(1, counts["predictions"])
    return {
        "sequences drawn": sequences,
        "tokens of a sequence": round(counts["tokens"] / sequences, 2),
        "predictions of a sequence": round(counts["predictions"] / sequences, 2),
        "padding without packing": 1 - counts["tokens"] / (sequences * max_seq_length),
        "tokens [UNK]": counts["unknown"] / counts["tokens"],
        "pairs NotNext": counts["not_next"] / sequences,
        "pairs NotNext without a choice": counts["forced"] / sequences,
        "predictions read as [MASK]": counts["masked"] / predictions,
        "predictions read as they are": counts["same"] / predictions,
        "predictions read as a random token": 1 - (counts["masked"] + counts["same"]) / predictions,
    }


def text_report(report: AuditReport) -> str:
    """Returns the report as text, for the screen and audit.txt.

    Args:
        report: the content of audit.json.
    """
    lines: list[str] = []
    for name, value in report["statistics"].items():
        # Shares are shown in percent, counts with separators.
        is_share = isinstance(value, float) and not name.endswith("of a sequence")
        number = f"{value:.2%}" if is_share else f"{value:,}"
        lines.append(f"{name:<42} {number:>14}")
    lines += ["", "the first examples, every prediction as {what is read -> what is to be predicted}:"]
    lines += [f"\n{example['label']}: {example['text']}" for example in report["examples"]]
    return "\n".join(lines) + "\n"
