"""Original checkpoints become published folders; what is not right is one line and code 2."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from running import recipe
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

import bert_repro
from bert_repro.conversion.tensor_bundle import TensorBundle
from bert_repro.hub.export import export_checkpoint
from bert_repro.hub.push import published_files
from bert_repro.models.configuration_bert_repro import AUTO_CLASSES

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "tensorflow"
FILES = ("bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001", "bert_config.json", "vocab.txt")
SIZES = {"vocab_size": 102, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
         "max_position_embeddings": 12, "initializer_range": 0.3}  # fmt: skip


@pytest.fixture
def original(tmp_path) -> Path:
    folder = tmp_path / "uncased_checkpoint"
    folder.mkdir()
    for name in FILES:
        shutil.copy(GOLDEN / name, folder)
    return folder


@pytest.fixture
def run(tmp_path, capsys):
    """Converts; returns the exit code and the one line of the error."""

    def convert(checkpoint: Path, *flags: str, out: str = "out") -> tuple[int, str]:
        code = recipe("convert_checkpoint", f"--checkpoint {checkpoint} --output_dir {tmp_path / out}", *flags)
        said = capsys.readouterr().err
        assert "Traceback" not in said
        left = [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
        assert left == [], "nothing unfinished stays"
        lines = [line for line in said.splitlines() if line.startswith("error: ")]
        assert len(lines) == (1 if code else 0) and all(len(line) < 600 for line in lines)
        assert not code or "--overwrite_output_dir" in flags or not list((tmp_path / out).glob("*.safetensors"))
        return code, lines[0] if lines else said

    return convert


@pytest.fixture
def bundle(original, monkeypatch) -> dict[str, np.ndarray]:
    """The tensors of the original checkpoint, which a test may change."""
    read = TensorBundle(original / "bert_model.ckpt")
    tensors = {name: read.read(name) for name in read.entries}

    class Changed:
        def __init__(self, prefix: Path) -> None:
            self.entries, self.read = tensors, tensors.__getitem__

    monkeypatch.setattr("bert_repro.conversion.convert.TensorBundle", Changed)
    return tensors


def change_settings(folder: Path, **changes: object) -> None:
    path = folder / "bert_config.json"
    settings = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in settings.items() if value is not None}))


def outputs(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    ids = torch.arange(5, 15)[None]
    with torch.no_grad():
        return {name: values for name, values in model.eval()(input_ids=ids).items() if torch.is_tensor(values)}


def test_tensorflows_outputs(original, run, tmp_path):
    code, said = run(original, "--gelu erf")
    assert code == 0 and "30 converted; 61 left out (left by training)" in said
    expected = np.load(GOLDEN / "expected.npz")
    ids, mask, segments, places = (
        torch.from_numpy(expected[name]).long() for name in ("input_ids", "input_mask", "segment_ids", "positions")
    )
    real = mask.bool().numpy()
    for classes in (bert_repro.BertReproForPreTraining, transformers.BertForPreTraining):
        model = classes.from_pretrained(tmp_path / "out").eval()
        with torch.no_grad():
            found = model(input_ids=ids, attention_mask=mask, token_type_ids=segments)
            hidden = model.bert(input_ids=ids, attention_mask=mask, token_type_ids=segments)
        words = found.prediction_logits[torch.arange(len(ids))[:, None], places].log_softmax(-1).flatten(0, 1)
        following = found.seq_relationship_logits.log_softmax(-1)
        assert np.abs(hidden[0].numpy()[real] - expected["hidden"][real]).max() < 1e-5
        for name, values in (("pooled", hidden[1]), ("masked_log_probs", words), ("next_log_probs", following)):
            assert np.abs(values.numpy() - expected[name]).max() < 1e-5, name
    report = json.loads((tmp_path / "out" / "conversion.json").read_text())
    assert len(report["tensors"]) == 30 and len(report["left_out"]) == 61
    assert "converted by bert_repro from `uncased_checkpoint`" in (tmp_path / "out" / "README.md").read_text()
    assert Path("conversion.json") in published_files(tmp_path / "out")


def test_the_tokenizer_splits_as_the_original_does(original, run, tmp_path):
    """The original's Python code lives on in transformers as `BertTokenizerLegacy`."""
    assert run(original, "--gelu erf")[0] == 0
    saved = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    legacy = BertTokenizerLegacy(str(original / "vocab.txt"), do_lower_case=True)
    assert saved.get_vocab() == dict(legacy.vocab)
    words = [entry for entry in legacy.vocab if entry not in legacy.all_special_tokens]
    sentence = "Señor Müller's café isn't open; naïve façades (p. 12) cost $3,000.50!"
    for text in (*words, sentence, "北京 is the capital"):
        assert saved.tokenize(text) == legacy.tokenize(text), text


