"""A published folder as ONNX, for programs without PyTorch; compared with PyTorch as it is written.

The graph takes `input_ids`, `attention_mask` and `token_type_ids` of any batch size and length up to the model's
positions, (B, S), or (B, C, S) for multiple choice; the axes are called `batch`, `choices` and `sequence`. Its outputs
have the names of the model's output, but for the token logits of pre-training, which are `logits` as in every fill-mask
model. The files are where the Hub and transformers.js look for them: `onnx/model.onnx` and so on in the published
folder, with `onnx/report.json`, which says how far each is from PyTorch.

- `fp32`: the graph as PyTorch traces it.
- `fp16`: weights and arithmetic in half precision, inputs and outputs as before.
- `q8`: weights in 8 bits, activations quantized as they are computed (`onnxruntime.quantization.quantize_dynamic`).
  Unsigned weights, because products of two signed bytes overflow the 16-bit sums of processors without VNNI.
"""

import importlib.metadata
import importlib.util
import logging
import math
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bert_repro.configs import OnnxConfig
from bert_repro.configs.inference import ONNX_FILES
from bert_repro.errors import UserError
from bert_repro.inference.onnx_scores import DevScorer, DevScores, open_graph
from bert_repro.models.loading import load_config, load_pretrained
from bert_repro.utils.files import atomic_path, file_digest, write_json
from bert_repro.utils.readers import read_json_object

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger("bert_repro")

ONNX_FOLDER, REPORT = "onnx", "report.json"
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

    Args:
        config: the folder, the types of the weights, data to score them on.

    Returns:
        The files, in the order of `config.dtypes`.

    Raises:
        UserError: the packages for ONNX are missing, there is no model in the folder, the model has a BiLSTM, a file
            exists, or the data is not that of the model's task.
        RuntimeError: a graph differs from PyTorch by more than `TOLERANCES`.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"export_onnx needs the package {package}; run: pip install onnx onnxruntime onnxscript")
    folder, files = Path(config.folder), _files(config)
    model = load_model(folder)
    scorer = DevScorer(config, model) if config.scores else None
    expected = scorer.scores(model) if scorer else {}
    entries: dict[str, dict[str, Any]] = {}
    with _write_together(model, files) as parts:
        for dtype, part in parts.items():
            entries[dtype] = _describe(model, part, dtype, scorer)
            _log(files[dtype], dtype, entries[dtype], expected)
    if config.output_file is None:
        _write_report(model, files, entries, expected)
    return list(files.values())


def _files(config: OnnxConfig) -> dict[str, Path]:
    """Returns where each type is written."""
    folder = Path(config.folder) / ONNX_FOLDER
    named: dict[str, Path] = {dtype: Path(config.output_file or folder / ONNX_FILES[dtype]) for dtype in config.dtypes}
    for path in named.values():
        if path.exists() and not config.overwrite_output_file:
            raise UserError(f"--output_file {path} exists; name another or give --overwrite_output_file")
    return named


@contextmanager
def _write_together(model: "PreTrainedModel", files: dict[str, Path]) -> Iterator[dict[str, Path]]:
    """Writes every type beside its place; the files take their names when the block ends without an error."""
    with ExitStack() as stack:
        parts = {dtype: stack.enter_context(atomic_path(path)) for dtype, path in files.items()}
        graph = parts.get("fp32") or Path(stack.enter_context(tempfile.TemporaryDirectory())) / ONNX_FILES["fp32"]
        write_graph(model, graph)
        for dtype, write in (("fp16", write_half), ("q8", write_quantized)):
            if dtype in parts:
                write(graph, parts[dtype])
        yield parts


def _describe(model: "PreTrainedModel", path: Path, dtype: str, scorer: DevScorer | None) -> dict[str, Any]:
    """Compares a file with PyTorch and scores it; returns its entry of the report."""
    difference, limit = largest_difference(model, path), TOLERANCES[dtype]
    if difference > limit:
        raise RuntimeError(
            f"the {dtype} graph of {model.name_or_path} differs from PyTorch by {difference:.1e}, above {limit}"
        )
    entry = {"bytes": path.stat().st_size, "sha256": file_digest(path), "largest_difference": difference}
    return entry | ({"scores": scorer.scores(open_graph(path))} if scorer else {})


