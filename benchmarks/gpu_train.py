"""Trains a model on a GPU that is lent for ten minutes at a time: the same command, again and again, until it is done.

    python benchmarks/gpu_train.py --corpus CORPUS --data_dir GLUE --work /tmp/bert --out OUT --minutes 9
    python benchmarks/gpu_train.py ... --toy          # a rehearsal on the CPU, at toy size

Pre-trains until the minutes are over, stops with a checkpoint in --work, and resumes from it with the next command.
When pre-training is done it brings the weights to OUT, in bfloat16 and in pieces, and fine-tunes on MRPC, SST-2 and
MNLI. `cat OUT/model.safetensors.* > model.safetensors` joins the pieces; OUT/model.tar.gz has the model's other files.
"""

import argparse
import json
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = "results.json"
PIECE = 15 << 20  # bytes
SECONDS_TO_STOP = 60  # from TERM to KILL: a checkpoint is written in between
MODEL = (
    "--num_hidden_layers 4 --hidden_size 512 --num_attention_heads 8 --max_seq_length 128 --train_batch_size 256 "
    "--max_steps 20000 --learning_rate 1e-3 --warmup_ratio 0.05 --bias_correction true --mixed_precision bf16 "
    "--dataloader_num_workers 12 --logging_steps 50 --save_total_limit 1 --save_steps 2000"
)
TASKS = {
    "mrpc": "--num_train_epochs 4 --learning_rate 1e-4",
    "sst2": "--num_train_epochs 2 --learning_rate 1e-4",
    "mnli": "--num_train_epochs 3 --learning_rate 1e-4",
}
TOY_MODEL = (
    "--num_hidden_layers 2 --hidden_size 32 --num_attention_heads 2 --max_seq_length 32 --train_batch_size 8 "
    "--max_steps 12 --save_steps 4 --logging_steps 1 --max_eval_sequences 16 --learning_rate 1e-3"
)
TOY_TASKS = dict.fromkeys(TASKS, "--max_steps 2 --max_eval_samples 8")


def main(arguments: list[str] | None = None) -> Path:
    """Does what fits into the minutes; returns the file of results, written again after every part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", required=True, help="prepared corpus")
    parser.add_argument("--data_dir", required=True, help="GLUE's official files")
    parser.add_argument("--work", type=Path, required=True, help="folder that stays from one command to the next")
    parser.add_argument("--out", type=Path, required=True, help="folder that comes back")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--toy", action="store_true", help="at toy size")
    parser.add_argument("--flags", default="", help="of run_pretraining, after those of this script")
    options = parser.parse_args(arguments)
    end = time.monotonic() + 60 * options.minutes
    options.out.mkdir(parents=True, exist_ok=True)
    path, results = options.out / "train.json", dict[str, Any]()

    def part(name: str, recipe: str, flags: str, folder: Path) -> None:
        began = time.monotonic()
        code = run(recipe, f"{flags} --output_dir {folder}", end - began, options.out / "train.log")
        results[name] = {"code": code, "seconds": round(time.monotonic() - began, 1)}
        if (folder / RESULTS).is_file():
            found = json.loads((folder / RESULTS).read_text())
            results[name] |= {key: found[key] for key in ("metrics", "train", "hardware") if key in found}
        path.write_text(json.dumps(results, indent=1) + "\n")
        print(f"{name}: exit code {code} after {results[name]['seconds']} s", flush=True)

    model = options.work / "model"
    if not (model / RESULTS).is_file():
        resume = "--resume_from_checkpoint latest" if list(model.glob("checkpoints/step-*")) else ""
        flags = f"{TOY_MODEL if options.toy else MODEL} {options.flags} {resume}"
        part("pretraining", "run_pretraining", f"--corpus {options.corpus} {flags}", model)
    if (model / RESULTS).is_file():
        bring_back(model, options.out)
        for task, flags in (TOY_TASKS if options.toy else TASKS).items():
            if end > time.monotonic() and not (options.work / task / RESULTS).is_file():
                given = f"--task_name {task} --data_dir {options.data_dir} --model_name_or_path {model} --do_train"
                part(task, "run_glue", f"{given} --do_eval --overwrite_output_dir {flags}", options.work / task)
    return path


def run(recipe: str, flags: str, seconds: float, log: Path) -> int:
    """Runs a recipe; at the end of its time it gets TERM, which writes a checkpoint."""
    with log.open("a") as file:
        command = [sys.executable, "-u", f"recipes/{recipe}.py", *flags.split()]
        process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file)
        try:
            return process.wait(max(1.0, seconds - SECONDS_TO_STOP))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
        try:
            return process.wait(SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def bring_back(model: Path, out: Path) -> None:
    """Copies a published folder, its weights in bfloat16 and in pieces."""
    import torch
    from safetensors.torch import load_file, save

    tensors = load_file(model / "model.safetensors")
    data = save({name: value.to(torch.bfloat16) for name, value in tensors.items()}, {"format": "pt"})
    for number, start in enumerate(range(0, len(data), PIECE)):
        (out / f"model.safetensors.{number:02d}").write_bytes(data[start : start + PIECE])
    with tarfile.open(out / "model.tar.gz", "w:gz") as archive:
        for path in model.iterdir():
            if path.is_file() and path.suffix != ".safetensors":
                archive.add(path, path.name)


if __name__ == "__main__":
    main()
