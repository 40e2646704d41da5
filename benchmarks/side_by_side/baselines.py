"""Both sides of the pre-training step, each a workload for `timing.compare`, and the proof that they compute the same.

Ours is the product itself: `Trainer` on a `PretrainingSource`, data loading, logging and checks included. Theirs is
transformers' `BertForPreTraining` with its collator in a plain PyTorch loop: no trainer, nothing read back from the
device but at the end of an iteration.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import BertConfig, BertForPreTraining, DataCollatorForLanguageModeling

from bert_repro import BertReproConfig, BertReproForPreTraining
from bert_repro.configs import Phase, PretrainingConfig
from bert_repro.models.cpu_kernels import use_cpu_kernels
from bert_repro.pretraining.collator import DataCollatorForBertPreTraining, ExampleBatch
from bert_repro.pretraining.dataset import Position, PretrainingSource
from bert_repro.pretraining.objectives import MaskedLanguageModel
from bert_repro.pretraining.run import compile_options, resolve_layout
from bert_repro.training.batches import Step
from bert_repro.training.cpu import keep_freed_memory, prepare_cpu, use_fast_float32
from bert_repro.training.optimizer import parameter_groups
from bert_repro.training.performance import measured_peak
from bert_repro.training.trainer import Trainer
from side_by_side import corpora

ENDLESS = 1_000_000  # steps


@dataclass(frozen=True)
class StepSpec:
    """One way to make a pre-training step.

    Args:
        layers: the paper's L.
        hidden: H; heads are H / 64 (at least 2), the feed-forward size 4H.
        length: tokens per sequence at most.
        batch: sequences per step, in one forward pass.
        steps: steps per iteration.
        precision: `bf16` or `no` (float32).
        device: `cpu` or `cuda`.
        documents: of the made-up corpus.
        off: optimizations to switch off.
        compile: compile the model.
        workers: loader processes.
        dropout: of hidden states and attention.
        vocabulary: size of the model's vocabulary.
    """

    layers: int
    hidden: int
    length: int
    batch: int
    steps: int
    precision: str = "bf16"
    device: str = "cpu"
    documents: int = 1000
    off: tuple[str, ...] = ()
    compile: bool = False
    workers: int = 1
    dropout: float = 0.1
    vocabulary: int = corpora.VOCABULARY


def model_config(spec: StepSpec, **more: Any) -> BertReproConfig:
    """Our configuration of the model; the heads' size is the paper's 64."""
    return BertReproConfig(
        vocab_size=spec.vocabulary,
        num_hidden_layers=spec.layers,
        hidden_size=spec.hidden,
        num_attention_heads=max(2, spec.hidden // 64),
        intermediate_size=4 * spec.hidden,
        hidden_dropout_prob=spec.dropout,
        attention_probs_dropout_prob=spec.dropout,
        **more,
    )


def new_model(spec: StepSpec) -> BertReproForPreTraining:
    """Our model with the weights that both sides start from."""
    torch.manual_seed(0)
    return BertReproForPreTraining(model_config(spec))


def new_upstream_model(spec: StepSpec) -> BertForPreTraining:
    """Transformers' model with the same weights."""
    ours = new_model(spec)
    settings = ours.config.to_dict()
    config = BertConfig(**{name: settings[name] for name in settings if hasattr(BertConfig(), name)})
    config._attn_implementation = "sdpa"
    model = BertForPreTraining(config)
    model.load_state_dict(ours.state_dict())
    return model


class MeasuredSource(PretrainingSource):
    """The product's batches; keeps the number of real tokens of every step."""

    def __init__(self, spec: StepSpec, config: PretrainingConfig) -> None:
        corpus, documents = corpora.made_up(spec.documents), np.arange(spec.documents)
        tokenizer = corpora.made_up_tokenizer()
        most = max(1, round(0.15 * spec.length))
        phase = Phase(spec.length, ENDLESS, spec.batch, most, spec.batch)
        super().__init__(config, (phase,), corpus, documents, tokenizer, model_config(spec))
        self.tokenizer, self.tokens = tokenizer, list[int]()

    def steps(self, position: dict[str, Any] | None) -> Iterator[Step]:
        """The steps of the plan."""
        for step in super().steps(position):
            self.tokens.append(int(self.streams[0].lengths(step.ids).sum()))
            yield step


