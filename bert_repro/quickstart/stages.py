"""The work of the quickstart's stages, each a call into the package proper with settings that suit five minutes."""

import json
import logging
import subprocess
import sys
import timeit
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_repro.configs import CorpusConfig, FinetuningConfig, Phase, PretrainingConfig, TokenizerConfig
from bert_repro.quickstart import docstring_task, upstream_process
from bert_repro.quickstart.docstring_task import Module, PackageTask, Row, choose, write_examples
from bert_repro.utils.files import atomic_file, write_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

logger = logging.getLogger("bert_repro")

MAX_WORDS_PER_PACKAGE = 60_000
VOCAB_SIZE = 4_000
PHASES = (Phase(32, 2_600, 64), Phase(128, 1_000, 16))
"""Short sequences first: at length 128 alone the network would still guess by frequency when the minutes are over."""
TRAIN_TEXTS_PER_LABEL = 64
VALIDATION_TEXTS_PER_LABEL = 100
TOLERANCE = 1e-5
"""Outputs are equal when they differ by at most this times max(1, largest output)."""

FILL_MASK_TEXTS = (
    "Return the [MASK] of the array along the given axis.",
    "Raises an error if the [MASK] does not exist.",
    "This function is [MASK] and will be removed in a future version.",
    "The number of [MASK] in the graph.",
    "If [MASK] is None, the default value is used.",
    "The capital of France is [MASK].",
)
"""Fixed before any model was trained; the last is about the world, which docstrings hardly speak of."""


@dataclass(frozen=True)
class Folders:
    """Where the quickstart writes, all below its output folder."""

    root: Path

    @property
    def text(self) -> Path:
        """One JSON line per document."""
        return self.root / "text" / "corpus.jsonl"

    @property
    def examples(self) -> Path:
        """Labelled texts of the classification task."""
        return self.root / "examples"

    @property
    def tokenizer(self) -> Path:
        """The vocabulary."""
        return self.root / "tokenizer"

    @property
    def corpus(self) -> Path:
        """The prepared corpus."""
        return self.root / "corpus"

    @property
    def pretrained(self) -> Path:
        """The pre-trained model, published."""
        return self.root / "pretrained"

    @property
    def untrained(self) -> Path:
        """The model that pre-training began with, published."""
        return self.root / "untrained"

    def classifier(self, start: Path) -> Path:
        """Returns the classifier fine-tuned from a model."""
        return self.root / f"classifier-{start.name}"


@dataclass(frozen=True)
class Texts:
    """What was gathered.

    Args:
        modules: of the corpus.
        heldout: modules whose texts validate the classifier; not part of the corpus.
        train: labelled texts to learn from, out of the corpus.
        validation: labelled texts to score on.
    """

    modules: list[Module]
    heldout: set[Module]
    train: list[Row]
    validation: list[Row]


def gather_texts(folders: Folders, packages: Sequence[str] = docstring_task.PACKAGES) -> Texts:
    """Gathers docstrings, holds some modules out for the classifier's validation, and writes both to disk."""
    modules = docstring_task.gather(packages, max_words=MAX_WORDS_PER_PACKAGE)
    validation, heldout = choose(modules, VALIDATION_TEXTS_PER_LABEL)
    corpus = [module for module in modules if module not in heldout]
    train, _ = choose(corpus, TRAIN_TEXTS_PER_LABEL)
    with atomic_file(folders.text) as file:
        for module in corpus:
            file.write(json.dumps({"text": "\n".join(module.docstrings)}) + "\n")
    write_examples(folders.examples, "train", train)
    write_examples(folders.examples, "validation", validation)
    return Texts(corpus, heldout, train, validation)


def train_vocabulary(folders: Folders) -> "PreTrainedTokenizerFast":
    """Trains the WordPiece vocabulary on the corpus."""
    from bert_repro.corpus.tokenizer import train_tokenizer

    return train_tokenizer(
        TokenizerConfig(input_files=(str(folders.text),), output_dir=str(folders.tokenizer), vocab_size=VOCAB_SIZE)
    )


def prepare(folders: Folders) -> dict[str, Any]:
    """Splits the corpus into sentences and token ids; returns its manifest."""
    from bert_repro.corpus.prepare import prepare_corpus

    return prepare_corpus(
        CorpusConfig(input_files=(str(folders.text),), tokenizer=str(folders.tokenizer), output_dir=str(folders.corpus))
    )


