"""Records what a refactoring must not move: losses, gradient norms, weights, predictions and scores of short runs.

    python tests/golden/record_runs.py DATA before.json               # DATA holds glue/ squad/ conll2003/ swag/ blimp/
    python tests/golden/record_runs.py DATA after.json --compare before.json

Each run is a recipe in a process of its own, with two threads. Equal bits are promised on one machine with equal
versions, so a recording is compared with one of the same machine and is not kept in the repository.
"""

import argparse
import hashlib
import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MINI = ROOT / "checkpoints" / "bert-repro-mini"
TINY = "--num_hidden_layers 2 --hidden_size 64 --num_attention_heads 2 --learning_rate 1e-3 --logging_steps 1 "
TINY += "--max_eval_sequences 64 --train_batch_size 16 --max_steps 20 --max_seq_length 64"
FINETUNE = "--do_train --do_eval --max_steps 20 --train_batch_size 8 --logging_steps 1 --max_train_samples 200 "
FINETUNE += f"--max_eval_samples 60 --model_name_or_path {MINI}"
BEST = "--eval_steps 10 --load_best_model_at_end"
ANSWERS = (".csv", ".tsv", ".txt", ".parquet")
WINDOWS = "--max_seq_length 96 --doc_stride 32"
PRETRAININGS = {
    "packed": "",
    "padded": "--packing false",
    "phases": "--config {work}/phases.yaml",
    "bf16": "--mixed_precision bf16 --per_device_train_batch_size 4",
    "plain-kernels": "--cpu_kernels false",
    "static": "--static_shapes true",
    "left-to-right": "--left_to_right true --next_sentence_prediction false",
    "whole-words": "--whole_word_masking true --dupe_factor 2 --nsp_sampling original",
    "no-nsp": "--next_sentence_prediction false --no_nsp_input contiguous --bias_correction true",
    "checkpointing": "--gradient_checkpointing true",
    "continued": f"--model_name_or_path {MINI}",
    "lora": f"--model_name_or_path {MINI} --peft lora",
}


def commands(data: Path, work: Path) -> Iterator[tuple[str, str, str]]:
    """Yields name, recipe and arguments of each run, in an order in which each finds what it reads."""
    text = f"--input_files {work}/text.txt"
    yield "tokenizer", "train_tokenizer", f"{text} --vocab_size 2000 --output_dir {work}/tokenizer"
    for name, tokenizer in (("corpus", work / "tokenizer"), ("corpus-mini", MINI)):
        yield name, "prepare_corpus", f"{text} --tokenizer {tokenizer} --output_dir {work}/{name}"
    for name, flags in PRETRAININGS.items():
        corpus = "corpus-mini" if str(MINI) in flags else "corpus"
        shape = TINY if corpus == "corpus" else TINY.split("--num_attention_heads 2 ")[1]
        shape = shape.replace("--max_steps 20 ", "") if name == "phases" else shape
        given = f"--corpus {work}/{corpus} {shape} {flags.format(work=work)}"
        yield f"pretraining-{name}", "run_pretraining", f"{given} --output_dir {work}/pretraining-{name}"
    glue, own = f"--data_dir {data}/glue {FINETUNE}", f"--train_file {work}"
    conll, cache = f"--data_dir {data}/conll2003 {FINETUNE}", f"--feature_cache_dir {work}/cache-features"
    dev = f"--validation_file {work}/dev.csv --test_file {work}/dev.csv"
    left_to_right = glue.replace(str(MINI), f"{work}/pretraining-left-to-right")
    runs = {
        "mrpc": ("run_glue", f"--task_name mrpc {glue}"),
        "stsb": ("run_glue", f"--task_name stsb {glue} --packing false --freeze_layers 2 --bias_correction true"),
        "cola": ("run_glue", f"--task_name cola {glue} --layerwise_lr_decay 0.9 {BEST}"),
        "sweep": ("run_glue", f"--task_name rte {glue} --sweep_learning_rates 1e-4 3e-4 --num_restarts 2"),
        "table": ("run_glue", f"{own}/train.csv {dev} {FINETUNE}"),
        "several-labels": ("run_glue", f"{own}/many.jsonl --multi_label true --validation_fraction 0.25 {FINETUNE}"),
        "ltr-bilstm": ("run_glue", f"--task_name sst2 {left_to_right} --bilstm_size 16"),
        "squad": ("run_squad", f"--task_name squad --data_dir {work}/squad-data {FINETUNE} {WINDOWS}"),
        "squad2": ("run_squad", f"--task_name squad_v2 --data_dir {work}/squad2-data {FINETUNE} {WINDOWS}"),
        "swag": ("run_swag", f"--data_dir {data}/swag {FINETUNE}"),
        "ner": ("run_ner", f"--data_dir {data}/conll2003 {FINETUNE} --max_seq_length 96 --ner_context tile"),
        "features": ("run_ner", f"{conll} --max_seq_length 64 --feature_based weighted_last_four {cache}"),
    }
    for name, (recipe, flags) in runs.items():
        yield name, recipe, f"{flags} --output_dir {work}/{name}"
    table, few = f"--model_name_or_path {work}/table", f"--model_name_or_path {MINI} --input_file {work}/few.txt"
    yield "predict", "predict", f"{table} --input_file {work}/dev.csv --output_file {work}/predict/out.csv"
    features = f"--output_file {work}/extract/out.parquet --layers last_four --pooling mean"
    yield "extract", "extract_features", f"{few} {features}"
    yield "score", "score_sentences", f"{few} --output_dir {work}/score"
    pairs = f"--model_name_or_path {MINI} --minimal_pairs {work}/pairs.jsonl --output_dir {work}/pairs"
    yield "pairs", "score_sentences", pairs


