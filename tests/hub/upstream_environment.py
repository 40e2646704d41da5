"""Published folders read where this package is not: `make test-upstream`, and `make test-versions` for older versions.

    python tests/hub/upstream_environment.py write FOLDER    # with bert_repro: a folder of every head, and its outputs
    python tests/hub/upstream_environment.py read FOLDER     # with transformers alone: loads each, compares
    python tests/hub/upstream_environment.py read FOLDER --hub ID   # one of them from a Hub too (HF_ENDPOINT)

`read` needs torch and transformers only, from 4.30 on, and fails where bert_repro can be imported. Its last line is a
JSON object: what was checked -> what was seen. It exits with 1 where a check failed.
"""

import importlib.metadata
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

WORDS = (
    "paris is the capital of france . a film that never lets you go marie curie worked in where did she ? "
    "cafe , ##s ##teria 北 京 ' t don"
).split()
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
FURTHER = "[E1]"  # a special token beyond BERT's own, which versions before 5 know under another name
SIZES = {
    "vocab_size": len(VOCABULARY) + 1, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 40, "initializer_range": 0.2,
}  # fmt: skip
TEXTS = (["paris is the capital of france .", "where did she go ?"], ["marie curie worked in paris .", "a film ."])
TOKENIZED = [
    "Paris is the capital of France.", "Café, cafes, cafeteria", "She DON'T go\tto\n北京?", "zebra [MASK] the", "",
    "a\u0301 film", f"{FURTHER} the [E2] film{FURTHER}.",
]  # fmt: skip
LABELLED = {
    "AutoModelForSequenceClassification": {0: "not_equivalent", 1: "equivalent"},
    "AutoModelForTokenClassification": {0: "O", 1: "B-PER", 2: "I-PER"},
}
PIPELINES = {
    "AutoModelForPreTraining": ("fill-mask", "paris is the [MASK] of france ."),
    "AutoModelForSequenceClassification": ("text-classification", "a film that never lets you go ."),
    "AutoModelForTokenClassification": ("token-classification", "marie curie worked in paris ."),
}
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {  # models that upstream transformers has no class for
    "left_to_right_sequences": ("AutoModelForSequenceClassification", {"is_decoder": True}),
    "last_token": ("AutoModelForMultipleChoice", {"pool_token": "last"}),
    "bilstm_on_sequences": ("AutoModelForSequenceClassification", {"is_decoder": True, "bilstm_size": 8}),
    "bilstm_on_questions": ("AutoModelForQuestionAnswering", {"bilstm_size": 8}),
    "chosen_layers": ("AutoModelForTokenClassification", {"token_features": "weighted_all", "bilstm_size": 8}),
}
PUBLISHED = ("config.json", "configuration_bert_repro.py", "modeling_bert_repro.py")
OLDEST_FOR_REMOTE_CODE = (5, 4)
TOLERANCE = 1e-5


def variants() -> dict[str, tuple[str, dict[str, Any]]]:
    """Name of a folder -> its Auto class, and the fields of its configuration."""
    from bert_repro.models.configuration_bert_repro import AUTO_CLASSES

    found = {name: (name, {"id2label": LABELLED[name]} if name in LABELLED else {}) for name in AUTO_CLASSES}
    found["AutoModelForCausalLM"] = ("AutoModelForCausalLM", {"is_decoder": True})
    found["left_to_right_encoder"] = ("AutoModel", {"is_decoder": True})
    found["left_to_right_tokens"] = ("AutoModelForTokenClassification", {"is_decoder": True})
    return found | REFUSED


