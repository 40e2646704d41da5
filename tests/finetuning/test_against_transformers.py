"""Settings that transformers' users know: losses of each step equal those of a plain transformers loop."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from running import recipe
from sklearn.utils.class_weight import compute_class_weight
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup
from transformers.trainer_pt_utils import LabelSmoother

LABELS = ("cold", "mild", "warm")
TEXTS = ["snow and ice", "a cold wind", "frost", "rain and wind", "clouds", "a warm day", "sun and heat", "the sun"]
OF_TEXT = [0, 0, 0, 0, 1, 1, 2, 2]
SEVERAL = [[0], [0, 1], [0], [0, 1], [1], [1, 2], [2], []]
STEPS, RATE = 4, 1e-2

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def weighted(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    weights = compute_class_weight("balanced", classes=np.arange(3), y=labels.numpy())
    return torch.nn.functional.cross_entropy(logits, labels, weight=torch.tensor(weights, dtype=torch.float32))


def smoothed(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return LabelSmoother(0.2)({"logits": logits}, labels)


def loop(model: BertForSequenceClassification, inputs: dict, loss_of: Loss, decay: float) -> list[float]:
    """Losses of full-batch steps of AdamW; each layer learns at `decay` of the one above."""
    depth = {"embeddings": 0, "layer.0.": 1, "layer.1.": 2}
    groups = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            below = 3 - next((number for part, number in depth.items() if part in name), 3)
            plain = name.endswith("bias") or "LayerNorm" in name
            groups.append({"params": [parameter], "lr": RATE * decay**below, "weight_decay": 0.0 if plain else 0.01})
    optimizer = torch.optim.AdamW(groups, eps=1e-6)
    schedule = get_linear_schedule_with_warmup(optimizer, 0, STEPS)
    losses = []
    for _ in range(STEPS):
        labels = inputs["labels"]
        loss = loss_of(model(**{name: value for name, value in inputs.items() if name != "labels"}).logits, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("flags", "loss_of", "frozen", "decay"),
    [
        ("--multi_label", torch.nn.functional.binary_cross_entropy_with_logits, (), 1.0),
        ("--class_weights balanced", weighted, (), 1.0),
        ("--label_smoothing 0.2", smoothed, (), 1.0),
        ("--freeze_layers 1", torch.nn.functional.cross_entropy, ("embeddings", "layer.0."), 1.0),
        ("--layerwise_lr_decay 0.5", torch.nn.functional.cross_entropy, (), 0.5),
        ("--hidden_dropout_prob 0 --attention_probs_dropout_prob 0", torch.nn.functional.cross_entropy, (), 1.0),
    ],
    ids=lambda value: value.split()[0].strip("-") if isinstance(value, str) else "",
)
def test_losses_equal_those_of_a_transformers_loop(world, tmp_path, flags, loss_of, frozen, decay):
    tokenizer = AutoTokenizer.from_pretrained(world.tokenizer)
    several = flags == "--multi_label"
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, id2label=dict(enumerate(LABELS)),
        problem_type="multi_label_classification" if several else "single_label_classification",
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    torch.nn.init.normal_(model.classifier.weight)  # logits so far apart that the kind of loss matters
    if "dropout" in flags:
        model.config.update({"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.5})  # the flags win
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    names = [[LABELS[label] for label in labels] for labels in SEVERAL] if several else [LABELS[i] for i in OF_TEXT]
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, names, strict=True)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = f"--model_name_or_path {tmp_path / 'model'} --train_file {tmp_path / 'train.jsonl'} {flags}"
    command += f" --learning_rate {RATE} --max_steps {STEPS} --train_batch_size 8 --bias_correction true"
    assert recipe("run_glue", command, "--warmup_ratio 0 --output_dir", tmp_path / "run") == 0

    for name, parameter in model.named_parameters():
        parameter.requires_grad = not any(part in name for part in frozen)
    labels = torch.tensor([[float(i in given) for i in range(3)] for given in SEVERAL] if several else OF_TEXT)
    expected = loop(model, {**tokenizer(TEXTS, padding=True, return_tensors="pt"), "labels": labels}, loss_of, decay)
    log = [json.loads(line) for line in (Path(tmp_path) / "run" / "train_log.jsonl").read_text().splitlines()]
    assert [row["loss"] for row in log] == pytest.approx(expected, rel=2e-5)
    assert abs(expected[-1] - expected[0]) > 0.01, "the weights moved"
