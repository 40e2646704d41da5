"""Original checkpoints become published folders, and the other way; what is not right is one line and code 2."""

import io
import json
import os
import shutil
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from running import recipe

import bert_repro
from bert_repro.conversion import torch_weights
from bert_repro.conversion.tensor_bundle import TensorBundle, write_bundle
from bert_repro.hub import export_checkpoint
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


def tensors_of(folder: Path) -> dict[str, np.ndarray]:
    bundle = TensorBundle(folder / "bert_model.ckpt")
    return {name: bundle.read(name) for name in bundle.entries}


def change(folder: Path, **changes: np.ndarray | None) -> None:
    """Writes the checkpoint again with other tensors; None removes one."""
    tensors = {**tensors_of(folder), **{name.replace("__", "/"): values for name, values in changes.items()}}
    write_bundle(folder / "bert_model.ckpt", {name: values for name, values in tensors.items() if values is not None})


def change_settings(folder: Path, **changes: object) -> None:
    path = folder / "bert_config.json"
    settings = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in settings.items() if value is not None}))


def outputs(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    ids = torch.arange(5, 15)[None]
    with torch.no_grad():
        return {name: values for name, values in model.eval()(input_ids=ids).items() if torch.is_tensor(values)}


def test_tensorflows_outputs_and_tensors_there_and_back(original, run, tmp_path):
    code, said = run(original, "--gelu erf")
    assert code == 0 and "30 tensors converted, bit by bit; 61 left out (left by training)" in said
    expected = np.load(GOLDEN / "expected.npz")
    ids, mask, segments, places = (
        torch.from_numpy(expected[name]).long() for name in ("input_ids", "input_mask", "segment_ids", "positions")
    )
    real = mask.bool().numpy()
    for classes, options in ((bert_repro.BertReproForPreTraining, {}), (transformers.BertForPreTraining, {})):
        model = classes.from_pretrained(tmp_path / "out", **options).eval()
        with torch.no_grad():
            found = model(input_ids=ids, attention_mask=mask, token_type_ids=segments)
            hidden = model.bert(input_ids=ids, attention_mask=mask, token_type_ids=segments)
        words = found.prediction_logits[torch.arange(len(ids))[:, None], places].log_softmax(-1).flatten(0, 1)
        assert np.abs(hidden[0].numpy()[real] - expected["hidden"][real]).max() < 1e-5
        assert np.abs(hidden[1].numpy() - expected["pooled"]).max() < 1e-5
        assert np.abs(words.numpy() - expected["masked_log_probs"]).max() < 1e-5
        assert np.abs(found.seq_relationship_logits.log_softmax(-1).numpy() - expected["next_log_probs"]).max() < 1e-5
    report = json.loads((tmp_path / "out" / "conversion.json").read_text())
    assert len(report["tensors"]) == 30 and len(report["left_out"]) == 61
    assert max(value for way in report["outputs"].values() for value in way.values()) < 1e-5
    assert report["tokenizer"]["entries_with_equal_tokens"] == report["tokenizer"]["entries"] == 97
    assert "converted by bert_repro from `uncased_checkpoint`" in (tmp_path / "out" / "README.md").read_text()
    assert Path("conversion.json") in published_files(tmp_path / "out")

    code, said = run(tmp_path / "out", "--to_tensorflow", out="back")
    assert code == 0 and "gelu in its erf form, as code before February 2019" in said
    back, first = tensors_of(tmp_path / "back"), tensors_of(original)
    assert len(back) == 30 and all(np.array_equal(back[name], first[name]) for name in back)
    settings = [json.loads((folder / "bert_config.json").read_text()) for folder in (original, tmp_path / "back")]
    assert settings[0] == settings[1]
    assert (tmp_path / "back" / "vocab.txt").read_bytes() == (original / "vocab.txt").read_bytes()


def test_the_form_of_gelu_is_said(original, run, tmp_path):
    assert "say which with --gelu erf (the first releases) or --gelu tanh" in run(original)[1]
    code, _ = run(original, "--gelu tanh")
    assert code == 0 and json.loads((tmp_path / "out" / "config.json").read_text())["hidden_act"] == "gelu_new"
    change_settings(original, hidden_act="relu")
    assert "says hidden_act 'relu'; leave it out" in run(original, "--gelu erf", "--overwrite_output_dir")[1]


def test_cased_or_uncased_is_said_where_the_signs_disagree(original, run, tmp_path):
    (original / "vocab.txt").write_text((original / "vocab.txt").read_text().replace("mat\n", "Mat\n"))
    code, line = run(original, "--gelu erf")
    assert code == 2 and "the name uncased: uncased; 1 upper-case entries of vocab.txt: cased" in line
    nameless = original.rename(tmp_path / "checkpoint")
    code, said = run(nameless, "--gelu erf")
    assert code == 0 and "case: cased (1 upper-case entries of vocab.txt)" in said
    code, said = run(nameless, "--gelu erf", "--do_lower_case true", "--overwrite_output_dir")
    assert code == 0 and "case: uncased (--do_lower_case true)" in said
    entries = (nameless / "vocab.txt").read_text().split("\n")[:-1]
    foreign = [chr(0x4E00 + n) if n > 4 else entry for n, entry in enumerate(entries)]
    (nameless / "vocab.txt").write_text("\n".join(foreign) + "\n")
    assert "cased or uncased? nothing in its files says" in run(nameless, "--gelu erf", out="new")[1]


def test_a_vocabulary_with_windows_line_ends_is_the_same(original, run, tmp_path):
    (original / "vocab.txt").write_bytes((original / "vocab.txt").read_bytes().replace(b"\n", b"\r\n"))
    assert run(original, "--gelu erf")[0] == 0
    assert (tmp_path / "out" / "vocab.txt").read_bytes() == (GOLDEN / "vocab.txt").read_bytes()


DAMAGE = {
    "a layer too many": (lambda f: change_settings(f, num_hidden_layers=100_000), "and the checkpoint has 1"),
    "another width": (lambda f: change_settings(f, hidden_size=10**12), "and the checkpoint has 8"),
    "a text as width": (lambda f: change_settings(f, hidden_size="8"), "says hidden_size '8', and"),
    "heads that do not fit": (lambda f: change_settings(f, num_attention_heads=3), "hidden_size must be a multiple"),
    "no width": (lambda f: change_settings(f, hidden_size=None), "bert_config.json lacks hidden_size"),
    "a setting of ALBERT": (lambda f: change_settings(f, embedding_size=4), "has embedding_size, which the original"),
    "a list as settings": (lambda f: (f / "bert_config.json").write_text("[]"), "holds no object of settings"),
    "no settings": (lambda f: (f / "bert_config.json").unlink(), "bert_config.json: cannot be read"),
    "no vocabulary": (lambda f: (f / "vocab.txt").unlink(), "there is no vocab.txt beside the weights"),
    "too large a vocabulary": (lambda f: (f / "vocab.txt").open("a").write("new\n"), "has 103 entries, and"),
    "another activation": (lambda f: change_settings(f, hidden_act="swish"), "'swish' is not known"),
    "a missing tensor": (lambda f: change(f, bert__pooler__dense__bias=None), "lacks bert/pooler/dense/bias"),
    "a tensor too many": (lambda f: change(f, bert__pooler__extra=np.ones(2, "f4")), "holds bert/pooler/extra,"),
    "another shape": (lambda f: change(f, bert__pooler__dense__kernel=np.ones((8, 9), "f4")), "has the shape [8, 9]"),
    "not finite": (lambda f: change(f, bert__pooler__dense__bias=np.full(8, np.nan, "f4")), "that are not finite"),
    "whole numbers": (lambda f: change(f, bert__pooler__dense__bias=np.ones(8, "i4")), "holds int32 numbers"),
    "object-based saving": (lambda f: change(f, _CHECKPOINTABLE_OBJECT_GRAPH=np.ones(1, "f4")), "object-based saving"),
    "two heads": (lambda f: change(f, output_weights=np.ones((2, 8), "f4")), "say which with --head"),
    "another model": (lambda f: write_bundle(f / "bert_model.ckpt", {"x": np.ones(1)}), "holds no bert/embeddings/"),
    "two checkpoints": (lambda f: shutil.copy(f / FILES[0], f / "other.index"), "holds several checkpoints: bert_m"),
    "no checkpoint": (lambda f: (f / FILES[0]).unlink(), "holds no checkpoint"),
    "half an index": (lambda f: os.truncate(f / FILES[0], 100), "is no index of a TensorFlow checkpoint"),
    "half the data": (lambda f: os.truncate(f / FILES[1], 1000), "are larger than the 1,000 bytes of data"),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_what_is_not_right_is_one_line(original, run, kind):
    damage, message = DAMAGE[kind]
    damage(original)
    gelu = "" if kind == "another activation" else "--gelu erf"
    code, line = run(original, *([gelu] if gelu else []))
    assert code == 2 and message in line


def zipped(folder: Path, target: Path, name: str = "", content: bytes = b"x", mode: int = 0) -> Path:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.iterdir()):
            archive.write(path, f"{folder.name}/{path.name}")
        if name:
            entry = zipfile.ZipInfo(name)
            entry.external_attr = mode << 16
            archive.writestr(entry, content)
    return target


def tarred(folder: Path, target: Path, name: str = "", kind: bytes = tarfile.REGTYPE, content: bytes = b"") -> Path:
    with tarfile.open(target, "w:bz2" if target.suffix == ".bz2" else "w:gz") as archive:
        archive.add(folder, folder.name)
        if name:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.size = kind, "/etc/passwd", len(content)
            archive.addfile(entry, io.BytesIO(content))
    return target


def test_archives_are_read_and_what_is_unpacked_is_removed(original, run, tmp_path):
    for number, archive in enumerate((zipped(original, tmp_path / "a.zip"), tarred(original, tmp_path / "a.tar.bz2"))):
        code, said = run(archive, "--gelu erf", out=f"out{number}")
        assert code == 0 and "uncased (the name uncased, vocab.txt without upper case and accents)" in said
    assert run(original / "bert_model.ckpt", "--gelu erf", out="out2")[0] == 0, "a prefix names one of several"
    weights = [(tmp_path / f"out{number}" / "model.safetensors").read_bytes() for number in range(3)]
    assert weights[0] == weights[1] == weights[2]


HOSTILE = {
    "up": (lambda f, t: zipped(f, t / "a.zip", "../vocab.txt"), "leads out of its folder"),
    "absolute": (lambda f, t: zipped(f, t / "a.zip", "/tmp/vocab.txt"), "leads out of its folder"),
    "a drive": (lambda f, t: zipped(f, t / "a.zip", "c:/vocab.txt"), "leads out of its folder"),
    "a link": (lambda f, t: zipped(f, t / "a.zip", "vocab.txt", b"/etc/passwd", 0o120777), "is a link or device"),
    "twice": (lambda f, t: zipped(f, t / "a.zip", f"{f.name}/vocab.txt"), "twice in one folder"),
    "a bomb": (lambda f, t: zipped(f, t / "a.zip", "x.data-00000-of-00001", bytes(2_000_000)), "unpacks to 2,0"),
    "two": (lambda f, t: zipped(f, t / "a.zip", "other/x.index"), "holds several checkpoints, in other, "),
    "no zip": (lambda f, t: (t / "a.zip").write_bytes(b"x") and t / "a.zip", "is damaged, encrypted or no archive"),
    "up in a tar": (lambda f, t: tarred(f, t / "a.tar.gz", "x/../../vocab.txt"), "leads out of its folder"),
    "a link in a tar": (lambda f, t: tarred(f, t / "a.tgz", "vocab.txt", tarfile.SYMTYPE), "is a link or device"),
    "a hard link": (lambda f, t: tarred(f, t / "a.tgz", "vocab.txt", tarfile.LNKTYPE), "is a link or device"),
    "a device": (lambda f, t: tarred(f, t / "a.tgz", "vocab.txt", tarfile.CHRTYPE), "is a link or device"),
    "a bomb in a tar": (
        lambda f, t: tarred(f, t / "a.tgz", "x.data-00000-of-00001", content=bytes(2_000_000)), "unpacks to 2,0"
    ),
    "a large header": (
        lambda f, t: tarred(f, t / "a.tgz", "x", tarfile.XHDTYPE, bytes(2_000_000)), "holds a header of 2,000,384 bytes"
    ),
    "no tar": (lambda f, t: (t / "a.tar").write_bytes(b"x") and t / "a.tar", "is damaged, encrypted or no archive"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_archives_are_one_line(original, run, tmp_path, kind):
    make, message = HOSTILE[kind]
    code, line = run(make(original, tmp_path), "--gelu erf --max_unpacked_bytes 1000000")
    assert code == 2 and message in line


def published(folder: Path, auto_class: str, **fields: object) -> Path:
    torch.manual_seed(0)
    vocab = {entry: place for place, entry in enumerate((GOLDEN / "vocab.txt").read_text().split("\n")[:-1])}
    model = getattr(bert_repro, AUTO_CLASSES[auto_class].ours)(bert_repro.BertReproConfig(**{**SIZES, **fields}))
    return export_checkpoint(model, transformers.BertTokenizer(vocab=vocab), folder)


BACK = {
    "AutoModel": ("", "BertModel"),
    "AutoModelForMaskedLM": ("", "BertForMaskedLM"),
    "AutoModelForNextSentencePrediction": ("", "BertForNextSentencePrediction"),
    "AutoModelForSequenceClassification": ("--label_names no yes maybe", "BertForSequenceClassification"),
    "AutoModelForTokenClassification": ("--head tagging", "BertForTokenClassification"),
    "AutoModelForQuestionAnswering": ("", "BertForQuestionAnswering"),
}


@pytest.mark.parametrize("auto_class", BACK)
def test_every_head_there_and_back(run, tmp_path, auto_class):
    flags, name = BACK[auto_class]
    labels = {0: "no", 1: "yes", 2: "maybe"}
    fields = {"id2label": labels} if "Classification" in auto_class else {}
    folder = published(tmp_path / "uncased", auto_class, hidden_act="gelu_new", **fields)
    assert run(folder, "--to_tensorflow", out="tf")[0] == 0
    assert run(tmp_path / "tf", "--gelu tanh --do_lower_case true", *([flags] if flags else []))[0] == 0
    classes = getattr(transformers, name)
    first, second = outputs(classes.from_pretrained(folder)), outputs(classes.from_pretrained(tmp_path / "out"))
    assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)
    if "label_names" in flags:
        assert transformers.AutoConfig.from_pretrained(tmp_path / "out").id2label == labels


@pytest.mark.parametrize(
    ("auto_class", "fields", "message"),
    [
        ("AutoModelForMultipleChoice", {}, "names the class BertForMultipleChoice, which the original"),
        ("AutoModelForSequenceClassification", {"bilstm_size": 4}, "bilstm_size 4 has no counterpart"),
        ("AutoModelForMaskedLM", {"layer_norm_eps": 1e-5}, "layer_norm_eps 1e-05 has no counterpart"),
        ("AutoModelForMaskedLM", {"hidden_act": "silu"}, "hidden_act silu is not known to the original"),
    ],
)
def test_what_the_original_lacks_is_refused(run, tmp_path, auto_class, fields, message):
    code, line = run(published(tmp_path / "uncased", auto_class, **fields), "--to_tensorflow")
    assert code == 2 and message in line


def as_pickle(folder: Path, *, old_names: bool) -> Path:
    """A masked language model as transformers of 2019 saved it."""
    model = transformers.BertForMaskedLM.from_pretrained(published(folder, "AutoModelForMaskedLM"))
    state = {name: values.clone() for name, values in model.state_dict().items()}
    if old_names:
        state = {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): values
                 for name, values in state.items()}  # fmt: skip
        state["bert.embeddings.position_ids"] = torch.arange(12)[None]
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder


def test_an_old_pickle_has_one_door(run, tmp_path):
    folder = published(tmp_path / "first", "AutoModelForMaskedLM")
    expected = outputs(transformers.BertForMaskedLM.from_pretrained(folder))
    pickled = as_pickle(tmp_path / "uncased", old_names=True)
    code, said = run(pickled)
    assert code == 0 and "hidden_act: gelu (config.json)" in said
    found = outputs(transformers.BertForMaskedLM.from_pretrained(tmp_path / "out"))
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert "config.json does; leave it out" in run(pickled, "--gelu erf", out="new")[1]


class Payload:
    """Runs a command where it is unpickled without care."""

    def __init__(self, trap: Path) -> None:
        self.trap = trap

    def __reduce__(self):
        return os.system, (f"touch {self.trap}",)


def test_a_payload_does_not_run(run, tmp_path):
    folder, trap = as_pickle(tmp_path / "uncased", old_names=False), tmp_path / "trap"
    torch.save({"x": Payload(trap)}, folder / "pytorch_model.bin")
    code, line = run(folder)
    assert code == 2 and "pytorch_model.bin: cannot be read as weights" in line
    assert not trap.exists()


PICKLES = {
    "a list": lambda path: torch.save([torch.ones(1)], path),
    "texts": lambda path: torch.save({"x": "y"}, path),
    "nothing": lambda path: path.write_bytes(b""),
    "no pickle": lambda path: path.write_bytes(b"x" * 100),
    "half a file": lambda path: torch.save({"x": torch.ones(1000)}, path) or os.truncate(path, 2000),
}


@pytest.mark.parametrize("kind", PICKLES)
def test_what_the_process_of_a_pickle_says(tmp_path, monkeypatch, capsys, kind):
    monkeypatch.setattr(torch_weights, "_bound_memory", lambda size: None)  # it would bound this process
    path = tmp_path / "pytorch_model.bin"
    PICKLES[kind](path)
    assert torch_weights._main([str(path), str(tmp_path / "weights.safetensors")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "weights.safetensors").exists()
