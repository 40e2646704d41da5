"""Pre-trains a BERT with its MLM and NSP heads on a prepared corpus and publishes it (paper 3.1, A.2)."""

import logging
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bert_repro.configs import Phase, PretrainingConfig, require
from bert_repro.configs.presets import tokens_including_padding
from bert_repro.corpus.prepared_corpus import PreparedCorpus
from bert_repro.hub.corpora import corpus_folder
from bert_repro.models.loading import load_config, load_tokenizer, longest_input
from bert_repro.models.modeling_bert_repro import BertReproForPreTraining
from bert_repro.pretraining.dataset import PretrainingSource
from bert_repro.pretraining.evaluation import HealthChecks, HeldOutEvaluation, MlmBreakdown, count_right
from bert_repro.pretraining.model import build_model, extend_and_measure, new_model_config
from bert_repro.results import RunResults
from bert_repro.training import adapters, checkpoint, run
from bert_repro.training.batches import batch_sizes
from bert_repro.training.performance import estimated_times, pretraining_flops, resolve_precision
from bert_repro.training.trainer import Trainer, place
from bert_repro.utils.arrays import Int64Array
from bert_repro.utils.files import SAMPLE_INDEX
from bert_repro.utils.process import broadcast, world_size

logger = logging.getLogger("bert_repro")

PAPER_BATCH, PAPER_LENGTH = 256, 512
_UNTIL_MEASURED = 1_000  # steps of a run that is given time alone, until its speed is known


def run_pretraining(config: PretrainingConfig) -> RunResults:
    """Pre-trains a model and publishes it in `config.output_dir`.

    Returns:
        The results that results.json holds.

    Raises:
        UserError: the corpus, the checkpoint and the settings do not fit together.
        NonFiniteError, StopRequested: see `bert_repro.training.trainer.Trainer.train`.
    """
    config = resolve_precision(config)
    folder = corpus_folder(config.corpus)
    corpus = PreparedCorpus.load(folder)
    tokenizer = load_tokenizer(folder / "tokenizer")
    # Segment B of a NotNext pair comes from another document of the same side.
    draws_pairs = config.next_sentence_prediction or config.no_nsp_input == "pairs"
    training, heldout = corpus.split(config.heldout_fraction, at_least=2 if draws_pairs else 1)
    if config.dry_run:
        name, devices = config.model_name_or_path, world_size()
        shape = load_config(name) if name else new_model_config(config, len(tokenizer))
        tokens = int(np.diff(corpus.document_starts)[training].sum())
        sys.stdout.write(cost_estimate(config, shape, resolve_phases(config, devices), tokens, devices) + "\n")
        return {}
    with run.begin(config) as begun:
        return _pretrain(begun, corpus, training, heldout, tokenizer)


def _pretrain(
    begun: run.Run, corpus: PreparedCorpus, training: Int64Array, heldout: Int64Array, tokenizer: Any
) -> RunResults:
    accelerator, processes = begun.accelerator, begun.accelerator.num_processes
    config: PretrainingConfig = resolve_layout(begun.config, accelerator.device)
    model = place(build_model(config, tokenizer), accelerator.device)
    phases = resolve_phases(config, processes)
    longest, positions = max(phase.max_seq_length for phase in phases), model.config.max_position_embeddings
    start = config.model_name_or_path
    trained = longest_input(load_tokenizer(start), positions) if start else positions
    extends = start is not None and longest > trained and config.extend_positions != "none"
    fix = "give --extend_positions rotation" if start else "raise --max_position_embeddings"
    fault = f"--max_seq_length is {longest}; the model has {positions} positions; {fix}"
    require(longest <= positions or extends, fault)
    tokenizer.model_max_length = max(longest, trained if start else 0)
    if config.max_train_hours and checkpoint.resumes(config):
        # As many steps as the run had planned for its time when it was interrupted.
        state = checkpoint.read_state(checkpoint.find(begun.output_dir, config.resume_from_checkpoint or ""))
        planned = (state.data_fingerprint or {}).get("steps", ())
        phases = tuple(replace(phase, steps=steps) for phase, steps in zip(phases, planned, strict=True))
    begun.clear()  # before the sample indexes, which are in the folder
    extension = {}
    if extends:
        sides = (training, heldout)
        extension = extend_and_measure(config, accelerator, model, corpus, sides, tokenizer, trained, longest)
    source = PretrainingSource(config, phases, corpus, training, tokenizer, model.config, processes=processes)
    xla = accelerator.device.type == "xla"
    evaluations = [HeldOutEvaluation(config, phase, corpus, heldout, tokenizer, static_shapes=xla) for phase in phases]
    data, counts = _data_description(corpus.manifest, len(training), len(heldout)), corpus.token_counts()
    metric = "lm_accuracy" if config.left_to_right else "mlm_accuracy"
    baselines = {"the most frequent token": {metric: float(counts.max() / counts.sum())}}
    if start and not extends:  # which measures more
        baselines["the model before"] = evaluations[-1].measure(model, accelerator)
    health = HealthChecks(config)
    health.check_data(*source.sample_shares())

    def evaluate() -> dict[str, float]:
        assert trainer.state.position, "a step was taken"
        evaluation = evaluations[trainer.state.position["phase"]]
        return {"max_seq_length": evaluation.max_seq_length, **evaluation.measure(model, accelerator)}

    trainer = Trainer(
        accelerator,
        model,
        source,
        config,
        tokenizer=tokenizer,
        count_right=count_right,
        evaluate=evaluate,
        on_row=health.check_row,
        compile_options=compile_options(config),
        replan=TimeBudget(source, 3600 * config.max_train_hours) if config.max_train_hours else None,
    )
    logger.info("%s", _plan(config, phases, model, len(training)))
    trainer.train()
    writes = accelerator.is_main_process
    model, adapter = adapters.merge_and_save(trainer.model, tokenizer, begun.output_dir, write=writes)
    train = {"steps": trainer.state.step, "compiled_graphs": trainer.compiled_graphs}
    train |= {"micro_batch_parts": trainer.micro_batch_parts} if trainer.micro_batch_parts > 1 else {}
    breakdown = MlmBreakdown(counts, tokenizer.mask_token_id)
    metrics = evaluations[-1].measure(model, accelerator, breakdown)
    scores = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
    logger.info("held-out, %s sequences: %s", f"{evaluations[-1].rows:,}", scores)
    for name, found in baselines.items():
        remark = ": the model is not ahead of it" if found[metric] >= metrics[metric] else ""
        logger.info("baseline, %s: %s %.4f%s", metric, name, found[metric], remark)
    if accelerator.is_local_main_process:  # every process has read its last example
        shutil.rmtree(begun.output_dir / SAMPLE_INDEX, ignore_errors=True)
    return begun.finish(
        model,
        tokenizer,
        {
            "task": "pre-training",
            "split": "held-out documents",
            "metrics": metrics,
            "primary_metric": metric,
            "baselines": baselines,
            "mlm_breakdown": breakdown.results(accelerator),
            "rows_scored": evaluations[-1].rows,
            "data": data,
            "train": {**adapter, **extension, **train, "phases": [vars(phase) for phase in source.phases]},
        },
    )