HEADS = {
    "AutoModel": ({}, ()),
    "AutoModelForSequenceClassification": ({"output_weights": (3, 8), "output_bias": (3,)}, ("no", "yes", "maybe")),
    "AutoModelForTokenClassification": ({"output_weights": (3, 8), "output_bias": (3,)}, ("O", "B", "I")),
    "AutoModelForQuestionAnswering": ({"cls/squad/output_weights": (2, 8), "cls/squad/output_bias": (2,)}, ()),
    "AutoModelForNextSentencePrediction": ({}, ()),
}


@pytest.mark.parametrize("auto_class", HEADS)
def test_every_head(original, run, tmp_path, bundle, auto_class):
    added, labels = HEADS[auto_class]
    draw = np.random.default_rng(0)
    tensors = {name: values for name, values in bundle.items() if not name.startswith("cls/predictions")}
    if auto_class != "AutoModelForNextSentencePrediction":
        tensors = {name: values for name, values in tensors.items() if not name.startswith("cls/")}
    bundle.clear()
    bundle |= tensors | {name: draw.standard_normal(shape).astype("f4") for name, shape in added.items()}
    flags = ["--head tagging"] if auto_class == "AutoModelForTokenClassification" else []
    flags += ["--label_names", *labels] if labels else []
    assert run(original, " ".join(["--gelu tanh", *flags]))[0] == 0
    model = getattr(transformers, AUTO_CLASSES[auto_class].upstream).from_pretrained(tmp_path / "out")
    assert tuple(model.config.id2label.values()) == (labels or ("LABEL_0", "LABEL_1"))
    state = model.state_dict()
    for name, values in bundle.items():
        if name in added:
            kind = "weight" if name.endswith("weights") else "bias"
            (found,) = (state[key] for key in state if key in (f"classifier.{kind}", f"qa_outputs.{kind}"))
            assert np.array_equal(found.numpy(), values)
    assert np.array_equal(state[next(key for key in state if key.endswith("layer.0.output.dense.weight"))].numpy().T,
                          bundle["bert/encoder/layer_0/output/dense/kernel"])  # fmt: skip


def test_the_form_of_gelu_is_said(original, run, tmp_path):
    assert all(flag in run(original)[1] for flag in ("--gelu erf", "--gelu tanh"))
    code, _ = run(original, "--gelu tanh")
    assert code == 0 and json.loads((tmp_path / "out" / "config.json").read_text())["hidden_act"] == "gelu_new"
    change_settings(original, hidden_act="relu")
    assert "hidden_act 'relu'" in run(original, "--gelu erf", "--overwrite_output_dir")[1]


def test_cased_or_uncased_is_said_where_the_signs_disagree(original, run, tmp_path):
    (original / "vocab.txt").write_text((original / "vocab.txt").read_text().replace("mat\n", "Mat\n"))
    code, line = run(original, "--gelu erf")
    assert code == 2 and "vocab.txt: cased; the name uncased: uncased" in line
    nameless = original.rename(tmp_path / "checkpoint")
    code, said = run(nameless, "--gelu erf")
    assert code == 0 and "case: cased (vocab.txt)" in said
    code, said = run(nameless, "--gelu erf", "--do_lower_case true", "--overwrite_output_dir")
    assert code == 0 and "case: uncased (--do_lower_case)" in said
    entries = (nameless / "vocab.txt").read_text().split("\n")[:-1]
    foreign = [chr(0x4E00 + n) if n > 4 else entry for n, entry in enumerate(entries)]
    (nameless / "vocab.txt").write_text("\n".join(foreign) + "\n")
    assert "case: uncased (vocab.txt)" in run(nameless, "--gelu erf", out="new")[1]


