r"""Writes a finished model as ONNX, so that it runs without PyTorch.

    pip install onnx onnxruntime onnxscript
    python recipes/export_onnx.py --folder runs/mrpc --dtypes fp32 q8

All flags: --help_all.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("export_onnx")