def write(root: Path) -> None:
    """Publishes every head, with inputs, outputs and the answers of its pipeline beside it."""
    import bert_repro
    from bert_repro.hub.export import export_checkpoint
    from bert_repro.models.configuration_bert_repro import AUTO_CLASSES

    tokenizer = transformers.BertTokenizer(vocab={word: index for index, word in enumerate(VOCABULARY)})
    tokenizer.add_special_tokens({"additional_special_tokens": [FURTHER]})
    torch.manual_seed(0)
    for name, (auto_class, fields) in variants().items():
        model = getattr(bert_repro, AUTO_CLASSES[auto_class].ours)(bert_repro.BertReproConfig(**SIZES, **fields)).eval()
        folder = export_checkpoint(model, tokenizer, root / name)
        inputs = dict(tokenizer(*TEXTS, padding=True, return_tensors="pt"))
        if auto_class == "AutoModelForMultipleChoice":
            inputs = {key: values.view(1, 2, -1) for key, values in inputs.items()}
        with torch.no_grad():
            outputs = {key: values.contiguous() for key, values in model(**inputs).items()}
        save_file(inputs, folder / "inputs.safetensors")
        save_file(outputs, folder / "outputs.safetensors")
        expected: dict[str, Any] = {"auto_class": auto_class}
        expected["labels"] = {str(index): label for index, label in fields.get("id2label", {}).items()}
        if name in PIPELINES:
            task, text = PIPELINES[name]
            expected["pipeline"] = transformers.pipeline(task, model=str(folder))(text)
        (folder / "expected.json").write_text(json.dumps(expected, default=float))
    (root / "tokens.json").write_text(json.dumps([tokenizer(text)["input_ids"] for text in TOKENIZED]))


def read(root: Path, hub_id: str | None) -> bool:
    """Runs every check, writes what each saw, and returns whether none failed."""
    if importlib.util.find_spec("bert_repro"):
        raise SystemExit("bert_repro can be imported here; this must run where it cannot")
    checks: dict[str, Callable[[], str]] = {
        "Auto classes": lambda: loads(root),
        "remote code": lambda: remote_code(root),
        "no counterpart": lambda: refuses(root),
        **{f"tokenizer, {kind}": lambda load=load: tokenizes(root, load) for kind, load in tokenizers().items()},
        "pipelines": lambda: pipelines(root),
    }
    if hub_id:
        checks["from a Hub"] = lambda: from_a_hub(hub_id, root / "AutoModelForSequenceClassification")
    packages = ("transformers", "torch", "tokenizers", "huggingface_hub")
    versions = {name: importlib.metadata.version(name) for name in packages}
    seen: dict[str, Any] = {"versions": versions, "python": ".".join(map(str, sys.version_info[:2])), "failed": []}
    for name, check in checks.items():
        try:
            seen[name] = check()
        except Exception as error:  # a check that breaks is a result, too
            seen[name] = f"FAILED: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            seen["failed"].append(name)
        sys.stdout.write(f"{name}: {seen[name]}\n")
    sys.stdout.write(json.dumps(seen) + "\n")
    return not seen["failed"]


def version() -> tuple[int, ...]:
    return tuple(int(part) for part in transformers.__version__.split(".")[:2])


def folders(root: Path) -> list[tuple[Path, dict[str, Any]]]:
    found = sorted(path for path in root.iterdir() if (path / "expected.json").exists() and path.name not in REFUSED)
    return [(path, json.loads((path / "expected.json").read_text())) for path in found]


def loads(root: Path) -> str:
    """Loads every folder by its Auto class and compares all outputs."""
    worst = 0.0
    for folder, expected in folders(root):
        model = getattr(transformers, expected["auto_class"]).from_pretrained(folder)
        assert type(model).__module__.startswith("transformers.models.bert."), f"{folder.name}: {type(model)}"
        worst = max(worst, difference(model, folder))
        labels = transformers.AutoConfig.from_pretrained(folder).id2label
        assert all(labels[int(index)] == label for index, label in expected["labels"].items()), labels
    return f"{len(folders(root))} folders, difference {worst:.0e}"


def difference(model: torch.nn.Module, folder: Path) -> float:
    """The largest difference to what our class computed, as a share of the tolerance's scale; at most 1e-5."""
    with torch.no_grad():
        outputs = model.eval()(**load_file(folder / "inputs.safetensors"))
    worst = 0.0
    for name, values in load_file(folder / "outputs.safetensors").items():
        worst = max(worst, ((outputs[name] - values).abs().max() / values.abs().max().clamp(min=1)).item())
    assert worst <= TOLERANCE, f"{folder.name}: {type(model).__name__} differs by {worst}"
    return worst


def remote_code(root: Path) -> str:
    """The code in the folders runs, or says on one line what it needs and what to do."""
    worst = 0.0
    for folder, expected in folders(root):
        if version() >= OLDEST_FOR_REMOTE_CODE:
            worst = max(worst, remote_difference(expected["auto_class"], folder))
        else:
            assert_refused(getattr(transformers, expected["auto_class"]), folder)
    return f"difference {worst:.0e}" if version() >= OLDEST_FOR_REMOTE_CODE else "refused, says why"


