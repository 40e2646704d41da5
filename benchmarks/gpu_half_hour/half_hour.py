"""One command of the half hour on a machine with a GPU; see README.md beside this.

    python benchmarks/gpu_half_hour/half_hour.py measure_1 --out results

A command is a list of parts, each a process of its own with a limit in seconds. After every part OUT/COMMAND.json is
written again, so that a cut costs one part. A part that would not fit into what is left is not begun. What training
needs from one command to the next lies in --work, which stays while the machine does.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bert_repro.training import training_log
from bert_repro.utils.files import CHECKPOINTS, RESULTS, TRAIN_LOG, write_json
from gpu_half_hour import carry, weights

ROOT = Path(__file__).resolve().parents[2]
SECONDS_TO_STOP = 60  # from TERM to KILL: a checkpoint is written in between
SECONDS_AT_THE_END = 20  # kept free to write and close everything
LEARNING_RATES = {1: 1e-3, 2: 5e-4}  # of the trials in train_1 and train_2
SHARE_OF_SPEED = 0.95  # that the schedule counts on: the rest is evaluation, checkpoints, the next sample index
TRIAL_STEPS = 4_000
NEWEST_ROWS = 20


@dataclass(frozen=True)
class Size:
    """What is trained, and how long things take.

    Args:
        flags: shape of the model and of the batch, for recipes/run_pretraining.py.
        trial_steps: of a trial.
        trial_seconds: most that a trial may take.
        finetuning: tasks, their flags and most seconds.
        reserve: seconds of train_4 kept for the weights and fine-tuning.
    """

    flags: str
    trial_steps: int
    trial_seconds: int
    finetuning: tuple[tuple[str, str, int], ...]
    reserve: int


REAL = Size(
    "--num_hidden_layers 8 --hidden_size 512 --num_attention_heads 8 --max_seq_length 128 --train_batch_size 256 "
    "--mixed_precision bf16 --bias_correction true --warmup_ratio 0.05 --dataloader_num_workers 12 --logging_steps 50 "
    "--max_eval_sequences 4096 --per_device_eval_batch_size 256",
    TRIAL_STEPS,
    180,
    (
        ("MRPC", "--num_train_epochs 4 --learning_rate 1e-4", 60),
        ("SST-2", "--num_train_epochs 2 --learning_rate 1e-4", 110),
        ("MNLI", "--num_train_epochs 3 --learning_rate 1e-4", 110),
    ),
    300,
)
TOY = Size(
    "--num_hidden_layers 2 --hidden_size 32 --num_attention_heads 2 --max_seq_length 32 --train_batch_size 8 "
    "--mixed_precision bf16 --bias_correction true --warmup_ratio 0.05 --dataloader_num_workers 0 --logging_steps 5 "
    "--max_eval_sequences 32",
    20,
    60,
    tuple((task, "--max_steps 3 --max_eval_samples 20", 120) for task in ("MRPC", "SST-2", "MNLI")),
    30,
)


class Command:
    """A command under way: its parts, what is left of its time, and its results.

    Args:
        name: `measure_1` ... `train_4`.
        options: of the command line.
    """

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self.out, self.work, self.toy = name, options.out, options.work, options.toy
        self.carried, self.size = options.carried, TOY if options.toy else REAL
        self.device = "cpu" if options.toy else "cuda"
        self._end = time.monotonic() + 60 * options.minutes
        self.results: dict[str, Any] = {"command": name, "toy": self.toy, "began": time.strftime("%F %T"), "parts": []}
        self.out.mkdir(parents=True, exist_ok=True)
        self.work.mkdir(parents=True, exist_ok=True)

    @property
    def left(self) -> float:
        """Seconds that parts may still take."""
        return self._end - time.monotonic() - SECONDS_AT_THE_END

    def part(
        self,
        name: str,
        arguments: Sequence[str],
        limit: float,
        read: Callable[[str], Any] = lambda output: None,
        *,
        at_least: float = 0,
    ) -> dict[str, Any]:
        """Runs a part in a process of its own and writes what is known by then.

        Args:
            name: of the part.
            arguments: of Python.
            limit: seconds; then the part gets TERM, and a minute to save what it has.
            read: makes results of its standard output; called even where the part failed.
            at_least: seconds without which it is not begun.
        """
        found: dict[str, Any] = {"part": name, "arguments": " ".join(arguments)}
        self.results["parts"].append(found)
        began, limit = time.monotonic(), min(limit, self.left)
        if limit <= at_least:
            found["outcome"] = f"not begun: {self.left:.0f} s were left"
        else:
            print(f"== {self.name}, {name}: at most {limit:.0f} s", flush=True)
            output, code = self._run(arguments, limit)
            found["outcome"] = "done" if code == 0 else f"exit code {code}"
            found["seconds"] = round(time.monotonic() - began, 1)
            found["end of output"] = output.splitlines()[-15:]
            try:
                found["results"] = read(output)
            except Exception as error:  # what a part has left may be anything; the next part counts too
                found["results"] = f"not read: {type(error).__name__}: {error}"
            print(f"== {name}: {found['outcome']} after {found['seconds']} s", flush=True)
        self.write()
        return found

    def step(self, name: str, run: Callable[[], Any]) -> Any:
        """Runs a function as a part, in this process."""
        found: dict[str, Any] = {"part": name}
        self.results["parts"].append(found)
        began = time.monotonic()
        try:
            found["results"], found["outcome"] = run(), "done"
        except Exception as error:
            found["outcome"] = f"{type(error).__name__}: {error}"
        found["seconds"] = round(time.monotonic() - began, 1)
        print(f"== {name}: {found['outcome']} after {found['seconds']} s", flush=True)
        self.write()
        return found.get("results")

    def write(self) -> None:
        """Writes all that is known into OUT/COMMAND.json."""
        write_json(self.out / f"{self.name}.json", self.results)

    def _run(self, arguments: Sequence[str], limit: float) -> tuple[str, int]:
        with (self.out / f"{self.name}.log").open("a", encoding="utf-8") as log:
            log.write(f"\n== {' '.join(arguments)}\n")
            log.flush()
            begin = log.tell()
            process = subprocess.Popen(
                [sys.executable, "-u", *arguments], cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGTERM)
                try:
                    code = process.wait(SECONDS_TO_STOP)
                except subprocess.TimeoutExpired:
                    code = -signal.SIGKILL
            _end_session(process.pid)  # a part's own processes, which may hold the GPU
            process.wait()
        with (self.out / f"{self.name}.log").open(encoding="utf-8", errors="replace") as log:
            log.seek(begin)
            return log.read(), code


def _end_session(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def rate(command: Command, part: str, limit: float) -> None:
    """Runs a part of rates.py."""
    toy = ["--toy"] if command.toy else []
    arguments = ["benchmarks/gpu_half_hour/rates.py", part, "--device", command.device, *toy]
    command.part(part, arguments, limit, lambda output: json.loads(_last_json(output)))


def bench(command: Command, name: str, script: str, flags: str, toy_flags: str, limit: float) -> None:
    """Runs a side-by-side benchmark; its results file becomes part of this command's."""
    folder = command.work / "benchmarks" / name
    flags = toy_flags if command.toy else f"{flags} --device cuda"
    arguments = [f"benchmarks/{script}.py", *flags.split(), "--results", str(folder)]

    def read(_: str) -> Any:
        return [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]

    command.part(name, arguments, limit, read)


