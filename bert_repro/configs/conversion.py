"""Settings for converting original checkpoints."""

from dataclasses import dataclass
from typing import Literal

from bert_repro.configs.base import Config, setting


@dataclass(frozen=True)
class ConversionConfig(Config):
    """Converts a checkpoint of the original TensorFlow code, or an old pytorch_model.bin.

      bert-repro convert_checkpoint --checkpoint uncased_L-12_H-768_A-12 --gelu erf --output_dir runs/bert-base

    It converts pre-trained models, encoders, classifiers, taggers (--head tagging) and SQuAD models, and does not need
    TensorFlow. Every tensor is used, or named with the reason why it is not. What the files do not say is not guessed:
    the form of gelu, and whether the model is cased if the files disagree. BERT-base takes a minute.
    """

    REQUIRED = ("checkpoint", "output_dir")

    checkpoint: str = setting(
        "",
        "Folder with bert_model.ckpt.*, bert_config.json and vocab.txt, or with pytorch_model.bin; or the common "
        "beginning of the files' paths.",
    )
    output_dir: str = setting("", "Folder for the converted model.")
    overwrite_output_dir: bool = setting(False, "Replace the content of the output folder.")
    gelu: Literal["erf", "tanh"] | None = setting(
        None,
        "The form of gelu of the model: erf (the releases of 2018) or tanh (the code since 2019-02). "
        "The files do not say which.",
    )
    do_lower_case: bool | None = setting(
        None,
        "Whether the model is uncased. Default: what the folder's name, tokenizer_config.json and the "
        "vocabulary agree on.",
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
    ] = setting(
        "auto",
        "Head to convert. auto: decide by the names of the tensors, which are the same for a tagger and a classifier.",
    )
    label_names: tuple[str, ...] = setting(
        (), "Names of the labels in the order of the outputs. Default: LABEL_0, LABEL_1 ..."
    )
