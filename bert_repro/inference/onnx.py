"""A published folder as ONNX, for programs without PyTorch; compared with PyTorch as it is written.

The graph takes `input_ids`, `attention_mask` and `token_type_ids` of any batch size and length up to the model's
positions, (B, S), or (B, C, S) for multiple choice; the axes are called `batch`, `choices` and `sequence`. Its outputs
have the names of the model's output, but for the token logits of pre-training, which are `logits` as in every fill-mask
model. The files are where the Hub and transformers.js look for them: `onnx/model.onnx` and so on in the published
folder.

- `fp32`: the graph as PyTorch traces it.
- `fp16`: weights and arithmetic in half precision, inputs and outputs as before.
- `q8`: weights in 8 bits, activations quantized as they are computed (`onnxruntime.quantization.quantize_dynamic`).
  Unsigned weights, because products of two signed bytes overflow the 16-bit sums of processors without VNNI.
"""

import importlib.util
import logging
import math
import tempfile
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from bert_repro.configs import OnnxConfig, require
from bert_repro.configs.inference import ONNX_FILES
from bert_repro.errors import UserError
from bert_repro.models.loading import load_config, load_pretrained
from bert_repro.utils.files import atomic_path

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger("bert_repro")

ONNX_FOLDER = "onnx"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
TOLERANCES = {"fp32": 1e-4, "fp16": 1e-2, "q8": 0.25}
"""Largest difference to PyTorch, as a share of the largest output: for float32 sums in another order; for the others a
bound that a broken file exceeds and a good one stays far below."""
_AXES = {2: ("batch", "sequence"), 3: ("batch", "choices", "sequence")}
_RENAMED = {"prediction_logits": "logits"}  # as fill-mask pipelines of ONNX Runtime and transformers.js ask for it
_CHOICES = 2
_SEED = 0


def export_onnx(config: OnnxConfig) -> list[Path]:
    """Writes a published folder's model as ONNX files; none is left where one differs from PyTorch.

    Returns:
        The files, in the order of `config.dtypes`.

    Raises:
        UserError: the packages for ONNX are missing, there is no model in the folder, the model has a BiLSTM, or a file
            exists.
        RuntimeError: a graph differs from PyTorch by more than `TOLERANCES`.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"export_onnx needs the package {package}; run: pip install onnx onnxruntime onnxscript")
    files = {dtype: Path(config.folder) / ONNX_FOLDER / ONNX_FILES[dtype] for dtype in config.dtypes}
    if found := [path for path in files.values() if path.exists() and not config.overwrite_output_file]:
        raise UserError(f"{found[0]} exists; give --overwrite_output_file")
    model = load_model(Path(config.folder))
    with ExitStack() as stack:  # the files take their names together, when all are as PyTorch
        parts = {dtype: stack.enter_context(atomic_path(path)) for dtype, path in files.items()}
        graph = parts.get("fp32") or Path(stack.enter_context(tempfile.TemporaryDirectory())) / ONNX_FILES["fp32"]
        write_graph(model, graph)
        for dtype, part in parts.items():
            if dtype != "fp32":
                (write_half if dtype == "fp16" else write_quantized)(graph, part)
            difference = largest_difference(model, part)
            if difference > TOLERANCES[dtype]:
                raise RuntimeError(
                    f"the {dtype} graph of {config.folder} differs from PyTorch by {difference:.1e}, above "
                    f"{TOLERANCES[dtype]}"
                )
            megabytes = part.stat().st_size / 1e6
            logger.info("%s: %.1f MB, largest difference to PyTorch %.1e", files[dtype], megabytes, difference)
    return list(files.values())


def load_model(folder: Path) -> "PreTrainedModel":
    """Loads the model of a published folder, of the class of ours that its config.json names, in float32.

    Raises:
        UserError: there is none, or it has a BiLSTM.
    """
    from bert_repro.models import modeling_bert_repro
    from bert_repro.models.configuration_bert_repro import AUTO_CLASSES

    names = load_config(str(folder), "folder").architectures or ["none"]
    ours = [head.ours for head in AUTO_CLASSES.values() if names[0] in (head.ours, head.upstream)]
    require(ours, f"--folder {folder}: config.json names the class {names[0]}, which is no BERT of this family")
    model, _ = load_pretrained(getattr(modeling_bert_repro, ours[0]), str(folder), setting="folder")
    # The exporter unrolls an LSTM over the tokens of its example, so the graph would know one length only.
    if model.config.bilstm_size is not None:
        raise UserError(
            f"--folder {folder}: the model has a BiLSTM (bilstm_size {model.config.bilstm_size}), which has no ONNX "
            "graph for every length; use it with PyTorch, or train one without a BiLSTM"
        )
    return model.eval()  # type: ignore[no-any-return]


def write_graph(model: "PreTrainedModel", path: Path) -> None:
    """Writes the graph of a model with free batch size and length.

    Args:
        model: in evaluation mode.
        path: file to write; the weights are inside.
    """
    example = _inputs(model, batch=3, length=min(7, model.config.max_position_embeddings))
    with torch.no_grad():
        names = list(_outputs(model, example))
    free = {name: dict.fromkeys(range(tensor.dim()), torch.export.Dim.DYNAMIC) for name, tensor in example.items()}
    # About torchvision, which no BERT needs.
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's, about its own code
        torch.onnx.export(
            model, (), path, kwargs=example, dynamic_shapes=free, output_names=names, dynamo=True, external_data=False,
            verbose=False,
        )  # fmt: skip
    _tidy(path)


def _tidy(path: Path) -> None:
    """Makes a graph fit for others: its axes have names, and what only the exporter needed is removed.

    The shapes of what is in between would stop `onnxruntime.quantization`; the places in source files where nodes were
    written name folders of this machine.
    """
    import onnx

    model = onnx.load(path)
    for node in (*model.graph.node, *(node for function in model.functions for node in function.node)):
        del node.metadata_props[:]
    del model.graph.value_info[:]
    names: dict[str, str] = {}  # the exporter's -> ours; the mask has symbols of its own
    for value in model.graph.input:
        axes = value.type.tensor_type.shape.dim
        names |= dict(zip((axis.dim_param for axis in axes), _AXES[len(axes)], strict=True))
    for value in (*model.graph.input, *model.graph.output):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param:
                axis.dim_param = names.get(axis.dim_param, axis.dim_param)
    onnx.save(model, path)


def write_half(source: Path, path: Path) -> None:
    """Writes a graph with weights and arithmetic in float16; inputs and outputs stay as they are."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about weights that are 0 in float16
        onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True), path)


