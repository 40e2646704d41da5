"""Where the batches of pre-training come from: phases after each other, each an endless stream of fresh examples."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bert_repro.configs import Phase, PretrainingConfig
from bert_repro.data.collators import IGNORE_INDEX, DataCollatorForBertPreTraining
from bert_repro.data.masking import num_predictions
from bert_repro.data.pretraining import ExampleStream, Position
from bert_repro.data.tokenized_corpus import TokenizedCorpus
from bert_repro.errors import UserError
from bert_repro.training.loop import Ids, MicroBatch, Step, batch_sizes
from bert_repro.training.plan import model_flops

PAPER_BATCH = 256
_SAMPLE = 1000  # examples


def resolve_phases(config: PretrainingConfig, processes: int) -> tuple[Phase, ...]:
    """The phases of the run: those given, or one of `max_steps` at `max_seq_length`.

    Returns:
        Phases whose `per_device_batch` is settled.

    Raises:
        UserError: neither phases nor max_steps are given, or both, or a batch cannot be shared by the processes.
    """
    if config.phases:
        if config.max_steps is not None:
            raise UserError("--max_steps and phases are both given; each phase states its own steps")
        return tuple(_settled(phase, config, processes) for phase in config.phases)
    if config.max_steps is None:
        raise UserError("--max_steps is missing; give it, or phases through --preset or --config")
    sizes = batch_sizes(config, processes, PAPER_BATCH)
    limit = config.max_predictions_per_seq
    return (Phase(config.max_seq_length, config.max_steps, sizes.batch, limit, sizes.micro),)


def _settled(phase: Phase, config: PretrainingConfig, processes: int) -> Phase:
    per_device = phase.per_device_batch or config.per_device_train_batch_size
    sizes = batch_sizes(replace(config, per_device_train_batch_size=per_device), processes, 0, fixed=phase.batch)
    return replace(phase, per_device_batch=sizes.micro)


class PretrainingSource:
    """The plan of a pre-training run: phases after each other, each an endless stream of fresh examples.

    Args:
        config: how examples are made; the seed.
        phases: lengths, steps and batches, as `resolve_phases` settles them.
        corpus: the prepared corpus.
        documents: ids of the documents to train on.
        tokenizer: special tokens and vocabulary.
        model_config: shape of the model, for its operations per token.
    """

    def __init__(
        self,
        config: PretrainingConfig,
        phases: tuple[Phase, ...],
        corpus: TokenizedCorpus,
        documents: npt.NDArray[np.int64],
        tokenizer: Any,
        model_config: Any,
    ) -> None:
        self.config, self.phases, self.unk_token_id = config, phases, tokenizer.unk_token_id
        self.total_steps = sum(phase.steps for phase in phases)
        self.flops_per_token = [model_flops(model_config, config, phase.max_seq_length) for phase in phases]
        self.streams = [
            example_stream(config, phase, corpus, documents, tokenizer, seed=config.seed, number=number)
            for number, phase in enumerate(phases)
        ]
        self.collators = [collator(config, phase, tokenizer) for phase in phases]

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
                micro = self.phases[number].per_device_batch or len(ids)
                yield Step(ids, self._totals(ids, number), micro, number, place, self.flops_per_token[number])
            at = Position(0, 0)

    def load(self, ids: Ids, group: int) -> MicroBatch:
        """See `BatchSource.load`."""
        examples = self.streams[group].read(ids)
        inputs = self.collators[group](examples)
        # Whole-word masking may predict a few tokens less than the length allows, so the labels are counted.
        counts = {"mlm_loss": int((inputs["labels"] != IGNORE_INDEX).sum()), "nsp_loss": len(ids)}
        return MicroBatch(inputs, counts, int(examples.lengths.sum()))

    def count_right(self, output: Any, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
        """See `BatchSource.count_right`."""
        return count_right(output, inputs)

    def sample_shares(self) -> tuple[float, float]:
        """Share of NotNext in the first epoch's plan, and of [UNK] in a sample of its examples."""
        stream = self.streams[0]
        examples = stream.read(stream.take(Position(0, 0), _SAMPLE)[0])
        return stream.plan(0).statistics.not_next_share, float((examples.tokens == self.unk_token_id).mean())

    def _totals(self, ids: Ids, group: int) -> dict[str, int]:
        lengths = self.streams[group].lengths(ids)
        limit = self.phases[group].max_predictions_per_seq
        totals = {"mlm_loss": int(num_predictions(lengths, self.config.masked_lm_prob, limit).sum())}
        return totals | {"nsp_loss": len(ids)} if self.config.next_sentence_prediction else totals


def example_stream(
    config: PretrainingConfig,
    phase: Phase,
    corpus: TokenizedCorpus,
    documents: npt.NDArray[np.int64],
    tokenizer: Any,
    *,
    seed: int,
    number: int,
) -> ExampleStream:
    """The examples of a phase, or held-out ones, from some documents of a corpus; `number` names the phase's draws."""
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


def collator(config: PretrainingConfig, phase: Phase, tokenizer: Any) -> DataCollatorForBertPreTraining:
    """Masks and batches the examples of a phase."""
    return DataCollatorForBertPreTraining(
        tokenizer,
        config,
        max_predictions_per_seq=phase.max_predictions_per_seq,
        packing=config.packing,
        return_prediction_positions=True,
    )


@torch.no_grad()
def count_right(output: Any, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """How many predictions of a forward pass are right, by loss term.

    Args:
        output: of `BertReproForPreTraining`, with logits at predicted positions only.
        inputs: its inputs, with `labels` and `prediction_positions`.
    """
    labels = inputs["labels"].flatten()[inputs["prediction_positions"]]
    # On the CPU, max is six times as fast as argmax in bfloat16.
    right = (output.prediction_logits.max(-1).indices == labels) & (labels != IGNORE_INDEX)
    counts = {"mlm_loss": right.sum()}
    if "next_sentence_label" in inputs:
        counts["nsp_loss"] = (output.seq_relationship_logits.argmax(-1) == inputs["next_sentence_label"]).sum()
    return counts