def _plan(config: PretrainingConfig, phases: Sequence[Phase], model: Any, documents: int) -> str:
    steps = ", then ".join(f"{one.steps:,} steps of {one.batch} x {one.max_seq_length} tokens" for one in phases)
    if config.max_train_hours:  # its steps are planned when its speed is known
        steps = f"{config.max_train_hours:g} hours"
    return f"{model.num_parameters():,} parameters, {documents:,} documents: {steps}"


class TimeBudget:
    """Plans as many steps as fit into the time of a run, from the speed that it measures.

    The first plan is made at the second row of the log, later ones where the run would end more than 2% too late.

    Args:
        source: its phases get other steps, in their own proportions.
        seconds: of training.
    """

    def __init__(self, source: PretrainingSource, seconds: float) -> None:
        self.source, self.seconds = source, seconds
        self.shares = np.array([phase.steps for phase in source.phases])
        self._start: tuple[int, float] | None = None
        self._planned = False

    def __call__(self, step: int, seconds: float) -> None:
        """Plans where that is due.

        Args:
            step: steps taken.
            seconds: of training so far; the main process's count for all.
        """
        seconds = broadcast(seconds)
        if self._start is None:  # compiling and filling caches is over
            self._start = (step, seconds)
            return
        source, (first, began) = self.source, self._start
        done = source.tokens_until(step)
        speed = (done - source.tokens_until(first)) / (seconds - began)
        left = max(0.0, self.seconds - seconds) * speed
        if self._planned and done + left > 0.98 * source.tokens_until(source.total_steps):
            return
        steps = np.cumsum([0, *(phase.steps for phase in source.phases)])
        taken = np.diff(np.minimum(steps, step))  # of each phase
        sizes = np.array([phase.batch * phase.max_seq_length for phase in source.phases])
        rest = np.maximum(self.shares * ((done + left) / (self.shares * sizes).sum()) - taken, 0)
        rest *= left / max(1.0, (rest * sizes).sum())  # a phase that took more than its share leaves less to the others
        wanted = (taken + np.round(rest)).astype(int).tolist()
        source.set_steps([*wanted[:-1], max(1, wanted[-1])])
        self._planned = True
        logger.info("%s steps fit into the time (%s tokens a second)", f"{source.total_steps:,}", f"{speed:,.0f}")


