"""Pre-training: documents in, a published BERT with its MLM and NSP heads out (paper 3.1, A.2)."""

import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from accelerate import Accelerator

from bert_repro.configs import Phase, PretrainingConfig
from bert_repro.data.collators import IGNORE_INDEX, DataCollatorForBertPreTraining
from bert_repro.data.masking import num_predictions
from bert_repro.data.pretraining import ExampleStream, Position
from bert_repro.data.tokenized_corpus import TokenizedCorpus
from bert_repro.errors import UserError
from bert_repro.models.configuration_bert_repro import BertReproConfig
from bert_repro.models.modeling_bert_repro import BertReproForPreTraining
from bert_repro.randomness import torch_seed
from bert_repro.tokenization import load_tokenizer, tokenizer_fingerprint
from bert_repro.training import run
from bert_repro.training.loop import Ids, MicroBatch, Step, Trainer, batch_sizes, to_device

logger = logging.getLogger("bert_repro")

PAPER_BATCH = 256
# The held-out examples and their masks are the same whatever the seed of the run.
_HELDOUT_SEED = 0
_HELDOUT_PHASE = 1000


def run_pretraining(config: PretrainingConfig) -> dict[str, Any]:
    """Pre-trains a model and publishes it in `config.output_dir`.

    Returns:
        The record that results.json holds.

    Raises:
        UserError: the corpus, the checkpoint and the settings do not fit together.
        NonFiniteError, StopRequested: see `bert_repro.training.loop.Trainer.train`.
    """
    corpus = TokenizedCorpus.load(config.corpus)
    tokenizer = load_tokenizer(str(Path(config.corpus) / "tokenizer"))
    # Segment B of a NotNext pair comes from another document of the same side.
    draws_pairs = config.next_sentence_prediction or config.no_nsp_input == "pairs"
    training, heldout = corpus.split(config.heldout_fraction, at_least=2 if draws_pairs else 1)
    begun = run.begin(config)
    accelerator = begun.accelerator
    model = build_model(config, tokenizer)
    phases = resolve_phases(config, accelerator.num_processes)
    _check_lengths(phases, model.config.max_position_embeddings)
    source = PretrainingSource(config, phases, corpus, training, tokenizer)
    evaluation = HeldOut(config, phases[-1], corpus, heldout, tokenizer)
    trainer = Trainer(
        accelerator,
        model,
        source,
        config,
        tokenizer=tokenizer,
        micro_batch_size=batch_sizes(config, accelerator.num_processes, PAPER_BATCH).micro,
        evaluate=lambda: evaluation.measure(model, accelerator),
    )
    trainer.train()
    metrics = evaluation.measure(model, accelerator)
    logger.info("held-out: %s", ", ".join(f"{name} {value:.4f}" for name, value in metrics.items()))
    return begun.finish(
        model,
        tokenizer,
        {
            "task": "pre-training",
            "split": f"held-out documents ({config.heldout_fraction:.2%} of the corpus, by content)",
            "metrics": metrics,
            "rows_scored": evaluation.rows,
            "data": _data_record(corpus, len(training), len(heldout)),
            "train": {"steps": trainer.state.step, "phases": [vars(phase) for phase in phases]},
        },
    )


def build_model(config: PretrainingConfig, tokenizer: Any) -> Any:
    """A new model of the configured size, or the checkpoint to go on from, with its pre-training heads.

    Without NSP the pooler and the NSP head take no part in the loss and are frozen.

    Raises:
        UserError: the checkpoint's vocabulary is not that of the corpus.
    """
    if config.model_name_or_path:
        model = run.load_model(BertReproForPreTraining, config, may_add_weights=True)
        _check_vocabulary(config.model_name_or_path, model, tokenizer)
    else:
        torch.manual_seed(torch_seed(config.seed, run.INITIALISATION))
        shape = BertReproConfig(
            vocab_size=len(tokenizer),
            num_hidden_layers=config.num_hidden_layers,
            hidden_size=config.hidden_size,
            num_attention_heads=config.num_attention_heads,
            intermediate_size=4 * config.hidden_size,
            hidden_act=config.hidden_act,
            pad_token_id=tokenizer.pad_token_id,
            attn_implementation=config.attn_implementation,
        )
        model = run.prepare_model(BertReproForPreTraining(shape), config)
    if not config.next_sentence_prediction:
        model.bert.pooler.requires_grad_(False)
        model.cls.seq_relationship.requires_grad_(False)
    return model


