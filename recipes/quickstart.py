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

TRAIN_TEXTS, VALIDATION_TEXTS = 64, 100  # per label
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
    given = parser.parse_args()
    root, seed = given.output_dir, given.seed
    if root.exists() and not (root / "quickstart.json").exists():
        sys.exit(f"--output_dir {root} holds something other than an earlier quickstart; name another folder")
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    (root / "quickstart.json").write_text("{}")
    torch.set_num_threads(min(2, torch.get_num_threads()))  # more gain nothing, and equal numbers give equal results
    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    say("Text: docstrings of installed packages, half a minute; some modules are held out to validate a classifier")
    modules = gather_docstrings()
    validation, heldout = choose_texts(modules, VALIDATION_TEXTS)
    modules = [module for number, module in enumerate(modules) if number not in heldout]
    train, _ = choose_texts(modules, TRAIN_TEXTS)
    text = root / "text.jsonl"
    text.write_text("".join(json.dumps({"text": "\n".join(texts)}) + "\n" for _, _, texts in modules))
    print(f"{len(modules):,} documents, for example: {train[0]['text']}")

    say("Vocabulary: WordPiece; then sentences and token ids")
    tokenizer = bert_repro.train_tokenizer(text, vocab_size=4_000, output_dir=str(root / "tokenizer"))
    print(" ".join(tokenizer.tokenize("Return the eigenvalues of a tridiagonal matrix.")))
    bert_repro.prepare_corpus(text, tokenizer=tokenizer, output_dir=str(root / "corpus"))

    say("Pre-training: masked language model and next sentence prediction")
    print("2,600 steps of 32 tokens, then 1,000 of 128, with which the loss rises first: later positions are new to it")
    # Weights are drawn wider than the paper's and nothing is dropped: this network is narrower and trains a thousandth
    # as long. docs/how-to/small_machine.md says what that gained.
    torch.manual_seed(torch_seed(seed))
    shape = bert_repro.BertReproConfig(
        vocab_size=len(tokenizer), num_hidden_layers=2, hidden_size=128, num_attention_heads=4, intermediate_size=512,
        initializer_range=0.06, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    bert_repro.BertReproForPreTraining(shape).save_pretrained(root / "untrained")
    tokenizer.save_pretrained(root / "untrained")
    pretrained = bert_repro.pretrain(
        corpus=str(root / "corpus"),
        model_name_or_path=str(root / "untrained"),
        output_dir=str(root / "pretrained"),
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
    fill = transformers.pipeline("fill-mask", model=str(root / "pretrained"), top_k=5, trust_remote_code=False)
    for sentence in MASKED:
        print(sentence, "->", ", ".join(f"{guess['token_str']} {guess['score']:.1%}" for guess in fill(sentence)))

    say("Fine-tuning: which package is a docstring from? With and without pre-training")
    accuracy = {}
    for start in ("untrained", "pretrained"):
        results = bert_repro.finetune(
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
        accuracy[start] = results["metrics"]["accuracy"]

    say("Publishing: the folders are loaded by transformers alone, in another process")
    sentences = [sentence.replace("[MASK]", tokenizer.mask_token) for sentence in MASKED]
    classifier = root / "classifier-pretrained"
    differences = [
        difference_from_upstream("AutoModelForMaskedLM", root / "pretrained", sentences),
        difference_from_upstream("AutoModelForSequenceClassification", classifier, sentences),
    ]

    tokens = collections.Counter(
        token for row in datasets.load_from_disk(str(root / "corpus"))["input_ids"] for token in row
    )
    constant = tokens.most_common(1)[0][1] / tokens.total()
    baselines = {name: scores["accuracy"] for name, scores in results["baselines"].items()}
    reached = accuracy["pretrained"]
    checks = [
        ("masked tokens, against twice the best constant guess", pretrained["metrics"]["mlm_accuracy"], 2 * constant),
        ("classifier, against the majority class + 10 points", reached, baselines["most frequent label"] + 0.1),
        ("classifier, against a bag of words", reached, baselines["bag of words"]),
        ("classifier, against the untrained network + 10 points", reached, accuracy["untrained"] + 0.1),
    ]  # fmt: skip
    say("What was reached")
    print(f"{'':64}{'reached':>7}{'needed':>8}")
    for name, value, needed in checks:
        print(f"{name:64}{value:7.1%}{needed:8.1%}  {'yes' if value >= needed else 'NO'}")
    print(f"largest difference from upstream transformers: {max(differences):.1e}")
    (root / "quickstart.json").write_text(json.dumps({"seed": seed, "checks": checks, "differences": differences}))
    print(f"\nThe models and their cards: {root}/pretrained, {classifier}.")
    print("Next, after `source .venv/bin/activate` where make set up the environment:")
    print(f'  echo "Returns the eigenvalues of a matrix." | bert-repro predict --model_name_or_path {classifier}')
    sys.exit(not all(value >= needed for _, value, needed in checks) or max(differences) > 1e-5)


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