def write_inputs(data: Path, work: Path) -> None:
    """Cuts small inputs out of the data."""
    rows = [line.split("\t") for line in (data / "glue/SST-2/train.tsv").read_text("utf-8").splitlines()[1:6001]]
    texts = [row[0].strip() for row in rows]
    documents = ["\n".join(texts[start : start + 12]) for start in range(0, len(texts), 12)]
    (work / "text.txt").write_text("\n\n".join(documents) + "\n", "utf-8")
    (work / "few.txt").write_text("\n".join(text for text in texts[:40] if text) + "\n", "utf-8")
    for name, part in (("train", rows[:300]), ("dev", rows[300:360])):
        lines = [f'"{text.strip()}",{["bad", "good"][int(label)]}' for text, label in part]
        (work / f"{name}.csv").write_text("text,label\n" + "\n".join(lines) + "\n", "utf-8")
    labels = ("film", "good", "a")
    many = [
        {"text": row[0].strip(), "label": [name for name in labels if name in row[0].strip()]} for row in rows[:240]
    ]
    (work / "many.jsonl").write_text("".join(json.dumps(row) + "\n" for row in many), "utf-8")
    (work / "phases.yaml").write_text(
        "phases:\n  - {max_seq_length: 32, steps: 12, batch: 16, max_predictions_per_seq: 5}\n"
        "  - {max_seq_length: 64, steps: 8, batch: 8, per_device_batch: 4}\n"
    )
    squads = {"squad-data": ("v1.1", "train-v1.1", "dev-v1.1"), "squad2-data": ("v2.0", "dev-v2.0", "dev-v2.0")}
    for folder, (version, *names) in squads.items():
        (work / folder).mkdir()
        for split, name in zip(("train", "dev"), names, strict=True):
            articles = json.loads((data / f"squad/{name}.json").read_text("utf-8"))["data"]
            part = [{**article, "paragraphs": article["paragraphs"][:3]} for article in articles[:8]]
            (work / folder / f"{split}-{version}.json").write_text(json.dumps({"version": version, "data": part}))
    pairs = lzma.decompress(sorted((data / "blimp").glob("*.xz"))[0].read_bytes()).decode("utf-8").splitlines()[:40]
    (work / "pairs.jsonl").write_text("\n".join(pairs) + "\n", "utf-8")


def weights(path: Path) -> str:
    """A digest of names and values of the tensors, whatever the header of the file says."""
    from safetensors.numpy import load_file

    state = hashlib.sha256()
    for name, value in sorted(load_file(path).items()):
        state.update(name.encode() + value.tobytes())
    return state.hexdigest()[:16]


def facts(folder: Path) -> dict[str, Any]:
    """Returns what a run left: of its log losses, norms and rates, of its model the weights, all scores and answers."""
    found: dict[str, Any] = {}
    if (log := folder / "train_log.jsonl").exists():
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        kept = ("step", "loss", "grad_norm", "learning_rate", "tokens")
        found["log"] = [
            {key: row[key] for key in row if key in kept or "loss" in key or "accuracy" in key} for row in rows
        ]
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if "checkpoints/" in name or not path.is_file():
            continue
        if path.name == "model.safetensors":
            found[name] = weights(path)
        elif path.name == "results.json":
            results = json.loads(path.read_text())
            found[name] = {key: results.get(key) for key in ("metrics", "rows_scored", "splits", "task", "split")}
        elif path.name.startswith("predictions") or path.suffix in ANSWERS or path.name == "scores.jsonl":
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return found


def main() -> None:
    """Makes the runs, writes the recording and compares it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--compare", type=Path)
    parser.add_argument("--only", default="", help="Record only runs whose name holds this, with what they read.")
    given = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="golden-"))
    data = given.data.resolve()
    write_inputs(data, work)
    environment = os.environ | {"OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(work / "cache")}
    recorded: dict[str, Any] = {}
    for name, recipe, flags in commands(data, work):
        if name not in ("tokenizer", "corpus", "corpus-mini") and given.only not in name:
            continue
        words = [sys.executable, "-m", "bert_repro", recipe, *flags.split()]
        (work / name).mkdir(exist_ok=True)
        done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
        recorded[name] = facts(work / name) if done.returncode == 0 else {"failed": done.stderr[-600:]}
        sys.stdout.write(f"{name} {'failed: ' + done.stderr[-600:] if done.returncode else 'ok'}\n")
    given.output.write_text(json.dumps(recorded, indent=1, sort_keys=True))
    shutil.rmtree(work)
    if given.compare:
        before, differ = json.loads(given.compare.read_text()), 0
        for name, now in json.loads(given.output.read_text()).items():
            old = before.get(name) or {}
            changed = [key for key in sorted({*now, *old}) if now.get(key) != old.get(key)]
            differ += bool(changed)
            if changed:
                sys.stdout.write(f"{name} differs in {changed}\n")
        sys.stdout.write(f"{len(recorded) - differ} runs equal, {differ} differ\n")
        sys.exit(bool(differ))


if __name__ == "__main__":
    main()
