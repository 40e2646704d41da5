"""What a continued checkpoint is given: longer inputs, new words; and runs with little memory or little time."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from errors import user_error
from running import SHORT, TINY, TORCHRUN, launch, recipe, results
from tiny_models import save_model
from toy import ToyConfig, make_trainer
from transformers import AutoModelForPreTraining, AutoTokenizer, BertTokenizer

from bert_repro.configs import Phase, PretrainingConfig
from bert_repro.models.loading import load_tokenizer
from bert_repro.pretraining.positions import rotated
from bert_repro.pretraining.schedule import resolve_phases
from bert_repro.training.trainer import Trainer
from bert_repro.training.training_log import TrainingLog

HELPERS = Path(__file__).parents[1] / "helpers"
SHAPE = "--num_hidden_layers 2 --hidden_size 32 --num_attention_heads 2 --logging_steps 1"
OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB"


def test_a_rotation_continues_rows_that_turn() -> None:
    angles = torch.arange(60, dtype=torch.float64)
    circles = torch.stack([f(angles * turn) for turn in (math.pi / 10, math.pi / 4) for f in (torch.cos, torch.sin)], 1)
    basis = torch.linalg.qr(torch.randn(16, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0]
    rows = circles @ basis.T + 3
    torch.testing.assert_close(rotated(rows[:40], 20, 4), rows[40:], rtol=0, atol=1e-6)
    assert rotated(rows, 0, 4).shape == (0, 16)


def test_a_checkpoint_reads_longer_inputs_and_resumes_with_them(world: Any, pretrained: Path, tmp_path: Path) -> None:
    common = [
        TINY.replace("--max_seq_length 64", "--max_seq_length 96"),
        "--corpus", world.corpus, "--model_name_or_path", pretrained, "--max_steps 4 --save_steps 2",
    ]  # fmt: skip
    assert recipe("run_pretraining", *common, "--output_dir", tmp_path / "whole") == 0
    extended = results(tmp_path / "whole")["train"]["extended_positions"]
    assert (extended["from"], extended["to"]) == (64, 96) and "rotated in" in extended["done"]
    assert extended["before"]["64"] == extended["after"]["64"]
    assert AutoTokenizer.from_pretrained(tmp_path / "whole").model_max_length == 96
    step = tmp_path / "whole" / "checkpoints" / "step-2"
    assert recipe("run_pretraining", *common, "--output_dir", tmp_path / "again", "--resume_from_checkpoint", step) == 0
    models = [AutoModelForPreTraining.from_pretrained(tmp_path / name) for name in ("whole", "again")]
    assert all(torch.equal(a, b) for a, b in zip(*(model.parameters() for model in models), strict=True))


def test_the_decoder_stays_tied_where_a_device_gives_modules_parameters_of_their_own(
    world: Any, pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = [TINY, "--corpus", world.corpus, "--model_name_or_path", pretrained, "--max_steps 2"]
    assert recipe("run_pretraining", *common, "--output_dir", tmp_path / "usual") == 0
    give_own, prepare = torch.__future__.set_overwrite_module_params_on_conversion, Accelerator.prepare_model

    def prepared(accelerator: Accelerator, model: Any) -> Any:
        give_own(False)  # Accelerate ties again what it moves to XLA
        return prepare(accelerator, model)

    monkeypatch.setattr(Accelerator, "prepare_model", prepared)
    give_own(True)
    assert recipe("run_pretraining", *common, "--output_dir", tmp_path / "own") == 0
    models = [AutoModelForPreTraining.from_pretrained(tmp_path / name) for name in ("usual", "own")]
    assert all(torch.equal(a, b) for a, b in zip(*(model.parameters() for model in models), strict=True))


def test_beyond_the_positions_of_the_model(world: Any, tmp_path: Path) -> None:
    start = save_model(world, tmp_path / "start", "ForPreTraining", max_position_embeddings=48)
    common = [SHORT, "--corpus", world.corpus, "--model_name_or_path", start, "--max_steps 1"]
    assert recipe("run_pretraining", *common, "--output_dir", tmp_path / "no", "--extend_positions none") == 2
    assert recipe("run_pretraining", *common, "--output_dir", tmp_path / "yes", "--extend_positions tile") == 0
    rows = AutoModelForPreTraining.from_pretrained(tmp_path / "yes").bert.embeddings.position_embeddings.weight
    assert len(rows) == 64


def test_words_are_appended_and_begin_as_the_mean_of_their_pieces(world: Any, pretrained: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    sentence = "The quagga ran over the {}. A quagga slept near the green river."
    text.write_text("\n\n".join(sentence.format("stone " * (1 + number)) for number in range(40)))
    folder = tmp_path / "tokenizer"
    arguments = f"--extend {pretrained} --new_tokens 2 --input_files {text} --text_passages_only false"
    assert recipe("train_tokenizer", arguments, "--output_dir", folder) == 0
    old, new = load_tokenizer(pretrained), load_tokenizer(folder)
    assert len(new) == len(old) + 2 and {"quagga"} <= set(new.get_vocab()) - set(old.get_vocab())
    assert new.tokenize("quagga") == ["quagga"] and new.tokenize("green river") == old.tokenize("green river")
    for other in (AutoTokenizer.from_pretrained(folder), BertTokenizer.from_pretrained(folder)):
        assert other("the quagga runs")["input_ids"] == new("the quagga runs")["input_ids"]
    corpus = f"--input_files {text} --tokenizer {folder} --text_passages_only false --output_dir {tmp_path / 'corpus'}"
    assert recipe("prepare_corpus", corpus) == 0
    arguments = f"--corpus {tmp_path / 'corpus'} --model_name_or_path {pretrained} --max_steps 1 --learning_rate 1e-12"
    arguments += " --next_sentence_prediction false --train_batch_size 4 --heldout_fraction 0.3 --max_seq_length 32"
    assert recipe("run_pretraining", arguments, "--output_dir", tmp_path / "run") == 0
    found = results(tmp_path / "run")
    assert found["baselines"]["the model before"]["mlm_loss"] == pytest.approx(found["metrics"]["mlm_loss"], abs=1e-6)
    before, after = map(AutoModelForPreTraining.from_pretrained, (pretrained, tmp_path / "run"))
    pieces, number = old("quagga", add_special_tokens=False)["input_ids"], new.get_vocab()["quagga"]
    for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"):
        expected = before.state_dict()[name][pieces].mean(0)
        torch.testing.assert_close(after.state_dict()[name][number], expected, rtol=0, atol=1e-6)

    added = AutoTokenizer.from_pretrained(pretrained)
    added.add_tokens(["quagga"])
    added.save_pretrained(tmp_path / "added")
    assert recipe("prepare_corpus", corpus.replace(str(folder), str(tmp_path / "added")), "--overwrite_output_dir") == 2


@pytest.mark.parametrize("stage", ["forward", "backward", "later", "always"])
def test_out_of_memory_makes_the_same_step_in_smaller_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    expected = make_trainer(ToyConfig(output_dir=str(tmp_path / "enough"), max_steps=6, dropout=0.0))
    expected.train()
    backward, sizes = Trainer._backward, []

    def limited(self: Trainer, step: Any, micro_batch: Any) -> Any:
        size = len(micro_batch.inputs["rows"])
        sizes.append(size)
        if stage == "always" or (size > 2 and self.state.step >= (3 if stage == "later" else 0)):
            if stage == "backward":  # some gradients are there already
                backward(self, step, micro_batch)
            raise RuntimeError(OUT_OF_MEMORY)
        return backward(self, step, micro_batch)

    monkeypatch.setattr(Trainer, "_backward", limited)
    trainer = make_trainer(ToyConfig(output_dir=str(tmp_path / "little"), max_steps=6, dropout=0.0))
    if stage == "always":
        with user_error("--gradient_checkpointing", setting="per_device_train_batch_size"):
            trainer.train()
        return
    trainer.train()
    assert trainer.micro_batch_splits == 4 and max(sizes[-4:]) == 2
    for left, right in zip(trainer.model.parameters(), expected.model.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_several_processes_agree_on_a_micro_batch_before_the_first_step(tmp_path: Path) -> None:
    script = tmp_path / "limited.py"
    script.write_text(
        "import sys, os; sys.path.insert(0, os.environ['HELPERS'])\n"
        "import torch, toy\n"
        "from bert_repro.training.trainer import Trainer\n"
        "backward = Trainer._backward\n"
        "def limited(self, step, micro_batch):\n"
        "    if self.accelerator.process_index == 1 and len(micro_batch.inputs['rows']) > 2:\n"
        f"        raise RuntimeError({OUT_OF_MEMORY!r})\n"
        "    return backward(self, step, micro_batch)\n"
        "Trainer._backward = limited\n"
        "trainer = toy.make_trainer(toy.ToyConfig(output_dir=sys.argv[1], max_steps=4, dropout=0.0))\n"
        "trainer.train()\n"
        "assert trainer.micro_batch_splits == 2, trainer.micro_batch_splits\n"
    )
    launch(TORCHRUN, script, tmp_path / "run", HELPERS=str(HELPERS))


# A tenth of a second for each step, and from a step on, early or when the second phase has begun, more.
@pytest.mark.parametrize(
    ("slower", "steps_that_fit"), [(lambda step: 2 * step - 5, 39), (lambda step: 3 * step - 80, 51)]
)
def test_a_run_that_becomes_slower_ends_in_its_time_at_a_learning_rate_of_zero(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slower: Any, steps_that_fit: int
) -> None:
    steps, log_step = 0, TrainingLog.step

    def count(self: TrainingLog, *row: Any) -> None:
        nonlocal steps
        steps += 1
        log_step(self, *row)

    monkeypatch.setattr(TrainingLog, "step", count)
    monkeypatch.setattr(TrainingLog, "seconds", lambda self: 0.1 * max(steps, slower(steps)))
    (tmp_path / "phases.yaml").write_text("phases:\n" + "- {max_seq_length: 64, steps: 9, batch: 16}\n" * 2)
    arguments = ["--config", tmp_path / "phases.yaml", "--corpus", world.corpus, "--max_train_hours 0.002", SHAPE]
    assert recipe("run_pretraining", *arguments, "--warmup_steps 2 --output_dir", tmp_path / "run") == 0
    first, second = (phase["steps"] for phase in results(tmp_path / "run")["train"]["phases"])
    assert first + second == pytest.approx(steps_that_fit, abs=2) and (first > 24 or abs(first - second) <= 3)
    rows = [json.loads(line) for line in (tmp_path / "run" / "train_log.jsonl").open()]
    rates = [row["learning_rate"] for row in rows if "learning_rate" in row]
    assert rates[-1] < 0.1 * max(rates)


def test_phases_share_the_steps_that_are_asked_for() -> None:
    config = PretrainingConfig(corpus="c", phases=(Phase(32, 90, 8), Phase(128, 10, 8)), max_steps=60)
    assert [phase.steps for phase in resolve_phases(config, 1)] == [54, 6]
    with user_error("--max_steps 1", setting="max_steps"):
        resolve_phases(PretrainingConfig(corpus="c", phases=config.phases, max_steps=1), 1)