def remote_difference(auto_class: str, folder: Path) -> float:
    """What `difference` gives for the code in a folder, which saves the folder again as it was."""
    model = getattr(transformers, auto_class).from_pretrained(folder, trust_remote_code=True)
    assert type(model).__module__.startswith("transformers_modules."), f"{folder.name}: {type(model)}"
    with tempfile.TemporaryDirectory() as again:
        model.save_pretrained(again)
        for name in PUBLISHED:
            assert Path(again, name).read_text() == (folder / name).read_text(), f"{folder.name}: {name}"
    return difference(model, folder)


def assert_refused(auto: Any, place: Path | str) -> None:
    try:
        auto.from_pretrained(place, trust_remote_code=True)
    except ImportError as error:
        text = str(error)
        assert "needs transformers 5.4 or later" in text and transformers.__version__ in text, text
        assert "Leave out trust_remote_code" in text and "\n" not in text, text
    else:
        raise AssertionError("the copied code ran where it cannot")


def refuses(root: Path) -> str:
    """A model that upstream transformers does not have is refused by its name, never loaded as something else."""
    worst = 0.0
    for name, (auto_class, _) in REFUSED.items():
        try:
            getattr(transformers, auto_class).from_pretrained(root / name, trust_remote_code=False)
        except ValueError as error:
            assert "bert_repro" in str(error) or "trust_remote_code" in str(error), error
        else:
            raise AssertionError(f"{name} was loaded")
        if version() >= OLDEST_FOR_REMOTE_CODE:
            worst = max(worst, remote_difference(auto_class, root / name))
    return f"refused; remote code {worst:.0e}" if version() >= OLDEST_FOR_REMOTE_CODE else "refused"


def tokenizers() -> dict[str, Callable[[Path], Any]]:
    """The slow and the fast tokenizer of this version."""
    if version() >= (5, 0):
        from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy as Slow
    else:
        from transformers import BertTokenizer as Slow
    fast = getattr(transformers, "BertTokenizerFast", transformers.BertTokenizer)
    classes = {"slow": Slow, "fast": fast, "Auto": transformers.AutoTokenizer}
    return {kind: tokenizer.from_pretrained for kind, tokenizer in classes.items()}


def tokenizes(root: Path, load: Callable[[Path], Any]) -> str:
    """A tokenizer reads a folder and gives the ids that it was published with."""
    expected = json.loads((root / "tokens.json").read_text())
    for name in ("AutoModel", "AutoModelForSequenceClassification"):
        tokenizer = load(root / name)
        found = [tokenizer(text)["input_ids"] for text in TOKENIZED]
        assert found == expected, f"{type(tokenizer).__name__}: {found} where {expected} was expected"
    return f"{type(tokenizer).__name__}"


def pipelines(root: Path) -> str:
    """Pipelines answer as they did with our classes."""
    for name, (task, text) in PIPELINES.items():
        expected = json.loads((root / name / "expected.json").read_text())["pipeline"]
        for one, other in zip(transformers.pipeline(task, model=str(root / name))(text), expected, strict=True):
            for key in set(one) & set(other):  # not what only one version has
                same = abs(one[key] - other[key]) <= TOLERANCE if key == "score" else one[key] == other[key]
                assert same, f"{name}: {one}, expected {other}"
    return ", ".join(task for task, _ in PIPELINES.values())


def from_a_hub(repo_id: str, folder: Path) -> str:
    """A pushed folder, and a copy of it that upstream classes saved elsewhere, load; their code too, or it refuses."""
    auto = transformers.AutoModelForSequenceClassification
    model = auto.from_pretrained(repo_id)
    worst = difference(model, folder)
    with tempfile.TemporaryDirectory() as copy:
        model.save_pretrained(copy)
        assert not list(Path(copy).glob("*.py"))
        worst = max(worst, difference(auto.from_pretrained(copy), folder))
        for place in (repo_id, copy):
            if version() < OLDEST_FOR_REMOTE_CODE:
                assert_refused(auto, place)
                continue
            ours = auto.from_pretrained(place, trust_remote_code=True)
            assert type(ours).__module__.startswith("transformers_modules."), type(ours)
            worst = max(worst, difference(ours, folder))
    return f"loads, saved again too ({worst:.0e})"


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]))
    else:
        sys.exit(not read(Path(sys.argv[2]), sys.argv[4] if len(sys.argv) > 4 else None))