def ours(spec: StepSpec, report: Callable[..., None]) -> None:
    """The product's training step."""
    # Of several processes, the first alone has a log to watch.
    rows: list[dict[str, float]] = []
    made = 0

    def end_of_iteration() -> dict[str, Any]:
        nonlocal made
        tokens = source.tokens[made : made + spec.steps]
        made += spec.steps
        loss = rows[-1]["loss"] if rows else None
        report(sum(tokens), loss=loss, fill=sum(tokens) / (spec.steps * spec.batch * spec.length))
        return {}

    with tempfile.TemporaryDirectory() as folder, quiet():
        source, trainer = product(spec, folder, evaluate=end_of_iteration, on_row=rows.append)
        trainer.train()


def product(spec: StepSpec, folder: str, **callbacks: Any) -> tuple[MeasuredSource, Trainer]:
    """The product's source of batches and trainer, without the optimizations that `spec` switches off.

    Args:
        spec: the step.
        folder: for the log and the sample index.
        callbacks: `evaluate` and `watch` of the trainer.
    """
    accelerator = Accelerator(cpu=spec.device == "cpu", mixed_precision=spec.precision)
    config = resolve_layout(_config(spec, folder), accelerator.device)
    if spec.device == "cpu" and config.cpu_kernels:
        prepare_cpu()
    source, model = MeasuredSource(spec, config), new_model(spec)
    if config.cpu_kernels:
        use_cpu_kernels(model)
    callbacks |= {
        "compile_options": compile_options(config),
        "count_right": MaskedLanguageModel.count_right,
    }
    return source, Trainer(accelerator, model, source, config, tokenizer=None, **callbacks)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without progress bars."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        yield


def _config(spec: StepSpec, folder: str) -> PretrainingConfig:
    return PretrainingConfig(
        output_dir=folder,
        seed=0,
        mixed_precision=spec.precision,
        packing="packing" not in spec.off,
        cpu_kernels="cpu_kernels" not in spec.off,
        dataloader_num_workers=spec.workers,
        warmup_ratio=0.0,
        logging_steps=spec.steps,
        eval_steps=spec.steps,
    )


class _UpstreamBatches(Dataset[Any]):
    """The same examples as transformers' users feed them: lists, padded and masked by its collator."""

    def __init__(self, source: MeasuredSource, pad_to: int | None) -> None:
        self.source = source
        self.collate = DataCollatorForLanguageModeling(source.tokenizer, pad_to_multiple_of=pad_to)

    def __getitem__(self, step: Step) -> dict[str, torch.Tensor]:  # type: ignore[override]
        batch: dict[str, torch.Tensor] = self.collate(features(self.source.streams[0].read(step.ids)))
        return batch


def features(examples: ExampleBatch) -> list[dict[str, Any]]:
    """Examples as rows of a tokenized dataset."""
    rows, start = [], 0
    for number, length in enumerate(examples.lengths.tolist()):
        first = int(examples.first_lengths[number])
        special = [0] * length
        special[0] = special[first - 1] = special[-1] = 1
        rows.append(
            {
                "input_ids": examples.tokens[start : start + length].tolist(),
                "token_type_ids": [0] * first + [1] * (length - first),
                "special_tokens_mask": special,
                "next_sentence_label": int(examples.next_sentence_labels[number]),
            }
        )
        start += length
    return rows


class _Plan(Sampler[Step]):
    def __init__(self, source: MeasuredSource) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Step]:
        return self.source.steps(None)


def upstream(spec: StepSpec, report: Callable[..., None]) -> None:
    """Transformers' model and collator in a plain, tuned loop."""
    with tempfile.TemporaryDirectory() as folder:
        if spec.device == "cpu":
            use_fast_float32()
        source = MeasuredSource(spec, _config(spec, folder))
        model = new_upstream_model(spec).to(spec.device).train()
        step_model = torch.compile(model) if spec.compile else model
        optimizer = torch.optim.AdamW(parameter_groups(model, 0.01), lr=1e-4, eps=1e-6, fused=True)
        # A compiled graph wants one shape.
        batches = _UpstreamBatches(source, spec.length if spec.compile else None)
        options: dict[str, Any] = {"num_workers": spec.workers, "pin_memory": spec.device == "cuda"}
        loader = iter(DataLoader(batches, sampler=_Plan(source), batch_size=None, **options))
        made = 0
        while True:
            losses = [upstream_step(spec, step_model, optimizer, batch) for batch in islice(loader, spec.steps)]
            tokens = source.tokens[made : made + spec.steps]
            made += spec.steps
            report(sum(tokens), loss=float(torch.stack(losses).mean()))


