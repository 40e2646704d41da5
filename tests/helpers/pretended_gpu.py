"""Traces training steps for a GPU that is not there, forward and backward, and prints what each compiled to.

    python tests/helpers/pretended_gpu.py

Tensors claim to be on a GPU and hold no numbers. PyTorch's CPU build records gradients there only with the few lines of
C++ below, which must be loaded before it; so this is a script of its own, and needs g++.
"""

import ctypes
import importlib.util
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

GUARD = """
#include <ATen/DeviceAccelerator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/FakeGuardImpl.h>
namespace at::accelerator {
std::optional<c10::DeviceType> getAccelerator(bool) { return c10::DeviceType::CUDA; }
}
namespace at {
struct CUDAHooks : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  bool hasPrimaryContext(DeviceIndex) const override { return false; }
};
REGISTER_CUDA_HOOKS(CUDAHooks)
C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::FakeGuardImpl<c10::DeviceType::CUDA>)
}
"""
AMPERE, TURING = (9, 0), (7, 5)
BUCKET = 2**16  # bytes of gradients that DDP exchanges at once; its own value is 25 MB


def load_guard() -> None:
    """Compiles and loads `GUARD`."""
    assert "torch" not in sys.modules
    specification = importlib.util.find_spec("torch")
    assert specification is not None and specification.origin is not None
    torch = Path(specification.origin).parent
    with TemporaryDirectory() as folder:
        source, library = Path(folder) / "guard.cpp", Path(folder) / "guard.so"
        source.write_text(GUARD, "utf-8")
        flags = ["-std=c++20", "-O0", "-shared", "-fPIC", f"-I{torch / 'include'}", f"-L{torch / 'lib'}"]
        flags += ["-lc10", "-ltorch_cpu", f"-Wl,-rpath,{torch / 'lib'}"]
        subprocess.run([os.environ.get("CXX", "g++"), source, "-o", library, *flags], check=True)
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


@contextmanager
def gpu(capability: tuple[int, int]) -> Iterator[None]:
    """Lets PyTorch's Python side believe in a GPU of this compute capability."""
    import torch
    import torch._dynamo.device_interface as interfaces
    from torch._functorch import config as autograd_config

    properties = types.SimpleNamespace(name="GPU", major=capability[0], minor=capability[1], multi_processor_count=132)
    answers: dict[str, Any] = {
        "is_available": True, "is_initialized": True, "is_bf16_supported": True, "_is_compiled": True,
        "device_count": 1, "current_device": 0, "_exchange_device": 0, "_maybe_exchange_device": 0,
        "get_device_properties": properties, "get_device_capability": capability, "get_device_name": "GPU",
        "synchronize": None, "set_device": None, "init": None, "_lazy_init": None, "set_rng_state": None,
    }  # fmt: skip
    functions = {name: (lambda *_, answer=answer, **__: answer) for name, answer in answers.items()}
    functions["get_rng_state"] = lambda *_: torch.zeros(16, dtype=torch.uint8)  # holds no numbers where it is asked
    taken = ("current_device", "device_count", "get_device_properties", "synchronize", "is_bf16_supported")
    with ExitStack() as stack:
        stack.enter_context(mock.patch.multiple(torch.cuda, **functions))
        interface = {name: staticmethod(functions[name]) for name in taken}
        stack.enter_context(mock.patch.multiple(interfaces.CudaInterface, **interface))
        stack.enter_context(mock.patch("torch.cuda.amp.common.amp_definitely_not_available", lambda: False))
        stack.enter_context(autograd_config.patch(graphsafe_rng_functionalization=False))
        stack.enter_context(mock.patch("torch.accelerator.current_accelerator", lambda *_, **__: None))
        yield


def repair_description() -> Any:
    """Replaces PyTorch's description of a backward kernel, which lacks an argument; the kernel itself has it."""
    import torch

    def described(grad: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> tuple[Any, ...]:
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), None

    library = torch.library.Library("aten", "IMPL", "Meta")
    library.impl("_efficient_attention_backward", described, allow_override=True)
    return library


@contextmanager
def data_parallel() -> Iterator[Callable[[Any], Any]]:
    """Gives a function that wraps a step for two processes as Accelerate does, without their exchange of gradients.

    What is left is what compilation sees: PyTorch splits the graph where a bucket of gradients is full, and compiles
    each part for itself. The buckets are so small that a tiny model fills several.
    """
    import torch.distributed
    from torch._dynamo import convert_frame
    from torch.nn import parallel
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch.utils._python_dispatch import _disable_current_modes

    class Lock:
        """PyTorch leaves the mode of these tensors before it compiles, but not on its way through DDP."""

        def __enter__(self) -> None:
            self.left = ExitStack()
            self.left.enter_context(_disable_current_modes())

        def __exit__(self, *_: object) -> None:
            self.left.close()

    def wrap(step: Any) -> Any:
        wrapped = parallel.DistributedDataParallel(
            step, device_ids=[0], output_device=0, gradient_as_bucket_view=True, bucket_cap_mb=BUCKET / 2**20
        )
        names = ("set_runtime_stats_and_log", "_rebuild_buckets", "prepare_for_forward", "prepare_for_backward")
        wrapped.reducer = wrapped.logger = types.SimpleNamespace(**dict.fromkeys(names, lambda *_, **__: None))
        return wrapped

    with ExitStack() as stack:
        torch.distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())  # type: ignore[no-untyped-call]
        stack.callback(torch.distributed.destroy_process_group)
        for name in ("_verify_param_shape_across_processes", "_sync_module_states"):  # which read numbers
            stack.enter_context(mock.patch.object(parallel.distributed, name, lambda *_, **__: None))
        stack.enter_context(mock.patch.object(torch.distributed, "_DEFAULT_FIRST_BUCKET_BYTES", BUCKET))
        stack.enter_context(mock.patch.object(convert_frame, "compile_lock", Lock()))
        yield wrap


