r"""Runs the complete path in miniature: text, vocabulary, pre-training, fine-tuning, a published model.

    python recipes/quickstart.py
    python recipes/quickstart.py --seed 1

Nothing is downloaded: the text is the docstrings of the standard library and of installed packages (parsed, never
imported), and the task is to name the package of a docstring. Everything is written to runs/quickstart, which a second
run replaces. Five to ten minutes on two cores. Exit code 1 when one of these is not reached: masked tokens of unseen
modules predicted twice as well as by the best constant guess; a classifier above a bag of words, and 10 points above
the majority class and above the same network without pre-training; equal outputs in upstream transformers.
"""

import argparse
import collections
import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import bert_repro  # before torch, which reads as it is imported how long its threads spin

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
warnings.simplefilter("ignore")

import datasets  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from quickstart_text import choose_texts, gather_docstrings  # noqa: E402

from bert_repro.errors import StopRequested  # noqa: E402
from bert_repro.utils.randomness import torch_seed  # noqa: E402

Row = dict[str, str]
Check = tuple[str, float, float]

UNTRAINED = "untrained"
PRETRAINED = "pretrained"
MODELS = (UNTRAINED, PRETRAINED)
TRAIN_TEXTS = 64  # per label
VALIDATION_TEXTS = 100  # per label
LARGEST_DIFFERENCE = 1e-5  # from the outputs of upstream transformers
MASKED = (  # fixed before any model was trained
    "Return the [MASK] of the array along the given axis.",
    "Raises an error if the [MASK] does not exist.",
    "This function is [MASK] and will be removed in a future version.",
    "The number of [MASK] in the graph.",
    "If [MASK] is None, the default value is used.",
    "The capital of France is [MASK].",
)
UPSTREAM = """
import sys, numpy, torch, transformers
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
name, folder, answers, *texts = sys.argv[1:]
tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
model = getattr(transformers, name).from_pretrained(folder, attn_implementation="sdpa", trust_remote_code=False)
model.eval()
with torch.no_grad():
    numpy.save(answers, model(**tokenizer(texts, padding=True, return_tensors="pt"))[0].numpy())
assert not any(module.split(".")[0] == "bert_repro" for module in sys.modules)
"""


