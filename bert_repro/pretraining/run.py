"""Pre-trains a BERT on a prepared corpus and publishes it (paper 3.1, A.2).

Order of events:

1. Load the corpus and divide its documents into training and held-out ones.
2. Build the model, and extend its positions if the run reads longer inputs than its checkpoint.
3. Measure the baselines on held-out text, and check the examples.
4. Train all phases as one run with one schedule.
5. Merge an adapter, evaluate on held-out text, publish.
"""

import logging
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate import Accelerator

from bert_repro.configs import Phase, PretrainingConfig
from bert_repro.corpus.prepared_corpus import PreparedCorpus
from bert_repro.hub.corpora import corpus_folder
from bert_repro.models.loading import load_config, load_tokenizer
from bert_repro.pretraining.cost import cost_estimate
from bert_repro.pretraining.dataset import PretrainingSource
from bert_repro.pretraining.evaluation import HeldOutEvaluation, MlmBreakdown
from bert_repro.pretraining.health import HealthChecks
from bert_repro.pretraining.model import build_model, new_model_config
from bert_repro.pretraining.objectives import objective_of, token_entropy
from bert_repro.pretraining.positions import extend_and_measure, resolve_input_length
from bert_repro.pretraining.schedule import TimeBudget, resolve_phases, with_steps
from bert_repro.pretraining.widget_example import languages_of, widget_example
from bert_repro.results import RunResults
from bert_repro.training import adapters, checkpoint, resume, run
from bert_repro.training.performance import resolve_precision
from bert_repro.training.trainer import Trainer, place
from bert_repro.utils.arrays import Int64Array
from bert_repro.utils.files import SAMPLE_INDEX
from bert_repro.utils.process import world_size

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

logger = logging.getLogger("bert_repro")

# Names of the baselines in results.json and on the card.
_MOST_FREQUENT_TOKEN = "the most frequent token"
_MODEL_BEFORE = "the model before"

_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class _Data:
    """What a run reads.

    Args:
        corpus: the prepared corpus.
        training: ids of the documents to train on, int64.
        heldout: ids of the documents that training never sees, int64.
        tokenizer: tokenizer of the corpus.
    """

    corpus: PreparedCorpus
    training: Int64Array
    heldout: Int64Array
    tokenizer: "PreTrainedTokenizerFast"

    def description(self) -> dict[str, Any]:
        """Returns `data` of results.json."""
        manifest = self.corpus.manifest
        languages = languages_of(self.corpus)
        example = widget_example(self.corpus, self.heldout, self.tokenizer)
        return {
            "language": languages[0] if len(languages) == 1 else languages,
            **({"example": example} if example else {}),
            "sources": [Path(source[0]).name for source in manifest["settings"]["sources"]],
            "counts": manifest["counts"],
            "vocab_size": manifest["vocab_size"],
            "tokenizer_fingerprint": manifest["tokenizer_fingerprint"],
            "training_documents": len(self.training),
            "heldout_documents": len(self.heldout),
        }


def run_pretraining(config: PretrainingConfig) -> RunResults:
    """Pre-trains a model and publishes it in `config.output_dir`.

    Returns:
        The content of results.json; nothing for a dry run.

    Raises:
        UserError: the corpus, the checkpoint and the settings do not fit together.
        NonFiniteError, StopRequested: see `bert_repro.training.trainer.Trainer.train`.
    """
    config = resolve_precision(config)
    data = _load_data(config)
    if config.dry_run:
        sys.stdout.write(_dry_run(config, data) + "\n")
        return {}
    with run.begin(config) as begun:
        return _pretrain(begun, data)


def _load_data(config: PretrainingConfig) -> _Data:
    folder = corpus_folder(config.corpus)
    # Opened before the output folder is touched: a wrong name costs nothing.
    corpus = PreparedCorpus.load(folder)
    # Segment B of a NotNext pair comes from another document of the same side, so each side needs two.
    documents_per_side = 2 if objective_of(config).draws_pairs else 1
    training, heldout = corpus.split(config.heldout_fraction, at_least=documents_per_side)
    return _Data(corpus, training, heldout, load_tokenizer(folder / "tokenizer"))


