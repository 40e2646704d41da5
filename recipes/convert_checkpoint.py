# /// script
# requires-python = ">=3.11"
# dependencies = ["bert-repro"]
# ///
r"""Converts a checkpoint of the original TensorFlow implementation to a published
folder that everybody loads, without TensorFlow; or an old pytorch_model.bin,
which no other recipe opens.

    python recipes/convert_checkpoint.py \
      --checkpoint uncased_L-12_H-768_A-12 \
      --gelu erf --output_dir runs/bert-base-uncased

    python recipes/convert_checkpoint.py \
      --checkpoint biobert_v1.1_pubmed \
      --gelu erf --do_lower_case false --output_dir runs/biobert

    python recipes/convert_checkpoint.py \
      --checkpoint old-model/pytorch_model.bin \
      --output_dir runs/old-model

Pre-trained models, encoders, classifiers, taggers (--head tagging) and SQuAD
models. Every tensor is used or named with the reason why not; names, shapes
and checksums must be right. What the files do not say is not guessed: the
form of gelu, and cased or uncased where its signs disagree; conversion.json
keeps what was decided.
Cost: a minute for BERT-base, and memory of four times its weights.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("convert_checkpoint")