DAMAGE = {
    "a layer too many": (lambda f: change_settings(f, num_hidden_layers=2), "bert/encoder/layer_1/attention"),
    "another width": (lambda f: change_settings(f, hidden_size=16), "[102, 16]"),
    "heads that do not fit": (lambda f: change_settings(f, num_attention_heads=3), "hidden_size"),
    "no width": (lambda f: change_settings(f, hidden_size=None), "hidden_size"),
    "no settings": (lambda f: (f / "bert_config.json").unlink(), "bert_config.json"),
    "no vocabulary": (lambda f: (f / "vocab.txt").unlink(), "vocab.txt"),
    "too large a vocabulary": (lambda f: (f / "vocab.txt").open("a").write("new\n"), "103"),
    "two checkpoints": (lambda f: shutil.copy(f / FILES[0], f / "other.index"), "bert_model.ckpt, other"),
    "no checkpoint": (lambda f: (f / FILES[0]).unlink(), "pytorch_model.bin"),
    "endless layers": (lambda f: change_settings(f, num_hidden_layers=10**8), "num_hidden_layers is 100000000"),
    "a size as text": (lambda f: change_settings(f, vocab_size="102"), "vocab_size is '102'"),
    "no probability": (lambda f: change_settings(f, hidden_dropout_prob=3), "hidden_dropout_prob is 3"),
    "a list of settings": (lambda f: (f / "bert_config.json").write_text("[]"), "bert_config.json contains []"),
    "half an index": (lambda f: os.truncate(f / FILES[0], 100), "bert_model.ckpt.index"),
    "half the data": (lambda f: os.truncate(f / FILES[1], 1000), "data-00000-of-00001"),
    "no data": (lambda f: (f / FILES[1]).unlink(), "bert_model.ckpt.data-00000-of-00001"),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_what_is_not_right_is_one_line(original, run, kind):
    damage, message = DAMAGE[kind]
    damage(original)
    code, line = run(original, "--gelu erf")
    assert code == 2 and message in line


OTHER_TENSORS = {
    "a missing tensor": ({"bert/pooler/dense/bias": None}, "bert/pooler/dense/bias"),
    "a tensor too many": ({"bert/pooler/extra": np.ones(2, "f4")}, "bert/pooler/extra"),
    "another shape": ({"bert/pooler/dense/kernel": np.ones((8, 9), "f4")}, "[8, 9]"),
    "not finite": ({"bert/pooler/dense/bias": np.full(8, np.nan, "f4")}, "bert/pooler/dense/bias"),
    "whole numbers": ({"bert/pooler/dense/bias": np.ones(8, "i4")}, "int32"),
    "two heads": ({"output_weights": np.ones((2, 8), "f4")}, "--head"),
    "another model": ({"bert/embeddings/word_embeddings": None}, "bert/embeddings/word_embeddings"),
}


@pytest.mark.parametrize("kind", OTHER_TENSORS)
def test_tensors_that_make_no_bert_are_one_line(original, run, bundle, kind):
    changes, message = OTHER_TENSORS[kind]
    for name, values in changes.items():
        bundle.pop(name) if values is None else bundle.update({name: values})
    code, line = run(original, "--gelu erf")
    assert code == 2 and message in line


def as_pickle(folder: Path) -> dict[str, torch.Tensor]:
    """Writes a masked language model as transformers of 2019 saved it; returns its outputs."""
    torch.manual_seed(0)
    vocab = {entry: place for place, entry in enumerate((GOLDEN / "vocab.txt").read_text().split("\n")[:-1])}
    model = bert_repro.BertReproForMaskedLM(bert_repro.BertReproConfig(**SIZES))
    export_checkpoint(model, transformers.BertTokenizer(vocab=vocab), folder)
    model = transformers.BertForMaskedLM.from_pretrained(folder)
    state = {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): values
             for name, values in model.state_dict().items()}  # fmt: skip
    torch.save({**state, "bert.embeddings.position_ids": torch.arange(12)[None]}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return outputs(model)


def test_an_old_pickle_has_one_door(run, tmp_path):
    pickled = tmp_path / "uncased"
    expected = as_pickle(pickled)
    code, said = run(pickled)
    assert code == 0 and "hidden_act: gelu (config.json)" in said
    found = outputs(transformers.BertForMaskedLM.from_pretrained(tmp_path / "out"))
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert "--gelu" in run(pickled, "--gelu erf", out="new")[1]


class Payload:
    """Runs a command where it is unpickled without care."""

    def __init__(self, trap: Path) -> None:
        self.trap = trap

    def __reduce__(self):
        return os.system, (f"touch {self.trap}",)


def test_a_payload_does_not_run(run, tmp_path):
    folder, trap = tmp_path / "uncased", tmp_path / "trap"
    as_pickle(folder)
    torch.save({"x": Payload(trap)}, folder / "pytorch_model.bin")
    code, line = run(folder)
    assert code == 2 and "pytorch_model.bin" in line and "safetensors" in line
    assert "weights_only" not in line and not trap.exists()
    (folder / "pytorch_model.bin").write_bytes(b"PK no weights")
    assert run(folder)[0] == 2
    torch.save([1, 2], folder / "pytorch_model.bin")
    assert "mapping" in run(folder)[1]
