# /// script
# requires-python = ">=3.11"
# dependencies = ["bert-repro[onnx]"]
# ///
r"""Writes a finished model as ONNX, so that it runs without PyTorch.

    pip install onnx onnxruntime onnxscript
    python recipes/export_onnx.py --folder runs/mrpc
    python recipes/export_onnx.py --folder runs/mrpc --dtypes fp32 fp16 q8

Every head, any batch size and length up to the model's maximum; a model with a
BiLSTM is refused. The files go to onnx/ in the folder, where the Hub and
transformers.js look for them, and are uploaded with the rest: model.onnx,
model_fp16.onnx, model_quantized.onnx (8-bit weights, a quarter of the size).
The outputs of each are compared with PyTorch's over four shapes, and no file
is left where they differ. onnx/report.json has sizes and differences.
Cost: a minute, and disk space for the weights once more for each type.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("export_onnx")