def _log(path: Path, dtype: str, entry: dict[str, Any], expected: DevScores) -> None:
    logger.info(
        "%s: %s, %.1f MB, largest difference to PyTorch %.1e",
        path,
        dtype,
        entry["bytes"] / 1e6,
        entry["largest_difference"],
    )
    for split, scores in entry.get("scores", {}).items():
        shown = (
            f"{name} {value:.4f} (PyTorch {expected[split]['metrics'][name]:.4f})"
            for name, value in scores["metrics"].items()
        )
        logger.info("%s: %s, %d rows: %s", path, split, scores["rows_scored"], ", ".join(shown))


def _write_report(
    model: "PreTrainedModel", files: dict[str, Path], entries: dict[str, Any], expected: DevScores
) -> None:
    """Writes report.json beside the files; what an earlier export wrote there stays in it while its files do."""
    folder = next(iter(files.values())).parent
    report = folder / REPORT
    try:
        before = read_json_object(report)["files"]
        kept = {
            name: entry
            for name, entry in before.items()
            if (folder / name).is_file() and file_digest(folder / name) == entry["sha256"]
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # there is none, or it is damaged
        kept = {}
    written = {path.name: {"dtype": dtype, **entries[dtype]} for dtype, path in files.items()}
    content = {
        "class": type(model).__name__,
        "largest_difference": "of all outputs to PyTorch in float32 on random ids, as a share of the largest output",
        "shapes": [{"batch": batch, "sequence": length} for batch, length in _shapes(model)],
        "files": kept | written,
        "pytorch": {"scores": expected} if expected else {},
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "onnx", "onnxscript", "onnxruntime")},
    }
    write_json(report, content)


def load_model(folder: Path) -> "PreTrainedModel":
    """Loads the model of a published folder, of the class of ours that its config.json names, in float32.

    Raises:
        UserError: there is none, or it has a BiLSTM.
    """
    from bert_repro.models import modeling_bert_repro
    from bert_repro.models.configuration_bert_repro import AUTO_CLASSES

    if not folder.is_dir():
        raise UserError(f"--folder {folder}: no such folder; name a published folder")
    names = load_config(str(folder), "--folder").architectures or ["none"]
    ours = [head.ours for head in AUTO_CLASSES.values() if names[0] in (head.ours, head.upstream)]
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

    # It logs through the root, which would give the root a handler and repeat every later line of ours.
    root, silent = logging.getLogger(), logging.NullHandler()
    level = root.level
    root.addHandler(silent)
    root.setLevel(logging.ERROR)
    try:
        quantize_dynamic(source, path, weight_type=QuantType.QUInt8)
    finally:
        root.setLevel(level)
        root.removeHandler(silent)


def largest_difference(model: "PreTrainedModel", path: Path) -> float:
    """Returns how far an ONNX file is from its model: the largest difference over several shapes, with padding.

    Args:
        model: in evaluation mode.
        path: the ONNX file.

    Returns:
        The largest absolute difference, as a share of the largest output where that is above 1; infinite where a value
        is not finite.
    """
    run = open_graph(path)
    worst = 0.0
    for batch, length in _shapes(model):
        inputs = _inputs(model, batch, length)
        with torch.no_grad():
            expected = _outputs(model, inputs)
        found = run(**inputs)
        for name, ours in expected.items():
            values = getattr(found, name)
            assert values.shape == ours.shape, f"{values.shape} in place of {ours.shape}"
            difference = float((values - ours).abs().max() / max(1.0, float(ours.abs().max())))
            worst = max(worst, difference if math.isfinite(difference) else math.inf)
    return worst


def _shapes(model: "PreTrainedModel") -> list[tuple[int, int]]:
    """Returns batch sizes and lengths to compare at: one token, the longest, and others than that of the export."""
    longest = model.config.max_position_embeddings
    return [(1, 1), (1, min(19, longest)), (5, min(33, longest)), (2, longest)]


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
