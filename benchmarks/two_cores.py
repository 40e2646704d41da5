"""Every speed that is quoted for a CPU of two cores, by one command, with nothing else running: some twenty minutes.

    python benchmarks/two_cores.py

Pre-training of 4/512 and base at 128 tokens with the share of every optimization, 4/512 at 512 tokens, fine-tuning at
the lengths of MRPC and SQuAD: against tuned and compiled transformers, with and without its freed memory kept; five
repeats, medians and ranges. Each part writes its own results after every case, so that a cut costs the present case.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PRETRAINING = ["pretraining_step.py", "--steps", "1", "--compiled"]
PARTS = (
    [*PRETRAINING, "--models", "4/512", "base", "--name=-two-cores"],
    [*PRETRAINING, "--models", "4/512", "--lengths", "512", "--no-attribution", "--name=-two-cores-s512"],
    ["finetuning_step.py", "--name=-two-cores"],
)
MOST_LOAD = 0.5


def main(arguments: list[str] | None = None) -> None:
    """Runs the parts one after another.

    Raises:
        SystemExit: other work is running, or a part failed.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", action="store_true", help="measure although other work is running")
    parser.add_argument("--parts", nargs="+", type=int, default=[1, 2, 3], help="of three, in this order")
    parser.add_argument("more", nargs="*", help="for every part, behind --, as in: -- --repeats 1 --results /tmp/seen")
    options = parser.parse_args(arguments)
    load = os.getloadavg()[0]
    if load > MOST_LOAD and not options.shared:
        sys.exit(f"other work is running (load average {load:.1f}): stop it and wait a minute, or give --shared")
    for part in options.parts:
        began = time.monotonic()
        command = [*PARTS[part - 1], *options.more]
        print(f"== part {part}: {' '.join(command)}", flush=True)
        subprocess.run([sys.executable, FOLDER / command[0], *command[1:]], check=True)
        print(f"== part {part}: {(time.monotonic() - began) / 60:.1f} minutes", flush=True)


if __name__ == "__main__":
    main()