def upstream_step(
    spec: StepSpec, model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]
) -> torch.Tensor:
    """One step of a plain loop, as tuned as `spec` says; returns the loss, still on its device."""
    inputs = {name: tensor.to(spec.device, non_blocking=True) for name, tensor in batch.items()}
    with torch.autocast(spec.device, torch.bfloat16, enabled=spec.precision == "bf16"):
        loss = model(**inputs).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def upstream_with_kept_memory(spec: StepSpec, report: Callable[..., None]) -> None:
    """The same loop with our setting of the C library's allocator, which any program could make."""
    keep_freed_memory()
    upstream(spec, report)


def parity(spec: StepSpec, report: Callable[..., None]) -> None:
    """Same weights, same masked batch, float32, no dropout: loss and gradients of both sides.

    Says `loss_difference` (relative) and `gradient_difference` (the largest over all parameters of the difference's
    norm over the norm).
    """
    spec = replace(spec, dropout=0.0, precision="no", off=())
    with tempfile.TemporaryDirectory() as folder:
        config = _config(spec, folder)
        source = MeasuredSource(spec, config)
        examples = source.streams[0].read(source.streams[0].take(Position(0, 0), spec.batch)[0])
    packed = source.collators[0](examples)
    padded = DataCollatorForBertPreTraining(source.tokenizer, config, pad_to_length=spec.length)(examples)
    model, other = new_model(spec).to(spec.device).train(), new_upstream_model(spec).to(spec.device).train()
    losses = [loss_with_gradients(side, batch, spec.device) for side, batch in ((model, packed), (other, padded))]
    report(
        int(examples.lengths.sum()),
        loss=losses[0],
        loss_difference=abs(losses[0] - losses[1]) / losses[1],
        gradient_difference=largest_gradient_difference(model, other),
    )


def largest_gradient_difference(model: nn.Module, other: nn.Module) -> float:
    """The largest difference of gradients over all parameters: its norm over the gradient's.

    Where a gradient is zero in exact arithmetic, each side holds nothing but its own rounding; that is measured against
    the norm of the complete gradient.
    """
    theirs = dict(other.named_parameters())
    total = torch.stack([parameter.grad.norm() for parameter in theirs.values()]).norm()
    shifts = shifts_of_a_softmax(other)
    return max(
        float((parameter.grad - theirs[name].grad).norm() / (total if name in shifts else theirs[name].grad.norm()))
        for name, parameter in model.named_parameters()
    )


def shifts_of_a_softmax(model: nn.Module) -> list[str]:
    """Parameters that add one and the same number to all inputs of a softmax, which leaves it, and the loss, unchanged.

    A key's bias b adds q.b to all scores of a query q. The biases of a question-answering head, and through its weights
    that of the LayerNorm before it, add a number to the scores of all tokens.
    """
    names = [name for name, _ in model.named_parameters()]
    shifts = [name for name in names if name.endswith("attention.self.key.bias")]
    if "qa_outputs.bias" in names:
        shifts += ["qa_outputs.bias", [name for name in names if name.endswith(".output.LayerNorm.bias")][-1]]
    return shifts


def loss_with_gradients(model: nn.Module, batch: dict[str, Any], device: str) -> float:
    """The loss of a batch; its gradients are left in the model."""
    inputs = {name: value.to(device) if torch.is_tensor(value) else value for name, value in batch.items()}
    loss = model(**inputs).loss
    loss.backward()
    return float(loss.detach())


def peak(spec: StepSpec, report: Callable[..., None]) -> None:
    """FLOP/s of a large matrix product, again and again, in the precision and on the device of a step."""
    if spec.device == "cpu":
        prepare_cpu()
    while True:
        report(measured_peak(torch.device(spec.device), spec.precision))