def traced(
    head: str,
    dtype: str,
    capability: tuple[int, int],
    *,
    recompute: bool,
    by_layer: bool,
    ddp: bool = False,
    gradients: bool = True,
) -> dict[str, int]:
    """Traces steps on batches of several shapes; returns numbers of graphs and of attention kernels in them."""
    import torch
    from functorch.compile import make_boxed_func
    from packed_batches import BATCHES, CONFIG, HEADS
    from torch import nn
    from torch._dynamo.backends.common import aot_autograd
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
    from transformers.modeling_layers import GradientCheckpointingLayer

    import bert_repro
    from bert_repro.pretraining.objectives import MaskedLanguageModel
    from bert_repro.training.trainer import TrainingForward, count_nothing

    graphs: list[Any] = []

    def keep(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return make_boxed_func(graph.forward) if gradients else graph.forward

    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep) if gradients else keep
    torch.compiler.reset()
    terms, batch = HEADS[head]
    with ExitStack() as stack:
        stack.enter_context(gpu(capability))
        wrap = stack.enter_context(data_parallel()) if ddp else lambda step: step
        mode = stack.enter_context(FakeTensorMode(shape_env=ShapeEnv()))
        with torch.device("meta"):
            model = getattr(bert_repro, f"BertReproFor{head}")(bert_repro.BertReproConfig(**CONFIG)).train()
        made: dict[Any, Any] = {}
        for module in model.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                if parameter not in made:
                    empty = torch.empty(parameter.shape, device="cuda:0")
                    made[parameter] = nn.Parameter(empty, requires_grad=gradients)
                setattr(module, name, made[parameter])
        if recompute:
            model.activation_checkpointing_enable()
        count_right = MaskedLanguageModel.count_right if head == "PreTraining" else count_nothing
        step: Any = wrap(TrainingForward(model, count_right))
        if by_layer:
            for layer in model.modules():
                if isinstance(layer, GradientCheckpointingLayer):
                    layer.compile(backend=backend, dynamic=True)
        else:
            step = torch.compile(step, backend=backend, dynamic=True)
        for lengths in (*BATCHES, (24,)):
            if head == "MultipleChoice" and len(lengths) % 2:
                continue
            inputs = batch(lengths)
            for name, value in inputs.items():
                if isinstance(value, torch.Tensor):
                    empty = torch.empty(value.shape, dtype=value.dtype, device="meta")
                    inputs[name] = FakeTensor(mode, empty, torch.device("cuda:0"))
            with torch.autocast("cuda", getattr(torch, dtype), enabled=dtype != "float32"):
                means, _ = step(terms, inputs)
            if gradients:
                sum(means.values()).backward()
    called = [str(node.target) for graph in graphs for node in graph.graph.nodes if node.op == "call_function"]
    return {"graphs": len(graphs), "flash": sum("flash_attention" in name for name in called)}


def main() -> None:
    """Prints one JSON line for each case."""
    load_guard()
    library = repair_description()  # kept until the end, as it is undone with its last reference
    heads = ["SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice"]
    cases: list[tuple[Any, ...]] = [
        ("PreTraining", dtype, capability, recompute, by_layer, False)
        for (dtype, capability), recompute, by_layer in product(
            [("bfloat16", AMPERE), ("float16", AMPERE), ("float16", TURING), ("float32", AMPERE)],
            [False, True],
            [False, True],
        )
    ]
    cases += [(head, "bfloat16", AMPERE, False, by_layer, False) for head, by_layer in product(heads, [False, True])]
    cases += [("PreTraining", "bfloat16", AMPERE, *more, True) for more in product([False, True], repeat=2)]
    cases += [("SequenceClassification", "bfloat16", AMPERE, False, True, True)]
    for head, dtype, capability, *more in cases:
        options = dict(zip(("recompute", "by_layer", "ddp"), more, strict=True))
        try:
            result: dict[str, Any] = dict(traced(head, dtype, capability, **options))
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        sys.stdout.write(
            json.dumps({"head": head, "dtype": dtype, "capability": capability, **options, **result}) + "\n"
        )
        sys.stdout.flush()
    del library


if __name__ == "__main__":
    main()