def resolve_phases(config: PretrainingConfig, processes: int) -> tuple[Phase, ...]:
    """Returns the phases of the run with their `per_device_batch`: those given, or one of `max_steps`.

    With both, the phases share `max_steps` as they share their own steps.

    Raises:
        UserError: neither phases nor max_steps are given, or a batch cannot be shared by the processes.
    """
    if config.phases:
        steps = np.cumsum([0, *(phase.steps for phase in config.phases)])
        ends = steps if config.max_steps is None else np.round(steps * (config.max_steps / steps[-1])).astype(int)
        phases = []
        for phase, own_steps in zip(config.phases, np.diff(ends).tolist(), strict=True):
            require(own_steps > 0, f"--max_steps {config.max_steps}: phases of {len(config.phases)} need more steps")
            micro = phase.per_device_batch or config.per_device_train_batch_size
            sizes = batch_sizes(replace(config, per_device_train_batch_size=micro), processes, 0, fixed=phase.batch)
            phases.append(replace(phase, steps=own_steps, per_device_batch=sizes.micro))
        return tuple(phases)
    missing = "--max_steps is missing; give it, --max_train_hours, or phases through --preset or --config"
    require(config.max_steps or config.max_train_hours, missing)
    sizes = batch_sizes(config, processes, PAPER_BATCH)
    limit = config.max_predictions_per_seq
    return (Phase(config.max_seq_length, config.max_steps or _UNTIL_MEASURED, sizes.batch, limit, sizes.micro),)


def resolve_layout(config: PretrainingConfig, device: torch.device) -> PretrainingConfig:
    """Returns the configuration with `torch_compile`, `static_shapes` and `packing` resolved for a device.

    A GPU gets a compiled graph; for packed batches one that takes any number of tokens, predictions and sequences, so
    that nothing is computed on padding. Other compiled graphs get static shapes, as XLA does, which compiles whatever
    it sees; these are padded: offsets of packed sequences are data, on which such graphs cannot depend.
    """
    on_gpu, on_xla = device.type == "cuda", device.type == "xla"
    compiled, static = config.torch_compile, config.static_shapes
    if compiled is None:
        compiled = on_gpu
    if static is None:
        static = on_xla or (compiled and not (on_gpu and config.packing))
    packing = config.packing and not (static or on_xla)
    return replace(config, torch_compile=compiled, static_shapes=static, packing=packing)


def compile_options(config: PretrainingConfig) -> dict[str, Any] | None:
    """Returns what `torch.compile` is given for a configuration of `resolve_layout`; None does not compile."""
    return {"dynamic": not config.static_shapes} if config.torch_compile else None


def cost_estimate(
    config: PretrainingConfig, model_config: Any, phases: Sequence[Phase], training_tokens: int, devices: int
) -> str:
    """Estimates a run, as text: phases, tokens, passes over the corpus, memory, FLOPs, time here and on named devices.

    Args:
        config: how examples are masked.
        model_config: shape of the model.
        phases: as `resolve_phases` returns them.
        training_tokens: tokens of the documents to train on.
        devices: how many share the work.
    """
    lines = [
        f"model     {model_config.num_hidden_layers} layers, hidden {model_config.hidden_size}, "
        f"{model_config.num_attention_heads} heads, vocabulary {model_config.vocab_size:,}"
    ]
    for number, phase in enumerate(phases):
        per_device = phase.per_device_batch or phase.batch
        lines.append(
            f"phase {number}   {phase.steps:,} steps of {phase.batch} sequences of {phase.max_seq_length} tokens: "
            f"{phase.batch / (per_device * devices):.0f} forward pass(es) of {per_device} on {devices} device(s)"
        )
    # In bytes: weights, gradients and Adam's two averages; what the backward pass needs of each token, layer and hidden
    # unit (counted in our model, not compiled, with attention that keeps no scores), and of each logit.
    with torch.device("meta"):
        states = 16 * BertReproForPreTraining(model_config).num_parameters() / 2**30
    unit = 4 if config.gradient_checkpointing else 72 if config.mixed_precision == "no" else 46
    layers = unit * model_config.num_hidden_layers * model_config.hidden_size
    at_once = max((phase.per_device_batch or phase.batch) * phase.max_seq_length for phase in phases)
    held = at_once * (layers + 10 * config.masked_lm_prob * model_config.vocab_size) / 2**30
    seen, as_in_paper = tokens_including_padding(phases), tokens_including_padding(phases, max_seq_length=PAPER_LENGTH)
    flops = pretraining_flops(model_config, config, phases)
    lines += [
        f"tokens    {seen:,} with padding ({as_in_paper:,} with every sequence as {PAPER_LENGTH}, as in the paper)",
        f"passes    about {seen / training_tokens:,.1f} over the {training_tokens:,} tokens of the training documents",
        f"memory    estimated: {states + held:.1f} GiB on each device, {held:.1f} of them for a forward pass of "
        f"{at_once:,} tokens",
        f"compute   {flops:.2e} FLOPs in {'float32' if config.mixed_precision == 'no' else config.mixed_precision}",
        *estimated_times(flops, config.mixed_precision, devices),
    ]
    return "\n".join(lines)


def _data_description(manifest: Mapping[str, Any], training: int, heldout: int) -> dict[str, Any]:
    return {
        "sources": [Path(source[0]).name for source in manifest["settings"]["sources"]],
        **{name: manifest[name] for name in ("counts", "vocab_size", "tokenizer_fingerprint")},
        "training_documents": training,
        "heldout_documents": heldout,
    }
