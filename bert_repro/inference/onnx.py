"""A published folder as ONNX, for programs without PyTorch; compared with PyTorch as it is written.

The graph takes `input_ids`, `attention_mask` and `token_type_ids` of any batch size and length up to the model's
positions, (B, S), or (B, C, S) for multiple choice; the axes are called `batch`, `choices` and `sequence`. Its outputs
have the names of the model's output, but for the token logits of pre-training, which are `logits` as in every fill-mask
model. It is where the Hub looks for it: `onnx/model.onnx` in the published folder.
"""

import importlib.util
import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from bert_repro.configs import OnnxConfig
from bert_repro.errors import UserError
from bert_repro.hub.model_files import load_config
from bert_repro.training.model_loading import load_pretrained
from bert_repro.utils.files import atomic_path

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger("bert_repro")

ONNX_FILE = "onnx/model.onnx"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
TOLERANCE = 1e-4  # of the largest output: float32 sums in another order
_AXES = {2: ("batch", "sequence"), 3: ("batch", "choices", "sequence")}
_RENAMED = {"prediction_logits": "logits"}  # as fill-mask pipelines of ONNX Runtime and transformers.js ask for it
_CHOICES = 2
_SEED = 0


def export_onnx(config: OnnxConfig) -> Path:
    """Writes a published folder's model as an ONNX file; nothing is left where it differs from PyTorch.

    Args:
        config: the folder, and the file.

    Returns:
        The file.

    Raises:
        UserError: the packages for ONNX are missing, there is no model in the folder, the model has a BiLSTM, or the
            file exists.
        RuntimeError: the graph differs from PyTorch.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"export_onnx needs the package {package}; run: pip install onnx onnxruntime onnxscript")
    folder = Path(config.folder)
    path = Path(config.output_file) if config.output_file else folder / ONNX_FILE
    if path.exists() and not config.overwrite_output_file:
        raise UserError(f"--output_file {path} exists; name another or give --overwrite_output_file")
    model = load_model(folder)
    with atomic_path(path) as part:
        write_graph(model, part)
        difference = largest_difference(model, part)
        if difference > TOLERANCE:
            raise RuntimeError(f"the graph of {folder} differs from PyTorch by {difference:.1e}, above {TOLERANCE}")
    logger.info(
        "%s: %.1f MB, largest difference to PyTorch %.1e over %d shapes",
        path, path.stat().st_size / 1e6, difference, len(_shapes(model)),
    )  # fmt: skip
    return path


def load_model(folder: Path) -> "PreTrainedModel":
    """The model of a published folder, of the class of ours that its config.json names, in float32.

    Raises:
        UserError: there is none, or it has a BiLSTM.
    """
    from bert_repro.models import modeling_bert_repro
    from bert_repro.models.configuration_bert_repro import HEADS

    if not folder.is_dir():
        raise UserError(f"--folder {folder}: no such folder; name a published folder")
    names = load_config(str(folder), "--folder").architectures or ["none"]
    ours = [head.ours for head in HEADS.values() if names[0] in (head.ours, head.upstream)]
    if not ours:
        raise UserError(f"--folder {folder}: config.json names the class {names[0]}, which is no BERT of this family")
    model, _ = load_pretrained(getattr(modeling_bert_repro, ours[0]), str(folder), flag="--folder")
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


def largest_difference(model: "PreTrainedModel", path: Path) -> float:
    """How far an ONNX file is from its model: the largest difference over several shapes, with padding.

    Args:
        model: in evaluation mode.
        path: the ONNX file.

    Returns:
        The largest absolute difference, as a share of the largest output where that is above 1.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    worst = 0.0
    for batch, length in _shapes(model):
        inputs = _inputs(model, batch, length)
        with torch.no_grad():
            expected = {name: tensor.numpy() for name, tensor in _outputs(model, inputs).items()}
        found = session.run(list(expected), {name: tensor.numpy() for name, tensor in inputs.items()})
        for values, ours in zip(found, expected.values(), strict=True):
            assert values.shape == ours.shape, f"{values.shape} in place of {ours.shape}"
            worst = max(worst, float(np.abs(values - ours).max() / max(1.0, np.abs(ours).max())))
    return worst


def _shapes(model: "PreTrainedModel") -> list[tuple[int, int]]:
    """Batch sizes and lengths to compare at: one token, the longest, and others than that of the export."""
    longest = model.config.max_position_embeddings
    return [(1, 1), (1, min(19, longest)), (5, min(33, longest)), (2, longest)]


def _inputs(model: "PreTrainedModel", batch: int, length: int) -> dict[str, torch.Tensor]:
    """Random ids and segments; the last third of every second row is padding."""
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
