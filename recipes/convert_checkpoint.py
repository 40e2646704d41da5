# /// script
# requires-python = ">=3.11"
# dependencies = ["bert-repro"]
# ///
r"""Converts a checkpoint of the original TensorFlow implementation to a published
folder that everybody loads, without TensorFlow; or back; or an old
pytorch_model.bin, which no other recipe opens.

    python recipes/convert_checkpoint.py \
      --checkpoint uncased_L-12_H-768_A-12.zip \
      --gelu erf --output_dir runs/bert-base-uncased

    python recipes/convert_checkpoint.py \
      --checkpoint biobert_v1.1_pubmed.tar.gz \
      --gelu erf --do_lower_case false --output_dir runs/biobert

    python recipes/convert_checkpoint.py \
      --checkpoint old-model/pytorch_model.bin \
      --output_dir runs/old-model

    python recipes/convert_checkpoint.py \
      --to_tensorflow --checkpoint runs/bert \
      --output_dir runs/bert-tensorflow

Pre-trained models, encoders, classifiers, taggers (--head tagging) and SQuAD
models. Every tensor is used or named with the reason why not; names and shapes
must be those of the settings. What the files do not say is not guessed: the
form of gelu, and cased or uncased where its signs disagree. The folder is
written only if all tensors are equal bit by bit, outputs for sample sentences
are within 1e-5 of the checkpoint's own, and the tokenizer splits as the
original does; conversion.json has all of it. Archives are unpacked with limits
and without links; pickles are read in a process of their own that builds
nothing but tensors.
Cost: a minute for BERT-base, and memory of six times its weights.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("convert_checkpoint")
