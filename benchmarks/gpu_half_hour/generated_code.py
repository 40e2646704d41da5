"""What PyTorch's compiler generates for a layer on an H200, seen without one: kernels, and bytes that they move.

    pip install --no-deps --target /tmp/triton triton==3.7.1        # 0.7 GB; the one that this PyTorch's compiler wants
    PYTHONPATH=/tmp/triton python benchmarks/gpu_half_hour/generated_code.py

Tensors claim to be on a GPU and hold no numbers; the compiler stops where it would hand its code to Triton. Encoders of
one and of two layers are compiled, forward and backward, in bf16 with dropout; their difference is a layer. A kernel
"over tokens" reads or writes at least a kilobyte for each token, and is limited by memory; "small" ones cast weights,
add up partial sums and the like. Products and attention are PyTorch's own kernels: "called".

Estimates follow from bytes at an assumed speed of memory; nothing here is measured. It takes a minute or two for each
row, and needs g++ (PyTorch's CPU build cannot record gradients on a GPU without the few lines of C++ below).
"""

import argparse
import ctypes
import importlib.util
import json
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

VARIANTS = {
    "before": (),
    "joint": ("joint projection",),
    "bf16": ("joint projection", "bf16 residual"),
    "combo": ("joint projection", "bf16 residual", "combo kernels"),
}
BYTES_A_SECOND = 3.8e12  # assumed: a copy reaches 4.3e12
TOKENS, SEQUENCES, LENGTH = 30_592, 240, 128  # of a step of 256 sequences of at most 128 tokens, about
OVER_TOKENS = 1000  # bytes

GUARD = """
#include <ATen/DeviceAccelerator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/FakeGuardImpl.h>
namespace at::accelerator {
std::optional<c10::DeviceType> getAccelerator(bool) { return c10::DeviceType::CUDA; }
}
namespace at {
struct CUDAHooks : CUDAHooksInterface {  // the name that PyTorch looks for
  explicit CUDAHooks(CUDAHooksArgs) {}
  bool hasPrimaryContext(DeviceIndex) const override { return false; }
};
REGISTER_CUDA_HOOKS(CUDAHooks)
C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::FakeGuardImpl<c10::DeviceType::CUDA>)
}
"""


@dataclass
class Code:
    """What one encoder compiles to.

    Args:
        kernels: over tokens.
        bytes: of those, for each token.
        small_kernels: all other generated ones.
        small_bytes: of those, in all.
        called: PyTorch's own kernels.
        called_bytes: of those, for each token.
    """

    kernels: int = 0
    bytes: float = 0.0
    small_kernels: int = 0
    small_bytes: int = 0
    called: int = 0
    called_bytes: float = 0.0

    def add(self, generated: bool, moved: int) -> None:
        """Counts a kernel that moves so many bytes."""
        if not generated:
            self.called += moved > 0
            self.called_bytes += moved / TOKENS
        elif moved >= OVER_TOKENS * TOKENS:
            self.kernels += 1
            self.bytes += moved / TOKENS
        else:
            self.small_kernels += 1
            self.small_bytes += moved

    def less(self, other: "Code") -> dict[str, float]:
        """Returns the difference to a smaller encoder."""
        return {name: round(value - getattr(other, name), 1) for name, value in vars(self).items()}


class _Compiled(BaseException):
    """Ends a call when both directions are compiled."""