def new_model(folders: Folders, seed: int) -> None:
    """Publishes the network that pre-training starts from: random weights, small enough for two cores and minutes.

    Two choices differ from the paper's, because this model is narrower and trains a thousandth as long: weights are
    drawn wider, so that a layer changes its input as much as at hidden size 768; and there is no dropout. More in
    docs/how-to/small_machine.md.
    """
    import torch

    from bert_repro.models.configuration_bert_repro import BertReproConfig
    from bert_repro.models.loading import load_tokenizer, save_tokenizer
    from bert_repro.models.modeling_bert_repro import BertReproForPreTraining
    from bert_repro.utils.randomness import torch_seed

    tokenizer = load_tokenizer(folders.tokenizer)
    shape = BertReproConfig(
        vocab_size=len(tokenizer),
        num_hidden_layers=2,
        hidden_size=128,
        num_attention_heads=4,
        intermediate_size=512,
        initializer_range=0.06,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(torch_seed(seed))
    BertReproForPreTraining(shape).save_pretrained(folders.untrained)
    save_tokenizer(tokenizer, folders.untrained)


def pretraining_config(folders: Folders, seed: int) -> PretrainingConfig:
    """Returns the settings of masked LM and next sentence prediction as in the paper, in miniature."""
    return PretrainingConfig(
        corpus=str(folders.corpus),
        model_name_or_path=str(folders.untrained),
        output_dir=str(folders.pretrained),
        overwrite_output_dir=True,  # the example shown before has left its sample index there
        seed=seed,
        phases=PHASES,
        learning_rate=2e-3,
        bias_correction=True,  # at this learning rate the first steps would be too large without it
        warmup_ratio=0.06,
        mixed_precision=quickest_precision(),
        packing=False,  # nearly all sequences are full, so padding costs less than attention one by one
        heldout_fraction=0.05,
        max_eval_sequences=512,
    )


def finetuning_config(folders: Folders, start: Path, seed: int) -> FinetuningConfig:
    """Returns the settings of fine-tuning, the same for every model.

    64 texts a label are soon learned by heart: dropout and more epochs are worth several points on others.
    """
    return FinetuningConfig(
        model_name_or_path=str(start),
        task_name=PackageTask.name,
        data_dir=str(folders.examples),
        output_dir=str(folders.classifier(start)),
        do_train=True,
        do_eval=True,
        seed=seed,
        num_train_epochs=8.0,
        learning_rate=1e-3,
        bias_correction=True,
        hidden_dropout_prob=0.2,
        attention_probs_dropout_prob=0.2,
        max_seq_length=128,
        train_batch_size=16,
        mixed_precision=quickest_precision(),
    )


@cache
def quickest_precision() -> str:
    """Returns `bf16` where this processor multiplies it natively, in half the time; `no` where it would emulate it."""
    import torch

    def seconds(dtype: torch.dtype) -> float:
        matrix = torch.ones(512, 512, dtype=dtype)
        matrix @ matrix  # the first product of a kind also prepares its code
        return min(timeit.repeat(lambda: matrix @ matrix, number=5, repeat=7))

    return "bf16" if 1.3 * seconds(torch.bfloat16) < seconds(torch.float32) else "no"


def pretrain(config: PretrainingConfig) -> dict[str, float]:
    """Pre-trains and returns the held-out metrics."""
    from bert_repro.pretraining.run import run_pretraining

    metrics: dict[str, float] = run_pretraining(config)["metrics"]
    return metrics


def heldout_examples(config: PretrainingConfig) -> dict[str, Any]:
    """Returns the examples and masks on which the run is evaluated, as one padded or packed batch."""
    from bert_repro.corpus.prepared_corpus import PreparedCorpus
    from bert_repro.models.loading import load_tokenizer
    from bert_repro.pretraining.evaluation import HeldOutEvaluation
    from bert_repro.pretraining.run import resolve_phases

    corpus = PreparedCorpus.load(config.corpus)
    _, heldout = corpus.split(config.heldout_fraction, at_least=2)
    tokenizer = load_tokenizer(str(Path(config.corpus) / "tokenizer"))
    evaluation = HeldOutEvaluation(config, resolve_phases(config, processes=1)[-1], corpus, heldout, tokenizer)
    batch: dict[str, Any] = evaluation.collate(evaluation.stream.read(evaluation.ids))
    return batch


def best_constant_guess(labels: np.ndarray[Any, Any]) -> tuple[int, float]:
    """Returns the token that is right most often when it is the answer everywhere.

    Args:
        labels: token ids where a token is predicted, -100 elsewhere.

    Returns:
        Its id and its accuracy.
    """
    counts = np.bincount(labels[labels >= 0])
    return int(counts.argmax()), float(counts.max() / counts.sum())


def finetune_from(folders: Folders, start: Path, seed: int) -> float:
    """Fine-tunes a model on the task; returns its accuracy on the validation texts."""
    from bert_repro.finetuning.run import finetune

    results = finetune(finetuning_config(folders, start, seed), PackageTask())
    return float(results["metrics"]["accuracy"])


def fill_masks(folder: Path) -> list[tuple[str, list[tuple[str, float]]]]:
    """Returns the five likeliest tokens for each of `FILL_MASK_TEXTS`, by transformers' own fill-mask pipeline."""
    from transformers import pipeline

    fill = pipeline("fill-mask", model=str(folder), top_k=5)
    return [(text, [(guess["token_str"], guess["score"]) for guess in fill(text)]) for text in FILL_MASK_TEXTS]


def compare_with_upstream(folders: Folders, texts: Sequence[str]) -> dict[str, tuple[float, bool]]:
    """Loads the published folders in a process without this package and compares outputs with ours.

    Returns:
        For each auto class its largest difference and whether that is within `TOLERANCE`.

    Raises:
        RuntimeError: the other process failed.
    """
    from bert_repro.models import HEADS

    published = {
        "AutoModel": folders.pretrained,
        "AutoModelForMaskedLM": folders.pretrained,
        "AutoModelForSequenceClassification": folders.classifier(folders.pretrained),
    }
    answers = _ask_upstream_process(
        folders.root,
        {
            name: {"auto_class": name, "folder": str(folder.resolve()), "texts": list(texts)}
            for name, folder in published.items()
        },
    )
    differences = {}
    for name, folder in published.items():
        ours = upstream_process.outputs(HEADS[name], str(folder), list(texts))
        difference = float(np.abs(ours - answers[name]).max())
        differences[name] = (difference, difference <= TOLERANCE * max(1.0, float(np.abs(ours).max())))
    return differences


def _ask_upstream_process(folder: Path, requests: dict[str, Any]) -> dict[str, Any]:
    request_file, answers_file = folder / "upstream_request.json", folder / "upstream_answers.npz"
    write_json(request_file, requests)
    # -P: the script's folder is part of this package and must not be on the other process's path.
    command = [sys.executable, "-P", upstream_process.__file__, str(request_file), str(answers_file)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"transformers alone could not load the published folder:\n{done.stderr.strip()}")
    with np.load(answers_file) as answers:
        return dict(answers)