def write_quantized(source: Path, path: Path) -> None:
    """Writes a graph with its weights in 8 bits, embeddings too."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # It logs through the root, which would give a root without a handler one that repeats every later line of ours.
    logging.getLogger().addHandler(logging.NullHandler())
    quantize_dynamic(source, path, weight_type=QuantType.QUInt8)


def largest_difference(model: "PreTrainedModel", path: Path) -> float:
    """Returns how far an ONNX file is from its model: the largest difference over several shapes, with padding.

    Args:
        model: in evaluation mode.
        path: the ONNX file.

    Returns:
        The largest absolute difference, as a share of the largest output where that is above 1; infinite where a value
        is not finite.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    longest, worst = model.config.max_position_embeddings, 0.0
    # One token, the longest, and others than that of the export.
    for batch, length in ((1, 1), (1, min(19, longest)), (5, min(33, longest)), (2, longest)):
        inputs = _inputs(model, batch, length)
        with torch.no_grad():
            expected = _outputs(model, inputs)
        arrays = session.run(names, {name: tensor.numpy() for name, tensor in inputs.items()})
        found = dict(zip(names, map(torch.from_numpy, arrays), strict=True))
        for name, ours in expected.items():
            values = found[name]
            assert values.shape == ours.shape, f"{values.shape} in place of {ours.shape}"
            difference = float((values - ours).abs().max() / max(1.0, float(ours.abs().max())))
            worst = max(worst, difference if math.isfinite(difference) else math.inf)
    return worst


def _inputs(model: "PreTrainedModel", batch: int, length: int) -> dict[str, torch.Tensor]:
    """Makes random ids and segments; the last third of every second row is padding."""
    generator = torch.Generator().manual_seed(_SEED)
    choices = (_CHOICES,) if type(model).__name__.endswith("MultipleChoice") else ()
    shape = (batch, *choices, length)
    ids = torch.randint(model.config.vocab_size, shape, generator=generator)
    mask = torch.ones(shape, dtype=torch.long)
    mask[1::2, ..., length - length // 3 :] = 0
    segments = torch.randint(model.config.type_vocab_size, shape, generator=generator)
    return dict(zip(INPUTS, (ids, mask, segments), strict=True))


def _outputs(model: "PreTrainedModel", inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {_RENAMED.get(name, name): tensor for name, tensor in model(**inputs).items() if tensor is not None}