def resolve_phases(config: PretrainingConfig, processes: int) -> tuple[Phase, ...]:
    """The phases of the run: those given, or one of `max_steps` at `max_seq_length`.

    Raises:
        UserError: neither phases nor max_steps are given, or both.
    """
    if config.phases:
        if config.max_steps is not None:
            raise UserError("--max_steps and phases are both given; each phase states its own steps")
        return config.phases
    if config.max_steps is None:
        raise UserError("--max_steps is missing; give it, or phases through --preset or --config")
    sizes = batch_sizes(config, processes, PAPER_BATCH)
    return (Phase(config.max_seq_length, config.max_steps, sizes.batch, config.max_predictions_per_seq),)


class PretrainingSource:
    """The plan of a pre-training run: phases after each other, each an endless stream of fresh examples.

    Args:
        config: how examples are made; the seed.
        phases: lengths, steps and batches.
        corpus: the prepared corpus.
        documents: ids of the documents to train on.
        tokenizer: special tokens and vocabulary.
    """

    def __init__(
        self,
        config: PretrainingConfig,
        phases: tuple[Phase, ...],
        corpus: TokenizedCorpus,
        documents: npt.NDArray[np.int64],
        tokenizer: Any,
    ) -> None:
        self.config, self.phases = config, phases
        self.total_steps = sum(phase.steps for phase in phases)
        self.streams = [
            _stream(config, phase, corpus, documents, tokenizer, seed=config.seed, number=number)
            for number, phase in enumerate(phases)
        ]
        self.collators = [_collator(config, phase, tokenizer) for phase in phases]

    def steps(self, position: dict[str, Any] | None) -> Iterator[Step]:
        """See `BatchSource.steps`; a position names the phase, the steps taken in it, the epoch and the row."""
        start = position or {"phase": 0, "phase_step": 0, "epoch": 0, "row": 0}
        at = Position(start["epoch"], start["row"])
        for number in range(start["phase"], len(self.phases)):
            done = start["phase_step"] if number == start["phase"] else 0
            for phase_step in range(done, self.phases[number].steps):
                ids, at = self.streams[number].take(at, self.phases[number].batch)
                # Loader processes read a few steps behind; those never reach back more than one epoch.
                self.streams[number].discard_before(at.epoch - 1)
                place = {"phase": number, "phase_step": phase_step + 1, "epoch": at.epoch, "row": at.row}
                yield Step(ids, self._totals(ids, number), number, place)
            at = Position(0, 0)

    def load(self, ids: Ids, group: int) -> MicroBatch:
        """See `BatchSource.load`."""
        examples = self.streams[group].read(ids)
        inputs = self.collators[group](examples)
        # Whole-word masking may predict a few tokens less than the length allows, so the labels are counted.
        counts = {"mlm_loss": int((inputs["labels"] != IGNORE_INDEX).sum()), "nsp_loss": len(ids)}
        return MicroBatch(inputs, counts, int(examples.lengths.sum()))

    def _totals(self, ids: Ids, group: int) -> dict[str, int]:
        lengths = self.streams[group].lengths(ids)
        limit = self.phases[group].max_predictions_per_seq
        totals = {"mlm_loss": int(num_predictions(lengths, self.config.masked_lm_prob, limit).sum())}
        return totals | {"nsp_loss": len(ids)} if self.config.next_sentence_prediction else totals


class HeldOut:
    """The same held-out examples and masks at every evaluation, so figures compare along a run and between runs."""

    def __init__(
        self,
        config: PretrainingConfig,
        phase: Phase,
        corpus: TokenizedCorpus,
        documents: npt.NDArray[np.int64],
        tokenizer: Any,
    ) -> None:
        self.batch = config.per_device_eval_batch_size
        self.stream = _stream(config, phase, corpus, documents, tokenizer, seed=_HELDOUT_SEED, number=_HELDOUT_PHASE)
        self.collate = _collator(config, phase, tokenizer)
        self.rows = min(config.max_eval_sequences, len(self.stream.plan(0)))
        self.ids, _ = self.stream.take(Position(0, 0), self.rows)

    def measure(self, model: BertReproForPreTraining, accelerator: Accelerator) -> dict[str, float]:
        """Held-out loss and accuracy of both tasks, and the masked-LM perplexity (Table 6's "LM ppl").

        Every sequence is counted exactly once, however many processes share them.
        """
        sums = torch.zeros(6, dtype=torch.float64)
        own = self.ids[accelerator.process_index :: accelerator.num_processes]
        model.eval()
        for ids in np.array_split(own, max(1, math.ceil(len(own) / self.batch))):
            if len(ids):
                sums += _score(model, self.collate(self.stream.read(ids)), accelerator)
        model.train()
        total = accelerator.reduce(sums.to(accelerator.device, torch.float32), "sum").tolist()
        mlm_loss, mlm_right, predictions, nsp_loss, nsp_right, sequences = total
        metrics = {
            "mlm_loss": mlm_loss / predictions,
            "mlm_accuracy": mlm_right / predictions,
            "mlm_perplexity": math.exp(min(700.0, mlm_loss / predictions)),
        }
        if sequences:
            metrics |= {"nsp_loss": nsp_loss / sequences, "nsp_accuracy": nsp_right / sequences}
        return metrics


