"""Parallelism and device placement: one device, a copy on each (DDP), shards (FSDP2), or XLA's lazy graph.

DDP is Accelerate's. Sharding is torch's own `fully_shard`, on the CPU as on GPUs: the optimizer must be built on the
shards, or the pinned step counters of BERT's Adam are lost. Shards stay in float32 and autocast decides the precision
of each operation, so sharding changes where numbers are and not what they are.

Whatever the parallelism, what is saved is the complete, plain model, so any run resumes from any checkpoint.
"""

import copy
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import find_tied_parameters, retie_parameters
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from bert_repro.errors import UserError


def launched_with_fsdp() -> bool:
    """Returns whether `accelerate launch --use_fsdp`, or its configuration file, asks for shards, and has Accelerate
    make none itself.

    Raises:
        UserError: it asks for the first version of FSDP.
    """
    asked = os.environ.pop("ACCELERATE_USE_FSDP", "false").lower() == "true"
    if asked and os.environ.get("FSDP_VERSION", "1") != "2":
        raise UserError("accelerate launch --use_fsdp: only FSDP2 is supported; add --fsdp_version 2")
    return asked


CountRight = Callable[[Any, dict[str, Any]], dict[str, torch.Tensor]]
"""Counts the right answers of a forward pass, given its output and inputs, for loss terms that have one."""


