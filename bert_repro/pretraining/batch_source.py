"""Where the batches of pre-training come from: phases after each other, each an endless stream of fresh examples."""

import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bert_repro.configs import Phase, PretrainingConfig
from bert_repro.corpus.prepared_corpus import PreparedCorpus
from bert_repro.errors import UserError
from bert_repro.models.modeling_bert_repro import next_token_labels
from bert_repro.pretraining.collator import DataCollatorForBertPreTraining, FixedShape
from bert_repro.pretraining.cost_estimate import model_flops
from bert_repro.pretraining.dataset import ExampleStream, Position
from bert_repro.pretraining.masking import num_predictions
from bert_repro.training.collation import IGNORE_INDEX
from bert_repro.training.micro_batches import Ids, MicroBatch, Step, batch_sizes, fullest_pass

PAPER_BATCH = 256
_SAMPLE = 1000  # examples
_SAMPLE_STEPS = 50
_TOKEN_MULTIPLE = 128  # what products on a GPU like


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


def resolve_layout(config: PretrainingConfig, device: torch.device) -> PretrainingConfig:
    """Settles `torch_compile`, `static_shapes` and `packing` for a device.

    A GPU gets a compiled graph, and a compiled graph gets fixed shapes. XLA compiles whatever it sees, so it gets fixed
    shapes too, and padded ones: offsets of packed sequences are data, which no graph of its can depend on.

    Raises:
        UserError: `torch_compile` on XLA.
    """
    if device.type == "xla":
        if config.torch_compile:
            raise UserError("--torch_compile: XLA compiles by itself; leave it out")
        fixed = config.static_shapes is not False
        return replace(config, torch_compile=False, static_shapes=fixed, packing=False)
    compiled = device.type == "cuda" if config.torch_compile is None else config.torch_compile
    return replace(
        config, torch_compile=compiled, static_shapes=compiled if config.static_shapes is None else config.static_shapes
    )


def fixed_shape(config: PretrainingConfig, phase: Phase, stream: ExampleStream, processes: int) -> FixedShape:
    """The shape that every forward pass of a phase gets.

    Packed, it holds as many tokens as the fullest pass of a step, which a sample of steps tells: their mean and four
    deviations. The rare step that does not fit takes one pass more (`forward_passes`).

    Args:
        config: whether batches are packed.
        phase: as `resolve_phases` settles it.
        stream: its examples.
        processes: devices that share the work.
    """
    sequences, length = phase.per_device_batch or phase.batch, phase.max_seq_length
    if not config.packing:
        return FixedShape(sequences, length)
    ids, _ = stream.take(Position(0, 0), _SAMPLE_STEPS * phase.batch)
    steps = stream.lengths(ids).reshape(_SAMPLE_STEPS, phase.batch)
    fullest = np.array([fullest_pass(lengths, sequences, processes) for lengths in steps])
    tokens = math.ceil((fullest.mean() + 4 * fullest.std()) / _TOKEN_MULTIPLE) * _TOKEN_MULTIPLE
    return FixedShape(sequences, length, min(max(tokens, length), sequences * length))