@torch.no_grad()
def _score(model: BertReproForPreTraining, batch: dict[str, Any], accelerator: Accelerator) -> torch.Tensor:
    """Sums over a batch: MLM loss, right and predicted tokens; NSP loss, right and scored sequences."""
    inputs = to_device(batch, accelerator.device)
    with accelerator.autocast():
        output = model(**inputs)
    labels = inputs["labels"].flatten()[inputs["prediction_positions"]]
    predicted = labels != -100
    right = (output.prediction_logits.argmax(-1) == labels) & predicted
    count = predicted.sum()
    sums = [output.mlm_loss.double() * count, right.sum(), count]
    if "next_sentence_label" in inputs:
        truth = inputs["next_sentence_label"]
        nsp_right = (output.seq_relationship_logits.argmax(-1) == truth).sum()
        sums += [output.nsp_loss.double() * len(truth), nsp_right, torch.tensor(len(truth))]
    else:
        sums += [torch.tensor(0)] * 3
    return torch.stack([value.double().cpu() for value in sums])


def _data_record(corpus: TokenizedCorpus, documents: int, heldout: int) -> dict[str, Any]:
    manifest = corpus.manifest
    return {
        "sources": [Path(source[0]).name for source in manifest["settings"]["sources"]],
        "counts": manifest["counts"],
        "vocab_size": manifest["vocab_size"],
        "tokenizer_fingerprint": manifest["tokenizer_fingerprint"],
        "sentence_splitter": f"{manifest['settings']['sentence_splitter']} "
        f"{manifest['settings']['sentence_splitter_version']}",
        "training_documents": documents,
        "heldout_documents": heldout,
    }


def _stream(
    config: PretrainingConfig,
    phase: Phase,
    corpus: TokenizedCorpus,
    documents: npt.NDArray[np.int64],
    tokenizer: Any,
    *,
    seed: int,
    number: int,
) -> ExampleStream:
    return ExampleStream(
        corpus,
        documents,
        config,
        max_seq_length=phase.max_seq_length,
        seed=seed,
        phase=number,
        folder=Path(config.output_dir) / "plans",
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
    )


def _collator(config: PretrainingConfig, phase: Phase, tokenizer: Any) -> DataCollatorForBertPreTraining:
    return DataCollatorForBertPreTraining(
        tokenizer,
        config,
        max_predictions_per_seq=phase.max_predictions_per_seq,
        packing=config.packing,
        return_prediction_positions=True,
    )


def _check_lengths(phases: tuple[Phase, ...], positions: int) -> None:
    for phase in phases:
        if phase.max_seq_length > positions:
            raise UserError(f"--max_seq_length is {phase.max_seq_length}; the model has {positions} positions")


def _check_vocabulary(name: str, model: Any, tokenizer: Any) -> None:
    if model.config.vocab_size < len(tokenizer):
        raise UserError(
            f"--model_name_or_path {name}: its vocabulary of {model.config.vocab_size} is smaller than the corpus's "
            f"{len(tokenizer)} ids; prepare the corpus with that checkpoint's tokenizer"
        )
    if (Path(name) / "tokenizer.json").exists():
        own = tokenizer_fingerprint(load_tokenizer(name))
        if own != tokenizer_fingerprint(tokenizer):
            raise UserError(
                f"--model_name_or_path {name}: its tokenizer is not the one the corpus was prepared with; prepare the "
                f"corpus again with --tokenizer {name}"
            )
