"""The fine-tuning step side by side with transformers at the lengths of MRPC and of SQuAD.

    python benchmarks/finetuning_step.py                    # bf16, base: a few minutes on two cores

Ours is the product: `Trainer` on a `FinetuningSource`, sequences laid end to end. The other side is a plain PyTorch
loop around transformers' model with dynamic padding (to the longest of the batch), tuned: bf16 autocast, SDPA, fused
AdamW, a loader process. Both see the same features, first shown to give the same loss and gradients. The data is made
up: token ids are random, lengths are drawn from the distributions below, measured on the real files with the original
uncased vocabulary.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from accelerate import Accelerator
from pretraining_step import TUNED, TUNED_KEPT, show_parity
from side_by_side import baselines, corpora, results_file, timing
from side_by_side.baselines import ENDLESS, StepSpec
from torch.utils.data import DataLoader
from transformers import BertConfig

import bert_repro
from bert_repro.configs import FinetuningConfig, SquadConfig
from bert_repro.finetuning.batch_source import FinetuningSource, ModelInputs
from bert_repro.models.cpu_kernels import use_cpu_kernels
from bert_repro.tasks import TASKS
from bert_repro.training.batches import BatchSizes
from bert_repro.training.cpu import keep_freed_memory, prepare_cpu, use_fast_float32
from bert_repro.training.optimizer import parameter_groups
from bert_repro.training.trainer import Trainer

# Tokens per sequence at the 0th, 5th, ... 100th percentile, [CLS] and [SEP] included.
PERCENTILES = {
    # The 3,668 training pairs, at most 128 tokens; mean 53.2.
    "mrpc": (19, 32, 36, 39, 41, 44, 45, 47, 50, 51, 53, 55, 57, 59, 61, 62, 64, 67, 70, 74, 103),
    # Windows of every fourth question of a 19,391-question part of v1.1's training set, at most 384 tokens; mean 168.4.
    "squad": (37, 74, 93, 106, 115, 122, 129, 135, 142, 148, 156, 164, 173, 181, 190, 202, 217, 237, 262, 304, 384),
}
UPSTREAM_HEADS = {"mrpc": "BertForSequenceClassification", "squad": "BertForQuestionAnswering"}
FEATURES = 2048


@dataclass(frozen=True)
class FinetuningSpec(StepSpec):
    """A fine-tuning step; `length` is unused.

    Args:
        task: `mrpc` or `squad`.
    """

    task: str = "mrpc"


def main(arguments: list[str] | None = None) -> Path:
    """Measures every case, prints, and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["mrpc", "squad"], choices=list(PERCENTILES))
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--batch", type=int, help="default: 32; 8 of SQuAD's long sequences, for memory")
    parser.add_argument("--steps", type=int, default=1, help="of an iteration")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--precision", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=corpora.VOCABULARY)
    parser.add_argument("--name", default="", help="added to the name of the results file, to keep several of a day")
    parser.add_argument("--results", type=Path, default=results_file.RESULTS)
    options = parser.parse_args(arguments)
    content: dict[str, Any] = {"percentiles_of_length": PERCENTILES, "cases": []}
    path = options.results
    for task in options.tasks:
        spec = FinetuningSpec(
            options.layers, options.hidden, 0, options.batch or (8 if task == "squad" else 32), options.steps,
            "no" if options.precision == "fp32" else "bf16", vocabulary=options.vocabulary, task=task,
        )  # fmt: skip
        content["cases"].append(measure(spec, options))
        path = results_file.write(f"finetuning_step{options.name}", "cpu", options.threads, content, options.results)
    return path


def measure(spec: FinetuningSpec, options: argparse.Namespace) -> dict[str, Any]:
    """One task: parity, then speed."""
    print(f"== {spec.task}, {spec.layers}/{spec.hidden}, {spec.batch} sequences, {options.precision}", flush=True)
    agreed = show_parity(spec, options.threads, parity)
    workloads: dict[str, tuple[timing.Workload, Any]] = {
        "ours": (ours, spec), TUNED: (upstream, spec), TUNED_KEPT: (upstream_with_kept_memory, spec),
    }  # fmt: skip
    made = timing.compare(workloads, options.repeats, options.threads)
    table = {
        name: timing.speeds(iterations) | {"ours_is_faster_by": timing.speedup(made["ours"], iterations)}
        for name, iterations in made.items()
    }
    for name, row in table.items():
        print(f"  {name:35} {results_file.summary(row['per_second'], 0):28} tokens a second   ours is faster by "
              f"{results_file.summary(row['ours_is_faster_by'])}", flush=True)  # fmt: skip
    fills = [iteration.metrics["fill"] for iteration in made[TUNED]]
    return {
        "task": spec.task, "layers": spec.layers, "hidden": spec.hidden, "batch": spec.batch,
        "precision": options.precision, "parity": agreed, "fill_of_dynamic_padding": sum(fills) / len(fills),
        "candidates": table, "ratio": table[TUNED]["ours_is_faster_by"],
    }  # fmt: skip


