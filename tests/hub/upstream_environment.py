"""Published folders read where this package is not: `make test-upstream`.

    python tests/hub/upstream_environment.py write FOLDER    # with bert_repro: a folder of every head, and its outputs
    python tests/hub/upstream_environment.py read FOLDER     # with transformers alone: loads each, compares

`read` needs torch and transformers only, and fails where bert_repro can be imported.
"""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

WORDS = "paris is the capital of france . a film that never lets you go marie curie worked in where did she ?".split()
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
SIZES = {
    "vocab_size": len(VOCABULARY), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 40, "initializer_range": 0.2,
}  # fmt: skip
TEXTS = (["paris is the capital of france .", "where did she go ?"], ["marie curie worked in paris .", "a film ."])
LABELLED = {
    "AutoModelForSequenceClassification": {0: "not_equivalent", 1: "equivalent"},
    "AutoModelForTokenClassification": {0: "O", 1: "B-PER", 2: "I-PER"},
}
PIPELINES = {
    "AutoModelForPreTraining": ("fill-mask", "paris is the [MASK] of france ."),
    "AutoModelForMaskedLM": ("fill-mask", "paris is the [MASK] of france ."),
    "AutoModelForSequenceClassification": ("text-classification", "a film that never lets you go ."),
    "AutoModelForTokenClassification": ("token-classification", "marie curie worked in paris ."),
    "AutoModel": ("feature-extraction", "paris is the capital"),
}


def variants() -> dict[str, tuple[str, dict[str, Any]]]:
    """Name of a folder -> its Auto class, and the fields of its configuration."""
    from bert_repro.models.configuration_bert_repro import HEADS

    found = {name: (name, {"id2label": LABELLED[name]} if name in LABELLED else {}) for name in HEADS}
    found["AutoModelForCausalLM"] = ("AutoModelForCausalLM", {"is_decoder": True})
    return found | {"left_to_right_encoder": ("AutoModel", {"is_decoder": True})}


def write(root: Path) -> None:
    """Publishes every head, with inputs and outputs beside it."""
    import bert_repro
    from bert_repro.hub.export import export_checkpoint
    from bert_repro.models.configuration_bert_repro import HEADS

    tokenizer = transformers.BertTokenizer(vocab={word: index for index, word in enumerate(VOCABULARY)})
    for number, (name, (auto_class, fields)) in enumerate(variants().items()):
        torch.manual_seed(number)
        model = getattr(bert_repro, HEADS[auto_class].ours)(bert_repro.BertReproConfig(**SIZES, **fields)).eval()
        folder = export_checkpoint(model, tokenizer, root / name)
        inputs = dict(tokenizer(*TEXTS, padding=True, return_tensors="pt"))
        if auto_class == "AutoModelForMultipleChoice":
            inputs = {key: values.view(1, 2, -1) for key, values in inputs.items()}
        with torch.no_grad():
            outputs = {key: values.contiguous() for key, values in model(**inputs).items()}
        save_file(inputs, folder / "inputs.safetensors")
        save_file(outputs, folder / "outputs.safetensors")
        expected = {"auto_class": auto_class, "labels": {str(k): v for k, v in fields.get("id2label", {}).items()}}
        (folder / "expected.json").write_text(json.dumps(expected))


def read(root: Path) -> None:
    """Loads every folder without and with `trust_remote_code`, compares outputs, runs its pipeline."""
    if importlib.util.find_spec("bert_repro"):
        raise SystemExit("bert_repro can be imported here; this must run where it cannot")
    sys.stdout.write(f"torch {torch.__version__}, transformers {transformers.__version__}\n")
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        expected = json.loads((folder / "expected.json").read_text())
        auto = getattr(transformers, expected["auto_class"])
        differences = [
            difference(auto.from_pretrained(folder, trust_remote_code=code), folder) for code in (False, True)
        ]
        labels = transformers.AutoConfig.from_pretrained(folder).id2label
        assert all(labels[int(index)] == label for index, label in expected["labels"].items()), labels
        if folder.name in PIPELINES:
            task, text = PIPELINES[folder.name]
            assert transformers.pipeline(task, model=str(folder))(text)
        sys.stdout.write(f"{folder.name}: upstream {differences[0]:.1e}, remote code {differences[1]:.1e}\n")


def difference(model: torch.nn.Module, folder: Path) -> float:
    """The largest difference to what our class computed, as a share of the tolerance's scale; at most 1e-5."""
    with torch.no_grad():
        outputs = model.eval()(**load_file(folder / "inputs.safetensors"))
    expected = load_file(folder / "outputs.safetensors")
    worst = max(
        ((outputs[name] - values).abs().max() / values.abs().max().clamp(min=1)).item()
        for name, values in expected.items()
    )
    assert worst <= 1e-5, f"{folder.name}: {type(model).__name__} differs by {worst}"
    return worst


if __name__ == "__main__":
    {"write": write, "read": read}[sys.argv[1]](Path(sys.argv[2]))