PRETRAINING_TOY = "--models 2/32 --lengths 32 --tokens 128 --steps 1 --repeats 1 --threads 1 --no-attribution"


def measure_1(command: Command) -> None:
    """The GPU tests; base at S=128 against tuned and compiled transformers."""
    rate(command, "machine", 60)
    collect = ["--collect-only"] if command.toy else []
    command.part("gpu tests", ["-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", *collect], 200)
    flags = "--models base --no-attribution --no-documented"
    bench(command, "base at S=128", "pretraining_step", flags, PRETRAINING_TOY, 300)


def measure_2(command: Command) -> None:
    """4/512 at S=128, fine-tuning at MRPC's lengths, base at S=512."""
    flags = "--no-attribution --no-documented"
    bench(command, "4/512 at S=128", "pretraining_step", f"--models 4/512 {flags}", PRETRAINING_TOY, 160)
    toy = "--tasks mrpc --layers 2 --hidden 32 --batch 4 --repeats 1 --threads 1"
    bench(command, "fine-tuning", "finetuning_step", "--tasks mrpc --steps 50", toy, 100)
    bench(command, "base at S=512", "pretraining_step", f"--models base --lengths 512 {flags}", PRETRAINING_TOY, 280)


def measure_3(command: Command) -> None:
    """Rates of the device, a profile, one pass against four, and what each optimization gives."""
    for part, limit in (("copies", 30), ("products", 60), ("attention", 45), ("profile", 120), ("passes", 160)):
        rate(command, part, limit)
    flags = "--models base --no-documented --repeats 3"
    toy = PRETRAINING_TOY.replace(" --no-attribution", "")
    bench(command, "attribution", "pretraining_step", flags, toy, 240)