def _dry_run(config: PretrainingConfig, data: _Data) -> str:
    """Returns the estimate of a run."""
    if config.model_name_or_path:
        model_config = load_config(config.model_name_or_path)
    else:
        model_config = new_model_config(config, len(data.tokenizer))
    devices = world_size()
    training_tokens = int(np.diff(data.corpus.document_starts)[data.training].sum())
    return cost_estimate(config, model_config, resolve_phases(config, devices), training_tokens, devices)


def _pretrain(begun: run.Run[PretrainingConfig], data: _Data) -> RunResults:
    accelerator = begun.accelerator
    config = resolve_layout(begun.config, accelerator.device)
    objective = objective_of(config)

    # Build the model and compare its inputs with those of the phases.
    model = place(build_model(config, data.tokenizer), accelerator.device)
    phases = resolve_phases(config, accelerator.num_processes)
    length = resolve_input_length(config, phases, model.config.max_position_embeddings)
    data.tokenizer.model_max_length = length.model_max_length
    if config.max_train_hours and resume.resumes(config):
        phases = _phases_of_checkpoint(config, phases)

    # Everything that the run reads is right, so the output folder may be cleared. The sample indexes are written there.
    begun.clear()
    extension = {}
    if length.extends:
        extension = extend_and_measure(
            config, accelerator, model, data.corpus, data.training, data.heldout, data.tokenizer, length
        )
    source = PretrainingSource(
        config,
        phases,
        data.corpus,
        data.training,
        data.tokenizer,
        model.config,
        processes=accelerator.num_processes,
    )
    evaluations = _evaluations(config, phases, data, accelerator)

    # Measure what the model must beat, and check the examples.
    token_counts = data.corpus.token_counts()
    baselines = _baselines(config, token_counts)
    if config.model_name_or_path and not length.extends:
        baselines[_MODEL_BEFORE] = evaluations[-1].measure(model, accelerator)
    health = HealthChecks(config, token_entropy(token_counts))
    health.check_data(*source.sample_shares())

    # Train all phases.
    replan = None
    if config.max_train_hours:
        replan = TimeBudget(source, _SECONDS_PER_HOUR * config.max_train_hours)
    trainer = Trainer(
        accelerator,
        model,
        source,
        config,
        tokenizer=data.tokenizer,
        count_right=objective.count_right,
        on_row=health.check_row,
        compile_options=compile_options(config),
        static_shapes=bool(config.static_shapes),
        pooling=config.pooling,
        replan=replan,
    )
    trainer.evaluate = _evaluate_current_phase(trainer, evaluations)
    logger.info("%s", _plan(config, phases, model, len(data.training)))
    trainer.train()

    # Evaluate the finished model at the length of the last phase.
    model, train_results = adapters.merge_and_save(
        trainer.model, data.tokenizer, begun.output_dir, write=accelerator.is_main_process
    )
    breakdown = MlmBreakdown(config, token_counts, data.tokenizer.mask_token_id)
    metrics = evaluations[-1].measure(model, accelerator, breakdown)
    _log_metrics(metrics, baselines, objective.main_metric, evaluations[-1].rows)
    if accelerator.is_main_process:
        health.check_end(metrics, trainer.log.tokens)

    # Every process has read its last example.
    if accelerator.is_local_main_process:
        shutil.rmtree(begun.output_dir / SAMPLE_INDEX, ignore_errors=True)

    # Collect the results and publish.
    train: dict[str, Any] = {**train_results, **extension}
    train |= {"steps": trainer.state.step, "compiled_graphs": trainer.compiled_graphs}
    if trainer.micro_batch_splits > 1:
        train["micro_batch_parts"] = trainer.micro_batch_splits
    train["phases"] = [vars(phase) for phase in source.phases]
    return begun.finish(
        model,
        data.tokenizer,
        {
            "task": "pre-training",
            "objective": objective.description,
            "split": "held-out documents",
            "metrics": metrics,
            "primary_metric": objective.main_metric,
            "baselines": baselines,
            "mlm_breakdown": breakdown.results(accelerator),
            "rows_scored": evaluations[-1].rows,
            "data": data.description(),
            "train": train,
        },
        pooling=config.pooling,
    )


