"""Our side of `make test-tensorflow`: what original_environment.py wrote is converted and compared.

    python tests/conversion/compare_with_original.py FOLDER

Prints the numbers of docs/LOG.md; ends with an assertion where one is not what is promised.
"""

import sys
from pathlib import Path

import numpy as np
import torch

import bert_repro
from bert_repro.configs import ConversionConfig, OptimizerConfig
from bert_repro.conversion.convert import convert_checkpoint
from bert_repro.training.optimizer import accurate_norm, build_optimizer, learning_rate, set_learning_rate

TOLERANCE = 1e-5
INPUTS = {"input_ids": "input_ids", "attention_mask": "input_mask", "token_type_ids": "segment_ids"}
CLASSES = {"pretraining": "PreTraining", "classifier": "SequenceClassification", "squad": "QuestionAnswering"}


def convert(folder: Path) -> Path:
    """The checkpoint of the original as a published folder."""
    name = folder.name
    options = {"gelu": name.split("_")[1], "do_lower_case": name.startswith("uncased"), "overwrite_output_dir": True}
    published = folder / "published"
    convert_checkpoint(ConversionConfig(checkpoint=str(folder), output_dir=str(published), **options))
    return published


def difference(folder: Path, published: Path) -> float:
    """The largest difference between TensorFlow's outputs and those of the published folder."""
    expected = np.load(folder / "expected.npz")
    head = CLASSES.get(folder.name.split("_")[2], "PreTraining")
    model = getattr(bert_repro, f"BertReproFor{head}").from_pretrained(published).eval()
    given = {ours: torch.from_numpy(expected[theirs]).long() for ours, theirs in INPUTS.items()}
    with torch.no_grad():
        outputs, hidden = model(**given), model.base_model(**given)
    found = {name: outputs[name] for name in expected.files if name.endswith("logits")}
    if head == "PreTraining":
        places = torch.from_numpy(expected["positions"]).long()
        rows = torch.arange(len(places))[:, None]
        masked = outputs.prediction_logits[rows, places].log_softmax(-1).flatten(0, 1)
        found = {"hidden": hidden[0], "pooled": hidden[1], "masked_log_probs": masked,
                 "next_log_probs": outputs.seq_relationship_logits.log_softmax(-1)}  # fmt: skip
    real = given["attention_mask"].bool()
    worst = 0.0
    for name, values in found.items():
        left, right = values.numpy(), expected[name]
        if left.shape[:2] == real.shape:
            left, right = left[real.numpy()], right[real.numpy()]
        worst = max(worst, float(np.abs(left - right).max()))
    return worst


def optimizer_difference(path: Path) -> float:
    """The largest difference of parameters over five steps of the original optimizer, with its schedule."""
    data = np.load(path)
    model = torch.nn.Module()
    shown = {key.split("|")[1]: torch.nn.Parameter(torch.from_numpy(data[key])) for key in data.files if "start" in key}
    for name, parameter in shown.items():
        kind = "bias" if name.endswith(("beta", "bias")) else "weight"
        holder = torch.nn.LayerNorm(8) if "LayerNorm" in name else torch.nn.Module()
        key = name.removesuffix("/gamma").removesuffix("/beta").replace("/", "_")
        child = getattr(model, key, holder)
        setattr(child, kind, parameter)
        model.add_module(key, child)
    config = OptimizerConfig(learning_rate=1e-2, warmup_steps=2, warmup_ratio=0.0)
    optimizer = build_optimizer(model, config)
    worst = 0.0
    for step in range(5):
        for name, parameter in shown.items():
            parameter.grad = torch.from_numpy(data[f"gradient|{name}"][step].copy())
        norm = accurate_norm(parameter.grad for parameter in shown.values())
        torch.nn.utils.clip_grads_with_norm_(list(shown.values()), 1.0, norm)
        set_learning_rate(optimizer, learning_rate(step, config, 10))
        optimizer.step()
        for name, parameter in shown.items():
            worst = max(worst, float(np.abs(parameter.detach().numpy() - data[f"after {step}|{name}"]).max()))
    return worst


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(root: Path) -> None:
    for folder in sorted(path.parent for path in root.glob("*/expected.npz")):
        worst = difference(folder, convert(folder))
        assert worst <= TOLERANCE, (folder.name, worst)
        say(f"{folder.name}: outputs within {worst:.1e} of TensorFlow's")
    say(f"parameters over five steps of the optimizer: within {optimizer_difference(root / 'optimizer.npz'):.1e}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
