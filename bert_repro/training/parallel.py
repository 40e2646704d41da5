"""A model on the devices of a run: placed, wrapped for several processes, compiled."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import find_tied_parameters, retie_parameters
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

Losses = dict[str, torch.Tensor]
CountRight = Callable[[Any, dict[str, Any]], Losses]
"""Counts the right answers of a forward pass, given its output and inputs, for loss terms that have an accuracy."""

M = TypeVar("M", bound=nn.Module)


def count_nothing(output: Any, inputs: dict[str, Any]) -> Losses:
    """Counts nothing: the `CountRight` of losses without an accuracy."""
    del output, inputs
    return {}


def place(model: M, device: torch.device) -> M:
    """Moves a model to a device and ties its parameters again: on XLA every module gets parameters of its own."""
    tied = find_tied_parameters(model)
    retie_parameters(model.to(device), tied)
    return model


class TrainingForward(nn.Module):
    """A forward pass that returns what a training step reads: losses, and numbers of right answers.

    The compiled graph does not return the logits. If it did, autograd would allocate, write and read a zero gradient of
    size batch x vocabulary at every step. This module is therefore compiled and wrapped in place of the model.

    Args:
        model: the model.
        count_right: what is counted in addition to the losses.
    """

    def __init__(self, model: nn.Module, count_right: CountRight) -> None:
        super().__init__()
        self.model = model
        self.count_right = count_right

    def forward(self, terms: tuple[str, ...], inputs: dict[str, Any]) -> tuple[Losses, Losses]:
        """Returns the mean of each loss term, and the right answers of those that count them."""
        output = self.model(**inputs)
        return {term: getattr(output, term) for term in terms}, self.count_right(output, inputs)


class ParallelModel:
    """A model on the devices of a run.

    Args:
        accelerator: its device, and the wrapper for several processes (DDP).
        model: a model that is not wrapped yet.
        compile_options: options of `torch.compile`; None does not compile.
        by_layer: compile each encoder layer for itself, in a third of the time, and leave the rest as it is.
        count_right: what is counted in addition to the losses.

    Attributes:
        model: the model whose parameters are trained.
        wrapped: the module that a training step calls: a `TrainingForward`.
        compiles: whether training steps are compiled.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        *,
        compile_options: dict[str, Any] | None = None,
        by_layer: bool = False,
        count_right: CountRight = count_nothing,
    ) -> None:
        self.accelerator = accelerator
        self.compiles = compile_options is not None
        if self.compiles:
            # All our models share code, of which PyTorch compiles eight versions in a process and runs the others
            # eagerly. An experiment makes many models in one process.
            torch.compiler.reset()
        self._on_xla = accelerator.device.type == "xla"
        self.model = place(model, accelerator.device)
        self._graphs_before = self._graphs_of_process()

        self.wrapped: nn.Module = accelerator.prepare_model(TrainingForward(self.model, count_right))
        # Accelerate's autocast also converts every output to float32, logits of the complete vocabulary among them.
        accelerator.unwrap_model(self.wrapped, keep_fp32_wrapper=False)

        self._compiled_layers: list[GradientCheckpointingLayer] = []
        if compile_options is not None and by_layer:
            layers = [layer for layer in self.model.modules() if isinstance(layer, GradientCheckpointingLayer)]
            for layer in layers:
                layer.compile(**compile_options)
            self._compiled_layers = layers
        elif compile_options is not None:
            self.wrapped = torch.compile(self.wrapped, **compile_options)  # type: ignore[assignment]

    def seed(self, seed: int) -> None:
        """Seeds dropout on this process's device."""
        torch.manual_seed(seed)
        if self._on_xla:
            import torch_xla.core.xla_model as xla_model

            xla_model.set_rng_state(seed, self.accelerator.device)

    def scalar(self, value: float) -> float | torch.Tensor:
        """Returns a number that changes from step to step, to compute with on the device.

        XLA makes equal numbers one input of its graph, and a 0 or 1 a part of it, so it would compile again when two
        numbers happen to be equal. An array stays an input.
        """
        if not self._on_xla:
            return value
        return torch.tensor([value], device=self.accelerator.device)[0]

    def execute(self) -> None:
        """Makes XLA run what it has recorded; does nothing on other devices."""
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
        if not self.compiles:
            return 0
        from torch._dynamo.utils import counters

        return int(counters["stats"]["unique_graphs"])

    def unwrap(self) -> None:
        """Releases DDP and what is compiled for training."""
        for layer in self._compiled_layers:
            layer._compiled_call_impl = None
        # DDP must be released before the process group. The last holder of the group joins its threads while it holds
        # the interpreter's lock, and gloo's threads may wait for that lock.
        self.wrapped = self.model
        if self.accelerator.num_processes > 1:
            self.accelerator.free_memory()