def train_1(command: Command) -> None:
    """Unpacks the first piece and tries the first learning rate on it."""
    trial(command, 1)


def train_2(command: Command) -> None:
    """Takes the second piece along and tries the second learning rate on the first."""
    trial(command, 2)


def trial(command: Command, number: int) -> None:
    """Keeps a piece of the corpus, and trains on the first one for a few minutes."""
    keep_piece(command, number)
    corpus = command.work / "corpus-1"
    if number == 1:
        command.step("unpack", lambda: carry.unpack([command.work / "piece-1"], corpus))
    value, folder = LEARNING_RATES[number], command.work / f"trial-{number}"
    flags = f"--max_steps {command.size.trial_steps} --learning_rate {value} --overwrite_output_dir"
    pretrain(command, f"trial at {value:g}", corpus, folder, flags, command.size.trial_seconds)


def train_3(command: Command) -> None:
    """Joins the corpus, chooses learning rate and steps by the trials, and trains until the time is up."""
    keep_piece(command, 3)
    pieces = [command.work / f"piece-{number}" for number in (1, 2, 3)]
    command.step("unpack", lambda: carry.unpack([piece for piece in pieces if piece.is_dir()], command.work / "corpus"))
    seconds = 2 * command.left - command.size.reserve
    chosen = command.step("choose", lambda: choose(command, seconds))
    flags = f"--max_steps {chosen['steps']} --learning_rate {chosen['learning_rate']}"
    (command.work / "flags").write_text(flags, "utf-8")
    flags, limit = flags + " --overwrite_output_dir", command.left - SECONDS_TO_STOP
    pretrain(command, "training", command.work / "corpus", command.work / "main", flags, limit)


def train_4(command: Command) -> None:
    """Trains to the end, brings the weights back, and fine-tunes."""
    flags = (command.work / "flags").read_text("utf-8") + " --resume_from_checkpoint latest"
    model = command.work / "main"
    limit = command.left - command.size.reserve - SECONDS_TO_STOP
    if not (model / RESULTS).is_file():
        pretrain(command, "training", command.work / "corpus", model, flags, limit)
    if not (model / RESULTS).is_file():  # the schedule was too long: what there is, is a checkpoint
        steps = sorted((model / CHECKPOINTS).glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))
        model = steps[-1]
    command.step("weights", lambda: weights.split(model, command.out))
    for task, flags, limit in command.size.finetuning:
        finetune(command, model, task, flags, limit)


def keep_piece(command: Command, number: int) -> None:
    """Copies a piece of the corpus to where the next command finds it."""
    piece = f"piece-{number}"
    command.step(
        "keep " + piece,
        lambda: str(shutil.copytree(command.carried / piece, command.work / piece, dirs_exist_ok=True).name),
    )


def pretrain(command: Command, name: str, corpus: Path, folder: Path, flags: str, limit: float) -> None:
    """Pre-trains until done, or until the limit with a checkpoint."""
    given = f"--corpus {corpus} --output_dir {folder} {command.size.flags} {flags} --save_total_limit 1"
    command.part(name, ["recipes/run_pretraining.py", *given.split()], limit, lambda _: trained(folder))


def finetune(command: Command, model: Path, task: str, flags: str, limit: float) -> None:
    """Fine-tunes and scores one task."""
    folder = command.work / f"task-{task}"
    given = f"--model_name_or_path {model} --task_name {task.lower().replace('-', '')} --do_train --do_eval"
    given += f" --data_dir {command.carried / 'tasks'} --output_dir {folder} --overwrite_output_dir"
    given += f" --mixed_precision bf16 {flags}"

    def read(_: str) -> Any:
        results = json.loads((folder / RESULTS).read_text("utf-8"))
        return {name: results[name] for name in ("splits", "train", "wall_time_seconds", "hardware")}

    command.part(task, ["recipes/run_glue.py", *given.split()], limit, read, at_least=0.3 * limit)


