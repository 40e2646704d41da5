r"""Writes a finished model as ONNX, so that it runs without PyTorch.

    pip install onnx onnxruntime onnxscript
    python recipes/export_onnx.py --folder runs/mrpc

Every head, any batch size and length up to the model's maximum; a model with a
BiLSTM is refused. The file goes to onnx/model.onnx in the folder, where the
Hub looks for it, and is uploaded with the rest. Its outputs are compared with
PyTorch's over four shapes, and no file is left where they differ.
Cost: a minute, and disk space for the weights once more.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("export_onnx")
