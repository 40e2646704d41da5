"""Exports a published folder to ONNX, for programs without PyTorch, and compares the result with PyTorch.

The inputs of the graph are `input_ids`, `attention_mask` and `token_type_ids`, of any batch size and of any length up
to the model's positions: [B, S], or [B, C, S] for multiple choice. The axes are called `batch`, `choices` and
`sequence`. The outputs have the names of the model's outputs; only the token logits of pre-training are called
`logits`, as in every fill-mask model. The files are where the Hub and transformers.js look for them:
`onnx/model.onnx` and so on in the published folder.

- `fp32`: the graph as PyTorch traces it.
- `fp16`: weights and arithmetic in half precision; inputs and outputs as in `fp32`.
- `q8`: weights in 8 bits, and activations quantized while the model runs
  (`onnxruntime.quantization.quantize_dynamic`). The weights are unsigned, because products of two signed bytes overflow
  the 16-bit sums of processors without VNNI.
"""

import importlib.util
import logging
import math
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bert_repro.configs import OnnxConfig
from bert_repro.configs.inference import ONNX_FILES
from bert_repro.errors import UserError, flag
from bert_repro.models.loading import load_config, load_pretrained
from bert_repro.utils.files import atomic_path

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger("bert_repro")

ONNX_FOLDER = "onnx"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
TOLERANCES = {"fp32": 1e-4, "fp16": 1e-2, "q8": 0.25}
"""Largest allowed difference from PyTorch, as a fraction of the largest output. For fp32 it allows for sums in another
order. For the others it is a bound that a broken file exceeds and a good one stays far below."""

_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_AXES = {2: ("batch", "sequence"), 3: ("batch", "choices", "sequence")}
_OUTPUT_NAMES = {"prediction_logits": "logits"}
"""Our name of an output -> the name that the fill-mask pipelines of ONNX Runtime and transformers.js expect."""
_CHOICES = 2  # of the example inputs
_SEED = 0


def export_onnx(config: OnnxConfig) -> list[Path]:
    """Writes the model of a published folder as ONNX files. If one of them differs from PyTorch, none is written.

    Returns:
        The files, in the order of `config.dtypes`.

    Raises:
        UserError: the packages for ONNX are missing, the folder has no model, the model has a BiLSTM, or a file exists.
        RuntimeError: a graph differs from PyTorch by more than `TOLERANCES`.
    """
    files = {dtype: Path(config.folder) / ONNX_FOLDER / ONNX_FILES[dtype] for dtype in config.dtypes}
    _require_packages()
    _require_unused(files, config)
    model = load_model(Path(config.folder))

    # The files get their names together at the end, when all have been compared.
    with ExitStack() as stack:
        unfinished = {dtype: stack.enter_context(atomic_path(path)) for dtype, path in files.items()}
        # The other types are made from the fp32 graph, which may not be among the files.
        if "fp32" in unfinished:
            graph = unfinished["fp32"]
        else:
            graph = Path(stack.enter_context(tempfile.TemporaryDirectory())) / ONNX_FILES["fp32"]
        write_graph(model, graph)
        for dtype, path in unfinished.items():
            if dtype == "fp16":
                write_half(graph, path)
            elif dtype == "q8":
                write_quantized(graph, path)
            _compare(model, path, dtype, config)
            logger.info("Wrote %s: %.1f MB.", files[dtype], path.stat().st_size / 1e6)
    return list(files.values())


def _require_packages() -> None:
    for package in _PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise UserError(f"export_onnx requires the package {package}. Run: pip install {' '.join(_PACKAGES)}")


def _require_unused(files: Mapping[Any, Path], config: OnnxConfig) -> None:
    for path in files.values():
        if path.exists() and not config.overwrite_output_file:
            raise UserError(
                f"{path} already exists. Add {flag('overwrite_output_file')} to replace it.",
                setting="overwrite_output_file",
            )


def _compare(model: "PreTrainedModel", path: Path, dtype: str, config: OnnxConfig) -> None:
    """Raises `RuntimeError` if a file differs too much from its model."""
    difference = largest_difference(model, path)
    if difference > TOLERANCES[dtype]:
        raise RuntimeError(
            f"The {dtype} graph of {config.folder} differs from PyTorch by {difference:.1e}, more than the allowed "
            f"{TOLERANCES[dtype]}. Nothing was written."
        )
    logger.info("%s: the largest difference from PyTorch is %.1e of the largest output.", dtype, difference)


def load_model(folder: Path) -> "PreTrainedModel":
    """Loads the model of a published folder in float32, as our class for the head that its config.json names.

    Raises:
        UserError: there is no such model, or it has a BiLSTM.
    """
    from bert_repro.models import modeling_bert_repro
    from bert_repro.models.configuration_bert_repro import AUTO_CLASSES

    architectures = load_config(str(folder), "folder").architectures or ["none"]
    class_name = architectures[0]
    our_names = [head.ours for head in AUTO_CLASSES.values() if class_name in (head.ours, head.upstream)]
    if not our_names:
        raise UserError(
            f"{flag('folder', folder)}: config.json names the class {class_name}, which is not a BERT model.",
            setting="folder",
        )
    model, _ = load_pretrained(getattr(modeling_bert_repro, our_names[0]), str(folder), setting="folder")
    # The exporter unrolls an LSTM over the tokens of its example, so the graph would accept one length only.
    if model.config.bilstm_size is not None:
        raise UserError(
            f"{flag('folder', folder)}: the model has a BiLSTM (bilstm_size {model.config.bilstm_size}), which cannot "
            "be exported to ONNX for every length. Use it with PyTorch, or train a model without a BiLSTM.",
            setting="folder",
        )
    return model.eval()  # type: ignore[no-any-return]


