"""Device placement: one device, a copy of the model on each (DDP), or XLA's lazy graph.

DDP is Accelerate's. Whatever the placement, what is saved is the complete, plain model, so any run resumes from any
checkpoint.
"""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import find_tied_parameters, retie_parameters
from torch import nn

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
        model: not yet wrapped.
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
        compile_options: dict[str, Any] | None = None,
        count_right: CountRight = count_nothing,
    ) -> None:
        self.accelerator = accelerator
        self._compiles = compile_options is not None
        if self._compiles:
            # All our models share code, of which PyTorch compiles eight versions in a process and runs the others
            # eagerly; an experiment makes many models in one process.
            torch.compiler.reset()
        self._on_xla = accelerator.device.type == "xla"
        self.model = to_xla(model, accelerator.device) if self._on_xla else model.to(accelerator.device)
        self._graphs_before = self._graphs_of_process()
        self.wrapped: nn.Module = accelerator.prepare_model(TrainingForward(self.model, count_right))
        # Accelerate's autocast also turns every output into float32, logits of the complete vocabulary among them.
        accelerator.unwrap_model(self.wrapped, keep_fp32_wrapper=False)
        if compile_options is not None:
            self.wrapped = torch.compile(self.wrapped, **compile_options)  # type: ignore[assignment]

    def accumulating(self) -> AbstractContextManager[None]:
        """Returns a context in which backward passes add up gradients on each device and exchange nothing."""
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

    def unwrap(self) -> None:
        """Releases DDP."""
        # It must be released before the process group: whoever holds the group last joins its threads while holding the
        # interpreter's lock, and gloo's threads may wait for that lock.
        self.wrapped = self.model
        if self.accelerator.num_processes > 1:
            self.accelerator.free_memory()


def find_non_finite(model: nn.Module) -> str | None:
    """Returns the name of a parameter with a value that is not finite, or None."""
    for name, parameter in model.named_parameters():
        own = parameter.cpu() if parameter.device.type == "xla" else parameter  # there it would be one more graph
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


def to_xla(model: nn.Module, device: torch.device) -> nn.Module:
    """Moves a model and ties its weights again: on the way to XLA every module gets parameters of its own."""
    tied = find_tied_parameters(model)
    model = model.to(device)
    retie_parameters(model, tied)
    return model
