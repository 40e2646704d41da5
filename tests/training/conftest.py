import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # toy.py, also run as a script in processes of its own

from running import TINY, recipe


@pytest.fixture(scope="session")
def pretrained(world: Any) -> Path:
    folder: Path = world.root / "pretrained"
    code = recipe(
        "run_pretraining", TINY, "--corpus", world.corpus, "--output_dir", folder,
        "--max_steps 60 --save_steps 20 --eval_steps 30 --save_total_limit 3 --report_to tensorboard",
    )  # fmt: skip
    assert code == 0
    return folder


@pytest.fixture(scope="session")
def finetuned(world: Any, pretrained: Path) -> Path:
    folder: Path = world.root / "finetuned"
    code = recipe(
        "run_glue", "--task_name sst2 --model_name_or_path", pretrained,
        "--data_dir", world.glue, "--output_dir", folder,
        "--do_train --do_eval --do_predict --num_train_epochs 60 --train_batch_size 16 --learning_rate 2e-3",
        # Without it 64 examples are too few for this width, as with stock BERT: the loss stays at ln 2.
        "--bias_correction true",
    )  # fmt: skip
    assert code == 0
    return folder