def write_graph(model: "PreTrainedModel", path: Path) -> None:
    """Writes the graph of a model for any batch size and length.

    Args:
        model: in evaluation mode.
        path: file to write. It contains the weights.
    """
    example = _inputs(model, batch=3, length=min(7, model.config.max_position_embeddings))
    with torch.no_grad():
        output_names = list(_outputs(model, example))
    dynamic_shapes = {}
    for name, tensor in example.items():
        dynamic_shapes[name] = dict.fromkeys(range(tensor.dim()), torch.export.Dim.DYNAMIC)
    # The exporter would recommend torchvision, which no BERT needs.
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        # The exporter's warnings are about its own code.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            (),
            path,
            kwargs=example,
            dynamic_shapes=dynamic_shapes,
            output_names=output_names,
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    _clean_up(path)


def _clean_up(path: Path) -> None:
    """Names the dynamic axes of an exported graph and removes what only the exporter needed.

    The shapes of intermediate values would stop `onnxruntime.quantization`. The metadata of nodes contain the paths of
    source files on this machine.
    """
    import onnx

    model = onnx.load(path)
    del model.graph.value_info[:]
    for node in model.graph.node:
        del node.metadata_props[:]
    for function in model.functions:
        for node in function.node:
            del node.metadata_props[:]

    # The exporter's symbols -> our names. The mask has symbols of its own.
    names: dict[str, str] = {}
    for value in model.graph.input:
        axes = value.type.tensor_type.shape.dim
        symbols = [axis.dim_param for axis in axes]
        names.update(zip(symbols, _AXES[len(axes)], strict=True))
    for value in (*model.graph.input, *model.graph.output):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param:
                axis.dim_param = names.get(axis.dim_param, axis.dim_param)
    onnx.save(model, path)


def write_half(source: Path, path: Path) -> None:
    """Writes a graph with weights and arithmetic in float16. Inputs and outputs keep their types."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with warnings.catch_warnings():
        # Weights so small that they become 0 in float16 are reported one by one.
        warnings.simplefilter("ignore")
        onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True), path)


def write_quantized(source: Path, path: Path) -> None:
    """Writes a graph with all weights in 8 bits, including the embeddings."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # It logs through the root logger. Without a handler, the root would get one that repeats all our later lines.
    logging.getLogger().addHandler(logging.NullHandler())
    quantize_dynamic(source, path, weight_type=QuantType.QUInt8)


def largest_difference(model: "PreTrainedModel", path: Path) -> float:
    """Returns the largest difference between an ONNX file and its model, over several shapes with padding.

    Args:
        model: in evaluation mode.
        path: the ONNX file.

    Returns:
        The largest absolute difference, as a fraction of the largest output if that is above 1. Infinite if a value is
        not finite.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    longest = model.config.max_position_embeddings
    worst = 0.0
    # One token, the longest input, and shapes other than those of the export.
    for batch, length in ((1, 1), (1, min(19, longest)), (5, min(33, longest)), (2, longest)):
        inputs = _inputs(model, batch, length)
        with torch.no_grad():
            expected = _outputs(model, inputs)
        arrays = session.run(names, {name: tensor.numpy() for name, tensor in inputs.items()})
        outputs = dict(zip(names, map(torch.from_numpy, arrays), strict=True))
        for name, tensor in expected.items():
            assert outputs[name].shape == tensor.shape, f"{name}: {outputs[name].shape} instead of {tensor.shape}"
            scale = max(1.0, float(tensor.abs().max()))
            difference = float((outputs[name] - tensor).abs().max()) / scale
            if not math.isfinite(difference):
                return math.inf
            worst = max(worst, difference)
    return worst


def _inputs(model: "PreTrainedModel", batch: int, length: int) -> dict[str, torch.Tensor]:
    """Returns random ids and segments. The last third of every second row is padding."""
    generator = torch.Generator().manual_seed(_SEED)
    has_choices = type(model).__name__.endswith("MultipleChoice")
    shape = (batch, _CHOICES, length) if has_choices else (batch, length)
    ids = torch.randint(model.config.vocab_size, shape, generator=generator)
    mask = torch.ones(shape, dtype=torch.long)
    mask[1::2, ..., length - length // 3 :] = 0
    segments = torch.randint(model.config.type_vocab_size, shape, generator=generator)
    return dict(zip(INPUTS, (ids, mask, segments), strict=True))


def _outputs(model: "PreTrainedModel", inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the model's outputs under the names that they have in the graph."""
    outputs = {}
    for name, tensor in model(**inputs).items():
        if tensor is not None:
            outputs[_OUTPUT_NAMES.get(name, name)] = tensor
    return outputs