def made_up_features(task: str, number: int = FEATURES) -> Any:
    """Features of a task with natural lengths and random tokens."""
    import datasets

    generator = np.random.default_rng(0)
    percentiles = PERCENTILES[task]
    grid = np.linspace(0, 1, len(percentiles))
    lengths = np.interp(generator.random(number), grid, percentiles).astype(int)
    columns: dict[str, list[Any]] = {"input_ids": [], "token_type_ids": [], "length": lengths.tolist(), "labels": []}
    for length in lengths.tolist():
        columns["input_ids"].append(generator.integers(1000, corpora.VOCABULARY, length).tolist())
        columns["token_type_ids"].append([0] * (length // 2) + [1] * (length - length // 2))
        start = int(generator.integers(0, length))
        columns["labels"].append(int(generator.integers(0, 2)) if task == "mrpc" else [start, start])
    return datasets.Dataset.from_dict(columns)


def new_models(spec: FinetuningSpec, *sides: str) -> list[Any]:
    """The models of `ours` and `upstream` with equal weights."""
    config = baselines.model_config(spec, num_labels=2)
    torch.manual_seed(0)
    own = getattr(bert_repro, TASKS[spec.task].head)(config)
    made = [own]
    if "upstream" in sides:
        settings = config.to_dict()
        upstream_config = BertConfig(**{name: settings[name] for name in settings if hasattr(BertConfig(), name)})
        upstream_config._attn_implementation = "sdpa"
        made.append(getattr(transformers, UPSTREAM_HEADS[spec.task])(upstream_config))
        made[1].load_state_dict(own.state_dict())
    return [model.to(spec.device).train() for model in made]


def source_of(spec: FinetuningSpec, folder: str) -> FinetuningSource:
    """The product's source of batches."""
    kind = FinetuningConfig if spec.task == "mrpc" else SquadConfig
    config = kind(
        model_name_or_path="-", task_name=spec.task, output_dir=folder, do_train=True, max_steps=ENDLESS, seed=0,
        mixed_precision=spec.precision, warmup_ratio=0.0, dataloader_num_workers=spec.workers,
        logging_steps=spec.steps, eval_steps=spec.steps,
    )  # fmt: skip
    task, sizes = TASKS[spec.task], BatchSizes(spec.batch, spec.batch)

    model_inputs = ModelInputs(config, task, 0, torch.device(spec.device))
    return FinetuningSource(config, task, made_up_features(spec.task), sizes, 1, model_inputs)


def ours(spec: FinetuningSpec, report: Callable[..., None]) -> None:
    """The product's fine-tuning step."""
    with tempfile.TemporaryDirectory() as folder, baselines.quiet():
        source = source_of(spec, folder)
        prepare_cpu()
        rows: list[dict[str, float]] = []

        def end_of_iteration() -> dict[str, Any]:
            already = rows[-2]["tokens"] if len(rows) > 1 else 0
            report(rows[-1]["tokens"] - already, loss=rows[-1]["loss"])
            return {}

        accelerator = Accelerator(cpu=True, mixed_precision=spec.precision)
        (model,) = new_models(spec)
        use_cpu_kernels(model)
        Trainer(
            accelerator, model, source, source.config, tokenizer=None, evaluate=end_of_iteration, on_row=rows.append
        ).train()


def batches(spec: FinetuningSpec, source: FinetuningSource) -> Iterator[dict[str, Any]]:
    """The same features in the same order, padded to the longest of each batch, by a loader process."""
    yield from DataLoader(
        _Padded(source), sampler=source.steps(None), batch_size=None, num_workers=spec.workers
    )  # fmt: skip


class _Padded(torch.utils.data.Dataset[Any]):
    def __init__(self, source: FinetuningSource) -> None:
        self.source = source

    def __getitem__(self, step: Any) -> dict[str, Any]:
        return padded(self.source, step.ids)


def padded(source: FinetuningSource, ids: Any) -> dict[str, Any]:
    """A batch with dynamic padding, as transformers' heads take it."""
    rows = source.features[ids.tolist()]
    named = [dict(zip(rows, values, strict=True)) for values in zip(*rows.values(), strict=True)]
    batch = source.task.collate(named, pad_token_id=0, packing=False)
    batch.pop("answer_mask", None)
    return batch


def upstream(spec: FinetuningSpec, report: Callable[..., None]) -> None:
    """Transformers' model in a plain, tuned loop with dynamic padding."""
    with tempfile.TemporaryDirectory() as folder:
        use_fast_float32()
        _, model = new_models(spec, "upstream")
        optimizer = torch.optim.AdamW(parameter_groups(model, 0.01), lr=5e-5, eps=1e-6, fused=True)
        made = batches(spec, source_of(spec, folder))
        while True:
            losses, tokens, places = [], 0, 0
            for _ in range(spec.steps):
                batch = next(made)
                tokens, places = tokens + int(batch["attention_mask"].sum()), places + batch["input_ids"].numel()
                losses.append(baselines.upstream_step(spec, model, optimizer, batch))
            report(tokens, loss=float(torch.stack(losses).mean()), fill=tokens / places)


def upstream_with_kept_memory(spec: FinetuningSpec, report: Callable[..., None]) -> None:
    """The tuned loop with our setting of the C library's allocator, which any program could make."""
    keep_freed_memory()
    upstream(spec, report)


def parity(spec: FinetuningSpec, report: Callable[..., None]) -> None:
    """Same weights, same features, float32, no dropout: loss and gradients of both sides."""
    with tempfile.TemporaryDirectory() as folder:
        source = source_of(spec, folder)
    model, other = new_models(replace(spec, dropout=0.0), "upstream")
    ids = next(source.steps(None)).ids
    if spec.task == "squad":
        ids = ids[:1]  # transformers' heads count the padding of a batch among the answers, ours does not
    own = baselines.loss_with_gradients(model, source.load(ids, 0).inputs, spec.device)
    theirs = baselines.loss_with_gradients(other, padded(source, ids), spec.device)
    difference = baselines.largest_gradient_difference(model, other)
    report(1, loss=own, loss_difference=abs(own - theirs) / theirs, gradient_difference=difference)


if __name__ == "__main__":
    main()
