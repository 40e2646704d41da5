"""Measures the examples that a corpus and settings give, and holds them to what was asked for.

Examples come by the road that training takes: epoch plan, stream, collator. A failed check ends the process with exit
code 2, as bad input does: the corpus or the settings are not fit to train on.
"""

import logging
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bert_repro.configs import AuditConfig
from bert_repro.corpus.prepared_corpus import PreparedCorpus
from bert_repro.corpus.tokenizer import load_tokenizer
from bert_repro.errors import UserError
from bert_repro.pretraining.audit.checks import corpus_checks, corpus_figures, example_checks, example_figures
from bert_repro.pretraining.audit.summary import plot_audit, text_report
from bert_repro.pretraining.audit.tally import Sample, Tally, Vocabulary
from bert_repro.pretraining.collator import DataCollatorForBertPreTraining
from bert_repro.pretraining.dataset import ExampleStream, Position
from bert_repro.utils import status
from bert_repro.utils.files import write_json

logger = logging.getLogger("bert_repro")

_BATCH = 8192


def audit_pretraining_data(config: AuditConfig) -> dict[str, Any]:
    """Audits a corpus: writes audit.json, audit.txt and audit.png and reports the table.

    Returns:
        What audit.json holds: `passed`, `checks`, `figures`, `settings`.

    Raises:
        UserError: bad input; or a check failed (exit code 2, the line names each failed check).
    """
    output_dir = Path(config.output_dir)
    if not status.is_free(output_dir) and not config.overwrite_output_dir:
        raise UserError(f"output_dir {output_dir} is not empty; choose another or give --overwrite_output_dir")
    corpus = PreparedCorpus.load(config.corpus)
    status.claim(output_dir)
    tokenizer = load_tokenizer(Path(config.corpus) / "tokenizer")
    tally = Tally(
        config, config.max_seq_length, config.max_predictions_per_seq, Vocabulary.of(tokenizer), corpus.num_documents
    )
    try:
        for sample in _samples(config, corpus, tokenizer, output_dir / "plans"):
            tally.add(sample)
    finally:
        shutil.rmtree(output_dir / "plans", ignore_errors=True)
    checks = [*corpus_checks(corpus), *example_checks(tally)]
    report = {
        "passed": all(check.passed for check in checks),
        "checks": [check.record() for check in checks],
        "figures": {**corpus_figures(corpus, config.max_seq_length), **example_figures(tally)},
        "settings": asdict(config),
    }
    text = text_report(report)
    write_json(output_dir / "audit.json", report)
    (output_dir / "audit.txt").write_text(text, encoding="utf-8")
    plot_audit(report, output_dir / "audit.png")
    logger.info("%s", text)
    failed = [str(check) for check in checks if not check.passed]
    if failed:
        raise UserError(f"{config.corpus}: {len(failed)} of {len(checks)} checks failed: {'; '.join(failed)}")
    return report


def _samples(config: AuditConfig, corpus: PreparedCorpus, tokenizer: Any, plans: Path) -> Iterator[Sample]:
    """The first sequences of the first epoch, in the order of training."""
    stream = ExampleStream(
        corpus,
        np.arange(corpus.num_documents),
        config,
        max_seq_length=config.max_seq_length,
        seed=config.seed,
        phase=0,
        folder=plans,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
    )
    collator = DataCollatorForBertPreTraining(
        tokenizer, config, max_predictions_per_seq=config.max_predictions_per_seq, packing=True, seed=config.seed
    )
    left, position = min(config.num_sequences, len(stream.plan(0))), Position()
    while left:
        ids, position = stream.take(position, min(left, _BATCH))
        left -= len(ids)
        examples = stream.read(ids)
        batch = collator(examples)
        yield Sample(
            rows=stream.plan(0).rows[ids[:, 1]],
            tokens=examples.tokens.astype(np.int64),
            inputs=batch["input_ids"][0].numpy(),
            labels=batch["labels"][0].numpy(),
            lengths=examples.lengths,
            not_next=examples.next_sentence_labels,
        )
