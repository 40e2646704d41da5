"""What the pages promise of other libraries, in an environment that has them: `make test-libraries`.

    python tests/hub/other_libraries.py write FOLDER    # with bert_repro: the folders that the pages name
    python tests/hub/other_libraries.py read FOLDER     # with sentence-transformers, setfit, model2vec[distill], peft

`read` runs the Python blocks of docs/how-to/what_else_loads_this.md as they are, and compares the vectors of
sentence-transformers with those that the files of a folder describe to a server.
"""

import importlib.metadata
import json
import os
import re
import sys
from pathlib import Path

import torch
import transformers

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "what_else_loads_this.md"
TEXTS = ["paris is the capital of france .", "a film that never lets you go"]
LIBRARIES = ("sentence-transformers", "setfit", "model2vec", "peft", "transformers", "torch")


def write(root: Path) -> None:
    """Publishes a tiny pre-trained model with each pooling, an encoder, an MLM and a classifier."""
    import bert_repro

    words = [*dict.fromkeys(" ".join(TEXTS).split()), *(f"{a}{b}" for a in "abcdefgh" for b in "klmnopqr")]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    tokenizer = transformers.BertTokenizer(vocab={word: index for index, word in enumerate(vocabulary)})
    sizes = {"vocab_size": len(vocabulary), "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = bert_repro.BertReproConfig(**sizes, intermediate_size=128, initializer_range=0.2)
    for name, class_name, pooling in (
        ("bert", "BertReproForPreTraining", "mean"),
        ("cls", "BertReproForPreTraining", "cls"),
        ("encoder", "BertReproModel", "mean"),
        ("masked", "BertReproForMaskedLM", "cls"),
        ("classifier", "BertReproForSequenceClassification", "mean"),
    ):
        torch.manual_seed(0)
        bert_repro.export_checkpoint(getattr(bert_repro, class_name)(config), tokenizer, root / name, pooling=pooling)


def vectors_of_a_server(folder: Path) -> torch.Tensor:
    """Vectors as text-embeddings-inference and vLLM make them: by the folder's files, without sentence-transformers."""
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
    modes = [name.removeprefix("pooling_mode_") for name, value in pooling.items() if value is True]
    assert len(modes) == 1 and modes[0] in ("cls_token", "mean_tokens"), modes
    length = json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(TEXTS, padding=True, truncation=True, max_length=length, return_tensors="pt")
    with torch.no_grad():
        states = transformers.AutoModel.from_pretrained(folder).eval()(**batch).last_hidden_state
    kept = batch["attention_mask"][..., None]
    return states[:, 0] if modes == ["cls_token"] else (states * kept).sum(1) / kept.sum(1)


def read(root: Path) -> None:
    """Compares the vectors, then runs the blocks of the page."""
    from sentence_transformers import SentenceTransformer

    sys.stdout.write(", ".join(f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES) + "\n")
    seen = {}
    for name in ("bert", "cls", "encoder", "masked"):
        seen[name] = torch.tensor(SentenceTransformer(str(root / name), device="cpu").encode(TEXTS))
        difference = (seen[name] - vectors_of_a_server(root / name)).abs().max().item()
        assert difference <= 1e-5, f"{name}: the vectors differ by {difference}"
        sys.stdout.write(f"{name}: one vector both ways (difference {difference:.0e})\n")
    assert (seen["bert"] - seen["cls"]).abs().max() > 0.1, "mean and [CLS] must not be the same"
    assert not (root / "classifier" / "modules.json").exists()
    os.chdir(root)
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL):
        found: dict[str, object] = {}
        exec(compile(block, PAGE.name, "exec"), found)
        sys.stdout.write(f"runs: {block.splitlines()[0]}\n")


if __name__ == "__main__":
    {"write": write, "read": read}[sys.argv[1]](Path(sys.argv[2]).absolute())