def trained(folder: Path) -> dict[str, Any]:
    """What a pre-training left: its log, thinned, its speed after compiling, and its results where it finished."""
    rows = training_log.read(folder / TRAIN_LOG)
    losses = [row for row in rows if "loss" in row]
    found: dict[str, Any] = {"tokens_per_second": speed(losses), "log": losses[:: max(1, len(losses) // 200)]}
    found["evaluations"] = [row for row in rows if any(name.startswith("eval_") for name in row)]
    found["last"] = losses[-1] if losses else None
    if (folder / RESULTS).is_file():
        results = json.loads((folder / RESULTS).read_text("utf-8"))
        found["results"] = {name: results[name] for name in ("metrics", "train", "wall_time_seconds", "mlm_breakdown")}
    return found


def speed(rows: list[dict[str, Any]]) -> float | None:
    """Tokens a second, the median of the later half of a log."""
    return statistics.median(row["tokens_per_second"] for row in rows[len(rows) // 2 :]) if rows else None


def choose(command: Command, seconds: float) -> dict[str, Any]:
    """Chooses the learning rate whose trial had the lower MLM loss, and the steps that fit into the time.

    The losses are means over the last rows that both trials have.
    """
    logs = {
        LEARNING_RATES[number]: [
            row for row in training_log.read(command.work / f"trial-{number}" / TRAIN_LOG) if "loss" in row
        ]
        for number in LEARNING_RATES
    }
    logs = {value: rows for value, rows in logs.items() if rows}
    if not logs:
        raise RuntimeError("no trial left a log: run train_1 and train_2 first, on this machine")
    last = min(rows[-1]["step"] for rows in logs.values())
    losses = {
        value: statistics.fmean(row["mlm_loss"] for row in [row for row in rows if row["step"] <= last][-NEWEST_ROWS:])
        for value, rows in logs.items()
    }
    best = min(losses, key=lambda value: losses[value])
    rows = logs[best]
    tokens_per_step = rows[-1]["tokens"] / rows[-1]["step"]
    tokens_per_second = speed(rows)
    assert tokens_per_second is not None
    steps = max(1, int(SHARE_OF_SPEED * seconds * tokens_per_second / tokens_per_step))
    steps = min(steps, command.size.trial_steps) if command.toy else steps
    return {
        "mlm_loss": {f"{value:g}": loss for value, loss in losses.items()}, "at step": last, "learning_rate": best,
        "tokens_per_second": tokens_per_second, "tokens_per_step": tokens_per_step, "seconds": seconds, "steps": steps,
    }  # fmt: skip


def _last_json(output: str) -> str:
    return next(line for line in reversed(output.splitlines()) if line.startswith(("{", "[")))


COMMANDS: dict[str, Callable[[Command], None]] = {
    command.__name__: command for command in (measure_1, measure_2, measure_3, train_1, train_2, train_3, train_4)
}


def main(arguments: list[str] | None = None) -> Path:
    """Runs one command; returns its results file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=list(COMMANDS))
    parser.add_argument("--out", type=Path, required=True, help="folder that comes back")
    parser.add_argument("--work", type=Path, default=Path("/tmp/gpu_half_hour"), help="kept between the commands")
    parser.add_argument("--carried", type=Path, default=ROOT / "carried", help="what carry.py made")
    parser.add_argument("--minutes", type=float, default=9.3, help="of the command; ten are the machine's limit")
    parser.add_argument("--toy", action="store_true", help="the same on a CPU, at a size for rehearsals")
    options = parser.parse_args(arguments)
    options.out, options.work, options.carried = (
        path.resolve() for path in (options.out, options.work, options.carried)
    )
    command = Command(options.command, options)
    try:
        COMMANDS[options.command](command)
    finally:
        command.results["ended"] = time.strftime("%F %T")
        command.write()
    return command.out / f"{command.name}.json"


if __name__ == "__main__":
    main()
