"""Conversion of original checkpoints."""

from dataclasses import dataclass
from typing import Literal

from bert_repro.configs.base import Config, setting


@dataclass(frozen=True)
class ConversionConfig(Config):
    """Converts a checkpoint of the original TensorFlow code, or an old pytorch_model.bin.

      bert-repro convert_checkpoint --checkpoint uncased_L-12_H-768_A-12 --gelu erf --output_dir runs/bert-base

    Pre-trained models, encoders, classifiers, taggers (--head tagging) and SQuAD models, without TensorFlow. Every
    tensor is used or named with the reason why not. What the files do not say is not guessed: the form of gelu, and
    cased or uncased where its signs disagree. A minute for BERT-base.
    """

    REQUIRED = ("checkpoint", "output_dir")

    checkpoint: str = setting(
        "",
        "Folder with bert_model.ckpt.*, bert_config.json and vocab.txt, or with pytorch_model.bin; or a prefix of "
        "files.",
    )
    output_dir: str = setting("", "Folder to write.")
    overwrite_output_dir: bool = setting(False, "Replace what the output folder holds.")
    gelu: Literal["erf", "tanh"] | None = setting(
        None,
        "The gelu it was trained with: erf (the releases of 2018) or tanh (the code since 2019-02); no file says "
        "which.",
    )
    do_lower_case: bool | None = setting(
        None, "Whether the model is uncased; default: what its name, tokenizer_config.json and vocabulary agree on."
    )
    head: Literal[
        "auto",
        "encoder",
        "pretraining",
        "masked_lm",
        "next_sentence",
        "classification",
        "tagging",
        "multiple_choice",
        "question_answering",
    ] = setting("auto", "Which head to convert; auto: that of its tensors. A tagger's look like a classifier's.")
    label_names: tuple[str, ...] = setting(
        (), "Names of the labels in the order of the outputs; default: LABEL_0, LABEL_1 ..."
    )