def main() -> None:
    """Runs all steps; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/quickstart"))
    parser.add_argument("--seed", type=int, default=42)
    arguments = parser.parse_args()
    root, seed = arguments.output_dir, arguments.seed
    prepare_folder(root)
    # More threads gain nothing for so small a model, and the same number gives the same results everywhere.
    torch.set_num_threads(min(2, torch.get_num_threads()))
    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    train, validation = gather_texts(root)
    tokenizer = train_vocabulary(root)
    pretrained = pretrain(root, len(tokenizer), seed)
    untrained_run, pretrained_run = (finetune(root, start, train, validation, seed) for start in MODELS)
    differences = compare_with_upstream(root, tokenizer.mask_token)

    checks = checks_of(root, pretrained["metrics"], untrained_run, pretrained_run)
    succeeded = report(root, checks, differences)
    record = {"seed": seed, "checks": checks, "differences": differences}
    (root / "quickstart.json").write_text(json.dumps(record))
    sys.exit(not succeeded)


# --- The steps, in their order ----------------------------------------------------------------------------------------


def prepare_folder(root: Path) -> None:
    """Replaces the folder of an earlier quickstart; a folder with anything else in it ends the program."""
    if root.exists() and not (root / "quickstart.json").exists():
        sys.exit(f"--output_dir {root} contains something other than an earlier quickstart. Choose another folder.")
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    (root / "quickstart.json").write_text("{}")


def gather_texts(root: Path) -> tuple[list[Row], list[Row]]:
    """Writes the text to learn from to `text.jsonl`, and returns the rows to train and to validate a classifier."""
    say("Text: docstrings of installed packages, half a minute; some modules are held out to validate a classifier")
    modules = gather_docstrings()
    validation, heldout = choose_texts(modules, VALIDATION_TEXTS)
    modules = [module for number, module in enumerate(modules) if number not in heldout]
    train, _ = choose_texts(modules, TRAIN_TEXTS)
    with (root / "text.jsonl").open("w") as file:
        for _, _, texts in modules:
            file.write(json.dumps({"text": "\n".join(texts)}) + "\n")
    print(f"{len(modules):,} documents, for example: {train[0]['text']}")
    return train, validation


def train_vocabulary(root: Path) -> transformers.PreTrainedTokenizerFast:
    """Trains the vocabulary, prepares the corpus with it, and returns the tokenizer."""
    say("Vocabulary: WordPiece; then sentences and token ids")
    text = root / "text.jsonl"
    tokenizer = bert_repro.train_tokenizer(text, vocab_size=4_000, output_dir=str(root / "tokenizer"))
    print(" ".join(tokenizer.tokenize("Return the eigenvalues of a tridiagonal matrix.")))
    bert_repro.prepare_corpus(text, tokenizer=tokenizer, output_dir=str(root / "corpus"))
    # The classifier without pre-training starts from the folder `untrained`, which needs the tokenizer too.
    tokenizer.save_pretrained(root / UNTRAINED)
    return tokenizer


def pretrain(root: Path, vocab_size: int, seed: int) -> bert_repro.RunResult:
    """Pre-trains a small BERT, prints its guesses for masked words, and returns the results."""
    say("Pre-training: masked language model and next sentence prediction")
    print("2,600 steps of 32 tokens, then 1,000 of 128, with which the loss rises first: later positions are new to it")
    # Weights are drawn wider than the paper's and nothing is dropped, because this network is narrower and trains a
    # thousandth as long. docs/how-to/small_machine.md says what that gained.
    torch.manual_seed(torch_seed(seed))
    shape = bert_repro.BertReproConfig(
        vocab_size=vocab_size,
        num_hidden_layers=2,
        hidden_size=128,
        num_attention_heads=4,
        intermediate_size=512,
        initializer_range=0.06,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    bert_repro.BertReproForPreTraining(shape).save_pretrained(root / UNTRAINED)
    results = bert_repro.pretrain(
        corpus=str(root / "corpus"),
        model_name_or_path=str(root / UNTRAINED),
        output_dir=str(root / PRETRAINED),
        seed=seed,
        # Short sequences first: at length 128 alone it would still guess by frequency when the minutes are over.
        phases=(bert_repro.Phase(32, 2_600, 64), bert_repro.Phase(128, 1_000, 16)),
        learning_rate=2e-3,
        bias_correction=True,  # at this learning rate the first steps would be too large without it
        warmup_ratio=0.06,
        mixed_precision="auto",
        packing=False,  # nearly all sequences are full, so padding costs less than attention one by one
        heldout_fraction=0.05,
        max_eval_sequences=512,
    )
    fill = transformers.pipeline("fill-mask", model=str(root / PRETRAINED), top_k=5, trust_remote_code=False)
    for sentence in MASKED:
        guesses = [f"{guess['token_str']} {guess['score']:.1%}" for guess in fill(sentence)]
        print(sentence, "->", ", ".join(guesses))
    return results


def finetune(root: Path, start: str, train: list[Row], validation: list[Row], seed: int) -> bert_repro.RunResult:
    """Fine-tunes a classifier that starts from one of the folders `MODELS`, and returns its results."""
    if start == UNTRAINED:
        say("Fine-tuning: which package is a docstring from? With and without pre-training")
    return bert_repro.finetune(
        model=root / start,
        train=train,
        validation=validation,
        output_dir=str(root / f"classifier-{start}"),
        seed=seed,
        num_train_epochs=8,
        learning_rate=1e-3,
        bias_correction=True,
        hidden_dropout_prob=0.2,  # 64 texts a label are soon memorized
        attention_probs_dropout_prob=0.2,
        train_batch_size=16,
        mixed_precision="auto",
    )


def compare_with_upstream(root: Path, mask_token: str) -> list[float]:
    """Returns the largest difference from upstream transformers for the pre-trained model and for the classifier."""
    say("Publishing: the folders are loaded by transformers alone, in another process")
    sentences = [sentence.replace("[MASK]", mask_token) for sentence in MASKED]
    return [
        difference_from_upstream("AutoModelForMaskedLM", root / PRETRAINED, sentences),
        difference_from_upstream("AutoModelForSequenceClassification", root / f"classifier-{PRETRAINED}", sentences),
    ]


def checks_of(
    root: Path,
    pretraining_metrics: dict[str, float],
    untrained_run: bert_repro.RunResult,
    pretrained_run: bert_repro.RunResult,
) -> list[Check]:
    """Returns what must be reached: a name, the value that was reached, and the value that is needed."""
    counts: collections.Counter[int] = collections.Counter()
    for row in datasets.load_from_disk(str(root / "corpus"))["input_ids"]:
        counts.update(row)
    best_constant_guess = counts.most_common(1)[0][1] / counts.total()
    baselines = {name: scores["accuracy"] for name, scores in pretrained_run["baselines"].items()}
    reached = pretrained_run.metrics["accuracy"]
    without_pretraining = untrained_run.metrics["accuracy"]
    return [
        (
            "masked tokens, against twice the best constant guess",
            pretraining_metrics["mlm_accuracy"],
            2 * best_constant_guess,
        ),
        ("classifier, against the majority class + 10 points", reached, baselines["most frequent label"] + 0.1),
        ("classifier, against a bag of words", reached, baselines["bag of words"]),
        ("classifier, against the untrained network + 10 points", reached, without_pretraining + 0.1),
    ]


def report(root: Path, checks: list[Check], differences: list[float]) -> bool:
    """Prints what was reached and what comes next; returns whether everything that is needed was reached."""
    say("What was reached")
    print(f"{'':64}{'reached':>7}{'needed':>8}")
    for name, value, needed in checks:
        print(f"{name:64}{value:7.1%}{needed:8.1%}  {'yes' if value >= needed else 'NO'}")
    print(f"largest difference from upstream transformers: {max(differences):.1e}")
    classifier = root / f"classifier-{PRETRAINED}"
    print(f"\nThe models and their cards: {root / PRETRAINED}, {classifier}.")
    print("Next, after `source .venv/bin/activate` where make set up the environment:")
    print(f'  echo "Returns the eigenvalues of a matrix." | bert-repro predict --model_name_or_path {classifier}')
    return all(value >= needed for _, value, needed in checks) and max(differences) <= LARGEST_DIFFERENCE


# --- Helpers ----------------------------------------------------------------------------------------------------------


def say(title: str) -> None:
    """Prints a heading."""
    print(f"\n--- {title}", flush=True)


def difference_from_upstream(auto_class: str, folder: Path, texts: list[str]) -> float:
    """Returns the largest difference of outputs between upstream transformers and this package.

    It is divided by the largest output where that is above 1. The other process fails if it imports this package.
    """
    answers = folder / "upstream.npy"
    subprocess.run([sys.executable, "-c", UPSTREAM, auto_class, str(folder), str(answers), *texts], check=True)
    model = (
        bert_repro.HEADS[auto_class].from_pretrained(folder, attn_implementation="sdpa", trust_remote_code=False).eval()
    )
    with torch.no_grad():
        inputs = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)(
            texts, padding=True, return_tensors="pt"
        )
        ours = model(**inputs)[0].numpy()
    return float(np.abs(ours - np.load(answers)).max() / max(1.0, np.abs(ours).max()))


if __name__ == "__main__":
    try:
        main()
    except StopRequested as stop:
        print(f"error: {stop}; a new start replaces runs/quickstart", file=sys.stderr)
        sys.exit(stop.exit_code)