class PretrainingSource:
    """The plan of a pre-training run: phases after each other, each an endless stream of fresh examples.

    Args:
        config: how examples are made; the seed.
        phases: lengths, steps and batches, as `resolve_phases` settles them.
        corpus: the prepared corpus.
        documents: ids of the documents to train on.
        tokenizer: special tokens and vocabulary.
        model_config: shape of the model, for its operations per token.
        processes: devices that share the work.
    """

    def __init__(
        self,
        config: PretrainingConfig,
        phases: tuple[Phase, ...],
        corpus: PreparedCorpus,
        documents: npt.NDArray[np.int64],
        tokenizer: Any,
        model_config: Any,
        *,
        processes: int = 1,
    ) -> None:
        self.config, self.phases, self.unk_token_id = config, phases, tokenizer.unk_token_id
        self.total_steps = sum(phase.steps for phase in phases)
        self.plan: dict[str, Any] = {
            "seed": config.seed,
            "documents": len(documents),
            "tokens of the corpus": int(corpus.document_starts[-1]),
            "max_seq_length": [phase.max_seq_length for phase in phases],
            "train_batch_size": [phase.batch for phase in phases],
        }
        self.flops_per_token = [model_flops(model_config, config, phase.max_seq_length) for phase in phases]
        self.streams = [
            example_stream(config, phase, corpus, documents, tokenizer, seed=config.seed, number=number)
            for number, phase in enumerate(phases)
        ]
        self.shapes = [
            fixed_shape(config, phase, stream, processes) if config.static_shapes else None
            for phase, stream in zip(phases, self.streams, strict=True)
        ]
        self.collators = [
            collator(config, phase, tokenizer, shape) for phase, shape in zip(phases, self.shapes, strict=True)
        ]

    def steps(self, position: dict[str, Any] | None) -> Iterator[Step]:
        """See `BatchSource.steps`; a position names the phase, the steps taken in it, the epoch and the row."""
        start = position or {"phase": 0, "phase_step": 0, "epoch": 0, "row": 0}
        for number in range(start["phase"], len(self.phases)):
            here = number == start["phase"]
            done, begin = (start["phase_step"], Position(start["epoch"], start["row"])) if here else (0, Position())
            for ids, phase_step, at in self._phase_steps(number, done, begin):
                place = {"phase": number, "phase_step": phase_step + 1, "epoch": at.epoch, "row": at.row}
                yield self._step(ids, number, place)

    def _phase_steps(self, number: int, done: int, at: Position) -> Iterator[tuple[Ids, int, Position]]:
        """A phase's examples, step by step; while an epoch is read, the plan of the next is drawn."""
        stream, phase = self.streams[number], self.phases[number]
        draws_ahead = os.environ.get("LOCAL_RANK", "0") == "0"  # for all processes of this machine
        epoch = None
        try:
            for phase_step in range(done, phase.steps):
                if draws_ahead and at.epoch != epoch:
                    epoch = at.epoch
                    if at.row + (phase.steps - phase_step) * phase.batch > len(stream.plan(epoch)):
                        stream.prepare(epoch + 1)
                ids, at = stream.take(at, phase.batch)
                # Loader processes read a few steps behind; those never reach back more than one epoch.
                stream.discard_before(at.epoch - 1)
                yield ids, phase_step, at
        finally:
            stream.stop_preparing()

    def load(self, ids: Ids, group: int) -> MicroBatch:
        """See `BatchSource.load`."""
        examples = self.streams[group].read(ids)
        inputs = self.collators[group](examples)
        if "prediction_positions" in inputs and not self.config.decode_predicted_only:
            inputs["prediction_positions"] = torch.arange(inputs["labels"].numel())
        # Whole-word masking may predict a few tokens less than the length allows, so the labels are counted.
        labels = int((inputs["labels"] != IGNORE_INDEX).sum())
        counts = (
            {"loss": labels - len(ids)} if self.config.left_to_right else {"mlm_loss": labels, "nsp_loss": len(ids)}
        )
        return MicroBatch(inputs, counts, int(examples.lengths.sum()))

    def count_right(self, output: Any, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
        """See `BatchSource.count_right`."""
        return count_right(output, inputs)

    def sample_shares(self) -> tuple[float, float]:
        """Share of NotNext in the first epoch's plan, and of [UNK] in a sample of its examples."""
        stream = self.streams[0]
        examples = stream.read(stream.take(Position(0, 0), _SAMPLE)[0])
        return stream.plan(0).statistics.not_next_share, float((examples.tokens == self.unk_token_id).mean())

    def _step(self, ids: Ids, number: int, position: dict[str, Any]) -> Step:
        phase, shape = self.phases[number], self.shapes[number]
        lengths = self.streams[number].lengths(ids)
        return Step(
            ids,
            self._totals(lengths, phase),
            phase.per_device_batch or len(ids),
            number,
            position,
            self.flops_per_token[number],
            lengths=lengths if self.config.packing else None,
            token_budget=shape.tokens if shape else None,
        )

    def _totals(self, lengths: npt.NDArray[np.int64], phase: Phase) -> dict[str, int]:
        """Terms of each loss over sequences of these lengths."""
        if self.config.left_to_right:
            return {"loss": int((lengths - 1).sum())}
        predictions = num_predictions(lengths, self.config.masked_lm_prob, phase.max_predictions_per_seq)
        totals = {"mlm_loss": int(predictions.sum())}
        return totals | ({"nsp_loss": len(lengths)} if self.config.next_sentence_prediction else {})


def example_stream(
    config: PretrainingConfig,
    phase: Phase,
    corpus: PreparedCorpus,
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


def collator(
    config: PretrainingConfig, phase: Phase, tokenizer: Any, shape: FixedShape | None = None
) -> DataCollatorForBertPreTraining:
    """Masks and batches the examples of a phase."""
    return DataCollatorForBertPreTraining(
        tokenizer,
        config,
        max_predictions_per_seq=phase.max_predictions_per_seq,
        packing=config.packing,
        return_prediction_positions=not config.left_to_right,
        shape=shape,
    )


@torch.no_grad()
def count_right(output: Any, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """How many predictions of a forward pass are right, by loss term.

    Args:
        output: of `BertReproForPreTraining`, with logits at predicted positions only, or of `BertReproForCausalLM`.
        inputs: its inputs, with `labels` and, but for the left-to-right model, `prediction_positions`.
    """
    if "prediction_positions" not in inputs:
        next_tokens = next_token_labels(inputs["labels"], inputs.get("cu_seq_lens_q"))
        return {"loss": ((output.logits.max(-1).indices == next_tokens) & (next_tokens != IGNORE_INDEX)).sum()}
    labels = inputs["labels"].flatten()[inputs["prediction_positions"]]
    # On the CPU, max is six times as fast as argmax in bfloat16.
    right = (output.prediction_logits.max(-1).indices == labels) & (labels != IGNORE_INDEX)
    counts = {"mlm_loss": right.sum()}
    if "next_sentence_label" in inputs:
        counts["nsp_loss"] = (output.seq_relationship_logits.argmax(-1) == inputs["next_sentence_label"]).sum()
    return counts
