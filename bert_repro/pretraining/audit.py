"""Shows the examples that a corpus and settings give: some of them decoded, and the shares of all that were drawn.

Examples come from the stream and the collator that training uses. That the sampler draws what the paper says is tested
(tests/pretraining); this is about the corpus: does it hold running text, in documents long enough for pairs?
"""

import logging
import shutil
from collections import Counter
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bert_repro.configs import AuditConfig
from bert_repro.corpus.prepared_corpus import PreparedCorpus
from bert_repro.hub.corpora import corpus_folder
from bert_repro.models.loading import load_tokenizer
from bert_repro.pretraining.collator import DataCollatorForBertPreTraining
from bert_repro.pretraining.dataset import ExampleStream, Position
from bert_repro.pretraining.segment_pairs import FORCED
from bert_repro.training.batches import IGNORE_INDEX
from bert_repro.utils import process
from bert_repro.utils.arrays import row_starts
from bert_repro.utils.files import SAMPLE_INDEX, write_json, write_text

logger = logging.getLogger("bert_repro")

_BATCH = 8192
_EXAMPLES_SHOWN = 4


def audit_pretraining_data(config: AuditConfig) -> dict[str, Any]:
    """Writes audit.json and audit.txt about a corpus, and shows the text.

    Returns:
        What audit.json holds: `statistics`, `examples`, `settings`.

    Raises:
        UserError: the corpus is none.
    """
    output_dir = Path(config.output_dir)
    folder = corpus_folder(config.corpus)
    corpus = PreparedCorpus.load(folder)
    process.claim_folder(output_dir)
    tokenizer = load_tokenizer(folder / "tokenizer")
    try:
        statistics, examples = _draw(config, corpus, tokenizer, output_dir / SAMPLE_INDEX)
    finally:
        shutil.rmtree(output_dir / SAMPLE_INDEX, ignore_errors=True)
    report: dict[str, Any] = {"statistics": {**_corpus_statistics(corpus, config.max_seq_length), **statistics}}
    report |= {"examples": examples, "settings": asdict(config)}
    text = text_report(report)
    write_json(output_dir / "audit.json", report)
    write_text(output_dir / "audit.txt", text)
    logger.info("%s", text)
    return report


def _draw(
    config: AuditConfig, corpus: PreparedCorpus, tokenizer: Any, indexes: Path
) -> tuple[dict[str, Any], list[dict[str, str]]]:
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
    counts: Counter[str] = Counter()
    shown: list[dict[str, str]] = []
    left, position = min(config.num_sequences, len(stream.indexes.get(0))), Position()
    while left:
        ids, position = stream.take(position, min(left, _BATCH))
        left -= len(ids)
        examples = stream.read(ids)
        batch = collator(examples)
        read, labels = batch["input_ids"][0].numpy(), batch["labels"][0].numpy()
        predicted = labels != IGNORE_INDEX
        counts["sequences"] += len(ids)
        counts["tokens"] += int(examples.lengths.sum())
        counts["unknown"] += int((examples.tokens == tokenizer.unk_token_id).sum())
        counts["not_next"] += int(examples.next_sentence_labels.sum())
        counts["forced"] += int(np.count_nonzero(stream.indexes.get(0)[ids[:, 1]]["flags"] & FORCED))
        counts["predictions"] += int(predicted.sum())
        counts["masked"] += int((read[predicted] == tokenizer.mask_token_id).sum())
        counts["same"] += int((read[predicted] == labels[predicted]).sum())
        for number, (start, end) in enumerate(pairwise(row_starts(examples.lengths))):
            if len(shown) == _EXAMPLES_SHOWN:
                break
            shown.append({
                "label": "NotNext" if examples.next_sentence_labels[number] else "IsNext",
                "text": marked_text(read[start:end], labels[start:end], tokenizer),
            })  # fmt: skip
    return _example_statistics(counts, config.max_seq_length), shown


def marked_text(read: Any, labels: Any, tokenizer: Any) -> str:
    """Returns a sequence as text, every predicted token as {what is read -> what is to be predicted}.

    Args:
        read: ids that the model reads, [T].
        labels: ids that it is to predict, -100 where it predicts nothing, [T].
        tokenizer: tokenizer of the corpus.
    """
    pieces = tokenizer.convert_ids_to_tokens(read.tolist())
    for place in np.flatnonzero(labels != IGNORE_INDEX):
        pieces[place] = f"{{{pieces[place]} -> {tokenizer.convert_ids_to_tokens(int(labels[place]))}}}"
    return " ".join(pieces).replace(" ##", "")


def _corpus_statistics(corpus: PreparedCorpus, max_seq_length: int) -> dict[str, Any]:
    tokens, sentences = np.diff(corpus.document_starts), np.diff(corpus.document_sentences)
    return {
        "documents": corpus.num_documents,
        "documents with a text that occurs before": corpus.num_documents - len(np.unique(corpus.document_keys)),
        "documents of one sentence": float((sentences == 1).mean()),
        "documents shorter than a sequence": float((tokens < max_seq_length - 3).mean()),
        "sentences": corpus.manifest["counts"]["sentences"],
        "tokens": corpus.num_tokens,
        **{f"tokens of {Path(source['input']).name}": source["share"] for source in corpus.manifest.get("sources", ())},
    }


def _example_statistics(counts: Counter[str], max_seq_length: int) -> dict[str, Any]:
    sequences, predictions = counts["sequences"], max(1, counts["predictions"])
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


def text_report(report: dict[str, Any]) -> str:
    """Returns the report as text, for the screen and audit.txt.

    Args:
        report: what audit.json holds.
    """
    lines = []
    for name, value in report["statistics"].items():
        is_share = isinstance(value, float) and not name.endswith("of a sequence")
        lines.append(f"{name:<42} {f'{value:.2%}' if is_share else f'{value:,}':>14}")
    lines += ["", "the first examples, every prediction as {what is read -> what is to be predicted}:"]
    lines += [f"\n{example['label']}: {example['text']}" for example in report["examples"]]
    return "\n".join(lines) + "\n"