def main(arguments: list[str] | None = None) -> None:
    """Prints a row for each variant, and writes them as JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12, help="of the model whose step is estimated")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--code", type=Path, help="folder for the generated code of two layers")
    parser.add_argument("--results", type=Path, help="JSON file")
    options = parser.parse_args(arguments)
    load_guard()
    rows = {}
    with pretended_gpu():
        for name in options.variants:
            folder = options.code and options.code / name
            if folder:
                folder.mkdir(parents=True, exist_ok=True)
            with variant(name):
                one, two = (compiled(layers, options.hidden, folder) for layers in (1, 2))
                rows[name] = two.less(one)
            seconds = rows[name]["bytes"] * TOKENS * options.layers / BYTES_A_SECOND
            print(f"{name:16} {rows[name]} {1e3 * seconds:.2f} ms of a step", flush=True)
            if options.results:
                options.results.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


def load_guard() -> None:
    """Compiles and loads `GUARD`, which must come before PyTorch's own libraries.

    Raises:
        SystemExit: there is no g++, or PyTorch is loaded already.
    """
    if "torch" in sys.modules:
        sys.exit("generated_code.py must be run by itself: PyTorch is loaded already")
    specification = importlib.util.find_spec("torch")
    assert specification is not None and specification.origin is not None
    torch = Path(specification.origin).parent
    with TemporaryDirectory() as folder:
        source, library = Path(folder) / "guard.cpp", Path(folder) / "guard.so"
        source.write_text(GUARD, "utf-8")
        flags = ["-std=c++20", "-O0", "-shared", "-fPIC", f"-I{torch / 'include'}", f"-L{torch / 'lib'}"]
        flags += ["-lc10", "-ltorch_cpu", f"-Wl,-rpath,{torch / 'lib'}"]
        try:
            subprocess.run([os.environ.get("CXX", "g++"), source, "-o", library, *flags], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            sys.exit(f"the guard could not be compiled: {error}")
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


@contextmanager
def variant(name: str) -> Iterator[None]:
    """Switches on what a row of `VARIANTS` has."""
    import torch._inductor.config

    from bert_repro.models import modeling_bert_repro as modeling

    switched = VARIANTS[name]
    modeling.use_joint_projection("joint projection" in switched)
    modeling.use_bf16_residual("bf16 residual" in switched)
    try:
        with torch._inductor.config.patch(combo_kernels="combo kernels" in switched):
            yield
    finally:
        modeling.use_joint_projection(True)
        modeling.use_bf16_residual(False)


@contextmanager
def pretended_gpu() -> Iterator[None]:
    """Lets PyTorch's Python side believe in an H200."""
    import torch
    import torch._dynamo.device_interface as interfaces
    import torch._inductor.config
    import torch._inductor.fx_passes.joint_graph as joint_graph
    import torch.utils._triton
    from torch._functorch import config as autograd_config

    properties = types.SimpleNamespace(
        name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, total_memory=140 << 30, warp_size=32,
        regs_per_multiprocessor=65_536, max_threads_per_multi_processor=2048, max_threads_per_block=1024,
        L2_cache_size=50 << 20, gcnArchName="",
        shared_memory_per_block=48 << 10, shared_memory_per_block_optin=227 << 10,
    )  # fmt: skip
    answers: dict[str, Any] = {
        "is_available": True, "is_initialized": True, "is_bf16_supported": True, "_is_compiled": True,
        "device_count": 1, "current_device": 0, "_exchange_device": 0, "_maybe_exchange_device": 0,
        "get_device_properties": properties, "get_device_capability": (9, 0), "get_device_name": properties.name,
        "synchronize": None, "set_device": None, "init": None, "_lazy_init": None, "set_rng_state": None,
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
    }  # fmt: skip
    functions = {name: (lambda *_, answer=answer, **__: answer) for name, answer in answers.items()}
    taken = ("current_device", "device_count", "get_device_properties", "synchronize", "is_bf16_supported")
    patches = [
        mock.patch.multiple(torch.cuda, **functions),
        mock.patch.multiple(interfaces.CudaInterface, **{name: staticmethod(functions[name]) for name in taken}),
        mock.patch("torch.cuda.amp.common.amp_definitely_not_available", lambda: False),
        mock.patch("torch.accelerator.current_accelerator", lambda *_, **__: None),
        mock.patch.object(torch.utils._triton, "triton_hash_with_backend", lambda *_: ""),
        mock.patch.object(joint_graph, "lazy_init", lambda *_: None),  # looks for attention written out, on the device
        torch._inductor.config.patch(force_disable_caches=True, compile_threads=1),
        autograd_config.patch(force_non_lazy_backward_lowering=True),
    ]
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


def compiled(layers: int, hidden: int, code: Path | None) -> Code:
    """Compiles an encoder on packed sequences, and counts its kernels."""
    import torch
    from torch import nn
    from torch._inductor.graph import GraphLowering
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    from bert_repro import BertReproConfig
    from bert_repro.models.modeling_bert_repro import BertReproEncoder

    counted = Code()

    def read(graph: Any) -> Any:
        source, _ = graph.codegen()
        if code is not None:
            direction = "backward" if graph.is_backward else "forward"
            (code / f"layers-{layers}-{direction}.py").write_text(str(getattr(source, "value", source)), "utf-8")
        for node in graph.scheduler.nodes:
            counted.add(not type(node).__name__.startswith("Extern"), node.get_read_write_buffers_sizes())

        def call(_: Any) -> None:
            raise _Compiled

        return types.SimpleNamespace(call=call, __file__=__file__, key="", runner=None)

    torch._dynamo.reset()
    config = BertReproConfig(
        num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=hidden // 64, intermediate_size=4 * hidden
    )
    gpu = torch.device("cuda:0")
    with FakeTensorMode(shape_env=ShapeEnv()), mock.patch.object(GraphLowering, "compile_to_module", read):
        with torch.device("meta"):
            model = BertReproEncoder(config).train()
        for module in model.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                setattr(module, name, nn.Parameter(torch.empty(parameter.shape, device=gpu)))
        offsets = torch.empty(SEQUENCES + 1, dtype=torch.int32, device=gpu)
        packing = {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets, "max_length_q": LENGTH, "max_length_k": LENGTH}
        states = torch.empty(1, TOKENS, hidden, device=gpu, requires_grad=True)
        try:
            with torch.autocast("cuda", torch.bfloat16):
                torch.compile(model, dynamic=False)(states, None, "packed_sdpa", **packing)
        except _Compiled:
            return counted
    raise RuntimeError("nothing was compiled")


if __name__ == "__main__":
    main()