def count_nothing(output: Any, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Counts nothing: the `CountRight` of losses without an accuracy."""
    return {}


class TrainingForward(nn.Module):
    """A forward pass down to what a training step reads: losses, and numbers of right answers.

    It is compiled and wrapped with the model in it, so that logits are no output of a graph. As one they would get a
    gradient, zeros as large as themselves, which is written and read again.

    Args:
        model: the model.
        count_right: what is counted beside the losses.
    """

    def __init__(self, model: nn.Module, count_right: CountRight) -> None:
        super().__init__()
        self.model, self.count_right = model, count_right

    def forward(
        self, terms: tuple[str, ...], inputs: dict[str, Any]
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Returns the mean of each loss term, and the right answers of those that count them."""
        output = self.model(**inputs)
        return {term: getattr(output, term) for term in terms}, self.count_right(output, inputs)


class ParallelModel:
    """A model on the devices of a run.

    Args:
        accelerator: says where, and wraps the model for DDP.
        model: not yet wrapped; sharded in place where there are shards.
        shard: whether each device keeps only its share of weights, gradients and optimizer state. One device keeps all.
        compile_options: of `torch.compile`; None does not compile.
        count_right: what is counted beside the losses.

    Attributes:
        model: whose parameters train.
        wrapped: what a training step calls: a `TrainingForward`.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        *,
        shard: bool,
        compile_options: dict[str, Any] | None = None,
        count_right: CountRight = count_nothing,
    ) -> None:
        self.accelerator = accelerator
        self._compiles = compile_options is not None
        if self._compiles:
            # All our models share code, of which PyTorch compiles eight versions in a process and runs the others
            # eagerly; an experiment makes many models in one process.
            torch.compiler.reset()
        self.is_sharded = shard and accelerator.num_processes > 1
        self._on_xla = accelerator.device.type == "xla"
        self._empty = _empty_copy(model) if self.is_sharded or self._on_xla else None
        self.model = to_xla(model, accelerator.device) if self._on_xla else model.to(accelerator.device)
        self.wrapped: nn.Module = TrainingForward(self.model, count_right)
        self._graphs_before = self._graphs_of_process()
        if self.is_sharded:
            _shard(self.model, accelerator, compile_options)
        else:
            self.wrapped = accelerator.prepare_model(self.wrapped)
            # Accelerate's autocast also turns every output into float32, logits of the complete vocabulary among them.
            accelerator.unwrap_model(self.wrapped, keep_fp32_wrapper=False)
            if compile_options is not None:
                self.wrapped = torch.compile(self.wrapped, **compile_options)  # type: ignore[assignment]

    def accumulating(self) -> AbstractContextManager[None]:
        """Returns a context in which backward passes add up gradients on each device and exchange nothing."""
        if self.is_sharded:
            return _WithoutSync(self.model)
        context: AbstractContextManager[None] = self.accelerator.no_sync(self.wrapped)
        return context

    def uncompiled(self) -> AbstractContextManager[Any]:
        """Returns a context in which layers are not compiled again for the shapes of an evaluation."""
        return torch.compiler.set_stance("force_eager") if self._compiles else nullcontext()

    def seed(self, seed: int) -> None:
        """Seeds dropout on this process's device."""
        torch.manual_seed(seed)
        if self._on_xla:
            import torch_xla.core.xla_model as xla_model

            xla_model.set_rng_state(seed, self.accelerator.device)

    def scalar(self, value: float) -> Any:
        """Returns a number that changes from step to step, to compute with on the device.

        XLA makes equal numbers one input of its graph, and a 0 or 1 a part of it, so that it compiles again when two
        happen to be equal; an array stays an input.
        """
        return torch.tensor([value], device=self.accelerator.device)[0] if self._on_xla else value

    def execute(self) -> None:
        """Makes XLA run what it has recorded; does nothing elsewhere."""
        if self._on_xla:
            import torch_xla

            torch_xla.sync()

    def compiled_graphs(self) -> int:
        """Returns the number of graphs compiled for this model so far, by `torch.compile` or XLA."""
        return self._graphs_of_process() - self._graphs_before

    def _graphs_of_process(self) -> int:
        if self._on_xla:
            import torch_xla.debug.metrics as metrics

            compilations = metrics.metric_data("CompileTime")
            return int(compilations[0]) if compilations else 0
        if not self._compiles:
            return 0
        from torch._dynamo.utils import counters

        return int(counters["stats"]["unique_graphs"])

    def full_model(self, device: torch.device | str, *, keep: bool = True, snapshot: bool = False) -> Any:
        """Returns the complete, plain model with the present weights; every process must call this together.

        Args:
            device: where to put it, where it is a copy.
            keep: False on processes that only help to gather it, which get None.
            snapshot: always return a copy, which later steps do not change.
        """
        empty = _empty_copy(self.model) if snapshot and self._empty is None else self._empty
        if empty is None:
            return self.model
        if self.is_sharded:
            _reshard(self.model)
        values = full_tensors(self.model.named_parameters(), device, keep=keep, copies=snapshot)
        if not keep:
            return None
        parameters = dict(self.model.named_parameters())
        full = {
            id(parameters[name]): nn.Parameter(value, parameters[name].requires_grad) for name, value in values.items()
        }
        # Tied weights get one and the same parameter again.
        state = {name: full[id(value)] for name, value in self.model.named_parameters(remove_duplicate=False)}
        copied = copy.deepcopy(empty)
        copied.load_state_dict(state, strict=False, assign=True)
        return copied.to(device)

    def unwrap(self) -> None:
        """Releases DDP."""
        # It must be released before the process group: whoever holds the group last joins its threads while holding the
        # interpreter's lock, and gloo's threads may wait for that lock.
        self.wrapped = self.model
        if self.accelerator.num_processes > 1:
            self.accelerator.free_memory()


def full_tensors(
    named: Iterable[tuple[str, torch.Tensor]],
    device: torch.device | str = "cpu",
    *,
    keep: bool = True,
    copies: bool = False,
) -> dict[str, torch.Tensor]:
    """Gathers tensors of which each process may hold a shard; every process must call this together.

    Args:
        named: names and tensors, in the same order everywhere.
        device: where to put them.
        keep: False on processes that only help to gather, which get none.
        copies: copy what is there already.
    """
    gathered = {}
    for name, value in named:
        full = value.full_tensor() if isinstance(value, DTensor) else value
        if keep:
            gathered[name] = full.detach().to(device, copy=copies and full is value).contiguous()
    return gathered


def find_non_finite(model: nn.Module) -> str | None:
    """Returns the name of a parameter with a value that is not finite, of those that this process holds; or None."""
    for name, parameter in model.named_parameters():
        own = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        own = own.cpu() if own.device.type == "xla" else own  # there it would be one more graph
        if not bool(torch.isfinite(own.detach()).all()):
            return name
    return None


def savable(model: nn.Module) -> nn.Module:
    """Returns the model, or a copy on the CPU where files cannot be written from the device's memory (XLA)."""
    if next(model.parameters()).device.type != "xla":
        return model
    on_cpu = {
        id(parameter): nn.Parameter(parameter.detach().cpu(), parameter.requires_grad)
        for parameter in model.parameters()
    }
    return copy.deepcopy(model, on_cpu)


def sharded_like(value: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Returns a complete tensor, which every process has, sharded as `target` is."""
    if not isinstance(target, DTensor):
        return value
    moved = value.to(target.to_local().device)
    return distribute_tensor(moved, target.device_mesh, target.placements, src_data_rank=None)


class _WithoutSync(AbstractContextManager[None]):
    def __init__(self, sharded: Any) -> None:
        self.sharded = sharded

    def __enter__(self) -> None:
        self.sharded.set_requires_gradient_sync(False)

    def __exit__(self, *error: object) -> None:
        self.sharded.set_requires_gradient_sync(True)


def to_xla(model: nn.Module, device: torch.device) -> nn.Module:
    """Moves a model and ties its weights again: on the way to XLA every module gets parameters of its own."""
    tied = find_tied_parameters(model)
    model = model.to(device)
    retie_parameters(model, tied)
    return model


def _shard(model: nn.Module, accelerator: Accelerator, compile_options: dict[str, Any] | None) -> None:
    """Shards each Transformer layer on its own, and all the rest together, where tied weights meet."""
    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    policy = shard_precision(accelerator.device.type, accelerator.mixed_precision)
    for module in list(model.modules()):
        if isinstance(module, GradientCheckpointingLayer):
            if compile_options is not None:
                module.compile(**compile_options)  # each on its own, as gathering is no part of a graph
            fully_shard(module, mesh=mesh, mp_policy=policy)
    if compile_options is not None and hasattr(model, "predict_masked"):
        # The head with its loss, so that logits are neither written in 32 bits nor kept.
        head: Any = model
        head.predict_masked = torch.compile(head.predict_masked, **compile_options)
    fully_shard(model, mesh=mesh)


def shard_precision(device_type: str, mixed_precision: str) -> MixedPrecisionPolicy:
    """Returns in which precision layers are gathered and their gradients added up over the devices.

    Under bfloat16 on GPUs layers travel in 16 bits, as their products read them, and gradients are added up in 32. The
    LayerNorms in them are rounded too, which autocast alone would not do. Embeddings and heads stay in 32 bits.
    """
    if device_type == "cuda" and mixed_precision == "bf16":
        return MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    return MixedPrecisionPolicy()


def _reshard(model: nn.Module) -> None:
    """Leaves only shards: a forward pass without a backward one, as in an evaluation, keeps outer weights gathered.

    The optimizer's state belongs to the shards, so while weights are gathered it is not found.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _empty_copy(model: nn.Module) -> nn.Module:
    """Returns a copy of a model whose parameters have shapes and ties but no values."""
    empty = {
        id(parameter): nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
        for parameter in model.parameters()
    }
    return copy.deepcopy(model, empty)
