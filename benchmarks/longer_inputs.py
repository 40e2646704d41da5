"""Longer inputs for a checkpoint: what each way to continue its position embeddings leaves of its scores.

    python benchmarks/longer_inputs.py --corpus runs/corpus --heldout runs/articles --encoder all-MiniLM-L6-v2 \\
        --texts wikipedia.jsonl --work runs/longer

bert-repro-mini, trained at 128 tokens, is extended, measured, trained on --corpus at the new length and measured again.
--heldout is another prepared corpus, of text that no model and no choice has seen. Rotation chooses its dimensions as
run_pretraining does, on training text, at 384 tokens for every length. Positions that the checkpoint lacks are drawn as
for a new model. The positions of an encoder are cut and made again: cosine of its vectors (the mean of all tokens) with
those of the encoder as it is, over the first of --texts that are long enough. It has no masked accuracy by which to
choose dimensions, so all are reported.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import load_dataset
from matplotlib.figure import Figure
from transformers import AutoModel, AutoTokenizer

from bert_repro.configs import Phase, PretrainingConfig
from bert_repro.corpus.prepared_corpus import PreparedCorpus
from bert_repro.models.loading import load_tokenizer
from bert_repro.pretraining.dataset import PretrainingSource
from bert_repro.pretraining.evaluation import HeldOutEvaluation
from bert_repro.pretraining.model import build_model
from bert_repro.pretraining.objectives import MaskedLanguageModel
from bert_repro.pretraining.positions import DIMENSIONS, extend_positions, rotated
from bert_repro.training import run
from bert_repro.training.trainer import Trainer

ROOT = Path(__file__).resolve().parents[1]
MODEL, TRAINED, LENGTHS = str(ROOT / "checkpoints" / "bert-repro-mini"), 128, (256, 384, 512, 768, 1024)
STEPS, STEP_TOKENS, EVALUATED, CHOSEN_AT = 200, 768, 65_536, 384  # tokens, but for the steps
NOISE = "tile and noise, ten times the rate"
TEXTS, LONGEST, CUTS = 64, 512, ((128, 256), (128, 384), (128, 512), (256, 384), (256, 512))
STYLES = {
    "rotation": "ko-", "tile": "k^--", NOISE: "kD-.", "none": "ks:",
    f"rotation {DIMENSIONS[5]}": "ko-", f"rotation {DIMENSIONS[2]}": "kv-", "text cut": "ks:",
}  # fmt: skip


class LatePositions:
    """Counts right predictions at positions that the checkpoint never trained; stands in for an MlmBreakdown."""

    right = total = 0

    def add(self, output: Any, inputs: dict[str, Any]) -> None:
        """Counts a forward pass."""
        places = inputs["prediction_positions"]
        late = inputs["position_ids"].flatten()[places] >= TRAINED
        right = output.prediction_logits.max(-1).indices == inputs["labels"].flatten()[places]
        self.right, self.total = self.right + int((right & late).sum()), self.total + int(late.sum())


def masked_accuracy(options: argparse.Namespace, length: int, way: str) -> Iterator[dict[str, Any]]:
    """Extends the checkpoint one way; yields its held-out accuracy before and after training at the new length."""
    config = PretrainingConfig(
        corpus=options.corpus, model_name_or_path=MODEL, learning_rate=3e-4, bias_correction=True, warmup_ratio=0.1,
        mixed_precision="bf16", max_steps=STEPS, output_dir=f"{options.work}/{way}-{length}",
    )  # fmt: skip
    tokenizer, corpus, unseen = load_tokenizer(MODEL), *map(PreparedCorpus.load, (options.corpus, options.heldout))
    accelerator, model = run.begin(config).accelerator, build_model(config, tokenizer)
    training, ids = corpus.split(config.heldout_fraction)[0], np.arange(unseen.num_documents)

    def measure(text: PreparedCorpus, documents: Any, at: int, sequences: int, late: Any = None) -> float:
        few = replace(config, max_eval_sequences=sequences)
        evaluation = HeldOutEvaluation(few, Phase(at, 1, 1), text, documents, tokenizer)
        return evaluation.measure(model, accelerator, late)["mlm_accuracy"]

    def row(steps: int) -> dict[str, Any]:
        late = LatePositions()
        scores = {"accuracy": measure(unseen, ids, length, EVALUATED // length, late)}
        scores["from_128"] = late.right / late.total
        if steps or way == "none":  # before training all ways read 128 tokens alike
            scores["at_128"] = measure(unseen, ids, TRAINED, EVALUATED // TRAINED)
        return {"way": way, "length": length, "steps": steps, **scores} | ({"done": done} if way == "rotation" else {})

    old, kind = model.bert.embeddings.position_embeddings.weight.detach(), "rotation" if way == "rotation" else "tile"
    untrained = model.config.initializer_range * torch.randn(max(length, len(old)), old.shape[1])
    untrained[: len(old)] = old
    done = extend_positions(model, kind, TRAINED, length, lambda: measure(corpus, training[:2000], CHOSEN_AT, 256))
    rows = model.bert.embeddings.position_embeddings.weight
    if way in (NOISE, "none"):
        rows.data[TRAINED:] = untrained[TRAINED:] + (way == NOISE) * rows.data[TRAINED:]
    yield row(0)
    phase = Phase(length, STEPS, max(1, STEP_TOKENS // length))
    source = PretrainingSource(config, (phase,), corpus, training, tokenizer, model.config)
    count_right = MaskedLanguageModel.count_right
    trainer = Trainer(accelerator, model, source, config, tokenizer=tokenizer, count_right=count_right)
    if way == NOISE:
        groups = trainer.optimizer.optimizer.param_groups
        groups[0]["params"] = [parameter for parameter in groups[0]["params"] if parameter is not rows]
        groups.append({**groups[0], "params": [rows], "lr_scale": 10.0})
    trainer.train()
    yield row(STEPS)


@torch.no_grad()
def vectors_kept(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Cuts the positions of an encoder and makes them again; yields mean cosines with its own vectors."""
    tokenizer = AutoTokenizer.from_pretrained(options.encoder, trust_remote_code=False)
    model = AutoModel.from_pretrained(options.encoder, trust_remote_code=False).eval()
    texts = load_dataset("json", data_files=options.texts, split="train", streaming=True)
    read = (tokenizer(row["text"], truncation=True, max_length=LONGEST)["input_ids"] for row in texts)
    ids = torch.tensor(list(islice((row for row in read if len(row) == LONGEST), TEXTS)))
    weight = model.embeddings.position_embeddings.weight
    rows = weight.double()

    def vectors(length: int) -> torch.Tensor:
        parts = torch.cat([ids[:, : length - 1], ids[:, -1:]], 1).split(16)
        with torch.autocast("cpu", torch.bfloat16):
            return torch.cat([model(part).last_hidden_state.float().mean(1) for part in parts])

    for cut, length in CUTS:
        weight.copy_(rows)
        whole, made = vectors(length), {"text cut": vectors(cut)}
        late = {f"rotation {number}": rotated(rows[:cut], LONGEST - cut, number) for number in DIMENSIONS}
        for way, more in {**late, "tile": rows[:cut].repeat(-(-LONGEST // cut), 1)[cut:LONGEST]}.items():
            weight[cut:LONGEST] = more
            made[way] = vectors(length)
        for way, own in made.items():
            cosine = float(torch.cosine_similarity(whole, own).mean())
            yield {"way": way, "cut_to": cut, "length": length, "cosine": cosine}


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draws accuracy and cosine over the length of an input; the curves differ in line and marker."""
    curves: dict[tuple[str, int, int], list[tuple[int, float]]] = {}
    for row in rows:
        key = row["way"], row.get("steps", 0), row.get("cut_to", 0)
        curves.setdefault(key, []).append((row["length"], row["accuracy" if "accuracy" in row else "cosine"]))
    figure = Figure(figsize=(10, 5.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for (way, steps, cut), points in curves.items():
        if way in STYLES and cut in (0, CUTS[0][0]):
            label, fill = (f"{way}, then {steps} steps", "none") if steps else (way, "full")
            (right if cut else left).plot(*zip(*sorted(points), strict=True), STYLES[way], label=label, fillstyle=fill)
    before = next(row["at_128"] for row in rows if row["way"] == "none" and not row["steps"])
    left.axhline(before, color="0.5", linewidth=0.8, label="the checkpoint at 128 tokens")
    left.set(title="bert-repro-mini, trained at 128 tokens", ylabel="MLM accuracy on unseen text")
    right.set(title="all-MiniLM-L6-v2, positions cut to 128", ylabel="cosine with the vectors of the whole model")
    for axis in (left, right):
        axis.set(
            xlabel="tokens of an input", xticks=sorted({x for line in axis.lines for x in line.get_xdata() if x > 1})
        )
        axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.15))
    figure.savefig(path, dpi=110)


def main(arguments: list[str] | None = None) -> Path:
    """Measures; writes docs/reference_curves/longer_inputs.json and docs/tutorials/longer_inputs.png."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("corpus", "heldout", "encoder", "texts", "work"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    options = parser.parse_args(arguments)
    path, rows = options.docs / "reference_curves" / "longer_inputs.json", list(vectors_kept(options))
    for length, way in product(LENGTHS, list(STYLES)[:4]):
        rows += masked_accuracy(options, length, way)
        # After every case, so that an interrupted run leaves what it has.
        path.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n", encoding="utf-8")
    plot(rows, options.docs / "tutorials" / "longer_inputs.png")
    return path


if __name__ == "__main__":
    main()