def _phases_of_checkpoint(config: PretrainingConfig, phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
    """Returns the phases with the steps that a run with a time limit had planned when it was interrupted."""
    folder = checkpoint.find(Path(config.output_dir), config.resume_from_checkpoint or "")
    fingerprint = checkpoint.read_state(folder).data_fingerprint or {}
    return with_steps(phases, fingerprint.get("steps", ()))


def _evaluations(
    config: PretrainingConfig, phases: tuple[Phase, ...], data: _Data, accelerator: Accelerator
) -> list[HeldOutEvaluation]:
    """Returns the held-out evaluation of each phase, at its length."""
    static_shapes = accelerator.device.type == "xla"
    evaluations: list[HeldOutEvaluation] = []
    for phase in phases:
        evaluation = HeldOutEvaluation(
            config, phase, data.corpus, data.heldout, data.tokenizer, static_shapes=static_shapes
        )
        evaluations.append(evaluation)
    return evaluations


def _evaluate_current_phase(trainer: Trainer, evaluations: list[HeldOutEvaluation]) -> Callable[[], dict[str, Any]]:
    """Returns a function that measures the trainer's model at the length of the phase that it is in."""

    def evaluate() -> dict[str, Any]:
        assert trainer.state.position, "a step was taken"
        evaluation = evaluations[trainer.state.position["phase"]]
        metrics = evaluation.measure(trainer.model, trainer.accelerator)
        return {"max_seq_length": evaluation.max_seq_length, **metrics}

    return evaluate


def _baselines(config: PretrainingConfig, token_counts: Int64Array) -> dict[str, dict[str, float]]:
    """Returns the accuracy of always predicting the most frequent token."""
    share = float(token_counts.max() / token_counts.sum())
    return {_MOST_FREQUENT_TOKEN: {objective_of(config).main_metric: share}}


def _plan(config: PretrainingConfig, phases: tuple[Phase, ...], model: Any, num_documents: int) -> str:
    """Returns one line about the run: parameters, documents, steps of each phase."""
    if config.max_train_hours:
        # The number of steps is planned when the speed is known.
        schedule = f"{config.max_train_hours:g} hours"
    else:
        descriptions = [f"{phase.steps:,} steps of {phase.batch} x {phase.max_seq_length} tokens" for phase in phases]
        schedule = ", then ".join(descriptions)
    return f"Pre-training {model.num_parameters():,} parameters on {num_documents:,} documents: {schedule}."


def _log_metrics(
    metrics: Mapping[str, float], baselines: Mapping[str, Mapping[str, float]], main_metric: str, rows: int
) -> None:
    scores = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
    logger.info("Held-out, %s sequences: %s", f"{rows:,}", scores)
    for name, baseline in baselines.items():
        remark = ""
        if baseline[main_metric] >= metrics[main_metric]:
            remark = ". The model does not beat it"
        logger.info("Baseline, %s: %s %.4f%s", name, main_metric, baseline[main_metric], remark)


def resolve_layout(config: PretrainingConfig, device: torch.device) -> PretrainingConfig:
    """Returns the configuration with `torch_compile`, `static_shapes` and `packing` resolved for a device.

    A GPU gets a compiled graph. For packed batches the graph accepts any number of tokens, predictions and sequences,
    so nothing is computed on padding. Other compiled graphs, and XLA, which compiles everything it sees, get static
    shapes. These are padded, because such graphs cannot depend on the offsets of packed sequences.
    """
    on_gpu = device.type == "cuda"
    on_xla = device.type == "xla"
    compiled = on_gpu if config.torch_compile is None else config.torch_compile
    static = config.static_shapes
    if static is None:
        packs_on_gpu = on_gpu and config.packing
        static = on_xla or (compiled and not packs_on_gpu)
    packing = config.packing and not static and not on_xla
    return replace(config, torch_compile=compiled, static_shapes=static, packing=packing)


def compile_options(config: PretrainingConfig) -> dict[str, Any] | None:
    """Returns the options of `torch.compile` for a configuration of `resolve_layout`; None does not compile."""
    if not config.torch_compile:
        return None
    return {"dynamic": not config.static_shapes}
