"""Checks a pre-training run: rebuilds the batch of a step, and recomputes the logged losses up to it.

Every draw of a run is a function of (seed, phase, epoch, example, position), so its settings and its corpus decide
every batch, and a checkpoint decides what follows from it. Order of events in `replay`:

1. Read the settings, the phases and the log of the run; compare the corpus with the one that it was trained on.
2. Choose the nearest checkpoint before the step, or the untrained model if there is none.
3. Rebuild the batch of the step, and show some examples with their masks.
4. Make the steps after the checkpoint again, and compare their losses with the rows of the log.
"""

import logging
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bert_repro.configs import Phase, PretrainingConfig, ReplayConfig
from bert_repro.corpus.prepared_corpus import PreparedCorpus
from bert_repro.errors import UserError, flag
from bert_repro.hub.corpora import corpus_folder
from bert_repro.models.loading import load_config, load_tokenizer
from bert_repro.pretraining.audit import marked_text
from bert_repro.pretraining.dataset import PretrainingSource, make_collator
from bert_repro.pretraining.model import build_model, new_model_config
from bert_repro.pretraining.objectives import objective_of
from bert_repro.pretraining.run import compile_options, resolve_layout
from bert_repro.pretraining.schedule import resolve_phases
from bert_repro.results import read_results
from bert_repro.training import checkpoint, run, training_log
from bert_repro.training.batches import Step
from bert_repro.training.trainer import Trainer, place
from bert_repro.training.training_log import TOKENS
from bert_repro.utils.arrays import Int64Array, row_starts
from bert_repro.utils.files import MANIFEST, RESULTS, TRAIN_LOG, find_damage, step_of
from bert_repro.utils.readers import first_line, read_json_object

logger = logging.getLogger("bert_repro")

DIFFERS = 4  # exit code
_PUBLISHED_FILES = (TRAIN_LOG, RESULTS)

# Largest difference of a loss, in nats, by precision. With an equal environment (versions, processes, threads, device)
# a CPU computes equal bits, and the log has all digits of a float. Otherwise rounding differs in every step and grows
# with the number of steps; bfloat16 has 8 bits.
EQUAL_ENVIRONMENT_TOLERANCE = 1e-6
TOLERANCES: Mapping[str, float] = {"no": 1e-3, "fp16": 2e-2, "bf16": 5e-2}


@dataclass(frozen=True)
class PublishedRun:
    """A pre-training run, as its folder describes it.

    Args:
        folder: folder with its log, results and checkpoints.
        config: its settings.
        phases: its phases.
        rows: rows of its log.
        corpus: the corpus that is to be compared with its.
        tokenizer: tokenizer of the corpus.
    """

    folder: Path
    config: PretrainingConfig
    phases: tuple[Phase, ...]
    rows: list[dict[str, Any]]
    corpus: PreparedCorpus
    tokenizer: Any

    @property
    def total_steps(self) -> int:
        """Steps of all phases."""
        return sum(phase.steps for phase in self.phases)

    def split(self) -> tuple[Int64Array, Int64Array]:
        """Returns the ids of the documents to train on and of those held out."""
        documents_per_side = 2 if objective_of(self.config).draws_pairs else 1
        return self.corpus.split(self.config.heldout_fraction, at_least=documents_per_side)

    def source(self, output_dir: Path) -> PretrainingSource:
        """Returns the batch source of the run, with sample indexes in another folder."""
        training, _ = self.split()
        config = replace(self.config, output_dir=str(output_dir))
        if config.model_name_or_path and Path(config.model_name_or_path).exists():
            model_config = load_config(config.model_name_or_path)
        else:
            model_config = new_model_config(config, len(self.tokenizer))
        return PretrainingSource(config, self.phases, self.corpus, training, self.tokenizer, model_config)


@dataclass(frozen=True)
class RowComparison:
    """A row of the log, and the same means recomputed.

    Args:
        step: step of the row.
        name: loss term, or `tokens`.
        logged: value in the log.
        recomputed: value now.
    """

    step: int
    name: str
    logged: float
    recomputed: float

    @property
    def difference(self) -> float:
        """Absolute difference; infinite if one of the values is not a number."""
        difference = abs(self.logged - self.recomputed)
        return difference if math.isfinite(difference) else math.inf


@dataclass(frozen=True)
class ReplayResult:
    """The outcome of a replay.

    Args:
        step: the step whose batch was rebuilt.
        first: step that the recomputation started after.
        last: last step that was recomputed.
        comparisons: all comparisons with the log.
        tolerance: largest accepted difference of a loss.
    """

    step: int
    first: int
    last: int
    comparisons: tuple[RowComparison, ...]
    tolerance: float

    @property
    def failures(self) -> list[RowComparison]:
        """Comparisons that differ by more than the tolerance. Numbers of tokens must be equal."""
        failures: list[RowComparison] = []
        for comparison in self.comparisons:
            limit = 0.5 if comparison.name == TOKENS else self.tolerance
            if comparison.difference > limit:
                failures.append(comparison)
        return failures

    def sentence(self) -> str:
        """Returns the outcome in words."""
        steps = f"steps {self.first + 1:,} to {self.last:,} recomputed"
        if not self.failures:
            losses = [comparison.difference for comparison in self.comparisons if comparison.name != TOKENS]
            return (
                f"{steps}: the losses are those of the log (largest difference {max(losses, default=0.0):.2g} nats, "
                f"tolerance {self.tolerance:g})"
            )
        worst = self.failures[0]
        return (
            f"{steps}: {len(self.failures)} of {len(self.comparisons)} numbers differ from the log, first at step "
            f"{worst.step:,}: {worst.name} {worst.recomputed:.6f}, logged {worst.logged:.6f} (tolerance "
            f"{self.tolerance:g}). The log, the corpus or the code is not that of the run."
        )


def replay(config: ReplayConfig) -> ReplayResult:
    """Rebuilds the batch of a step and recomputes the losses from the nearest checkpoint before it.

    Returns:
        The outcome, if the losses agree.

    Raises:
        UserError: the run or the corpus is not there, or they do not belong together.
        SystemExit: the losses differ from the log (code 4).
    """
    published = open_run(config.run, config.corpus)
    last = _last_step(published, config.step)
    start = _checkpoint_before(published.folder, config.step)
    if start is not None:
        _require_same_corpus(published, start)

    with tempfile.TemporaryDirectory(prefix="bert_repro-replay-") as temporary:
        folder = Path(temporary)
        sys.stdout.write(_batch_text(published, config.step, config.num_examples, start, folder))
        result = _recompute(published, config.step, last, start, folder)
    sys.stdout.write(f"{result.sentence()}\n")
    if result.failures:
        raise SystemExit(DIFFERS)
    return result


# --- The run ----------------------------------------------------------------------------------------------------------


def open_run(name: str, corpus_name: str) -> PublishedRun:
    """Reads what a run's folder says of it, and opens the corpus.

    Args:
        name: folder of a pre-training run, finished or not, or the Hub id of a published one.
        corpus_name: folder or Hub id of the prepared corpus.

    Raises:
        UserError: there is no such run or corpus, or the run is not a pre-training.
    """
    folder = _run_folder(name)
    results = read_results(folder) if (folder / RESULTS).is_file() else {}
    settings = results.get("settings") or _settings_of_checkpoint(folder)
    if settings is None or "masked_lm_prob" not in settings:
        raise UserError(
            f"{flag('run', name)} has no settings of a pre-training: neither {RESULTS} nor a checkpoint. Pass the "
            "output folder of run_pretraining.",
            setting="run",
        )
    config = _config_of(settings)

    # A finished run says how long its phases really were, for example under --max_train_hours.
    phases = tuple(Phase(**phase) for phase in results.get("train", {}).get("phases", ()))
    if not phases:
        phases = resolve_phases(config, 1)

    corpus_path = corpus_folder(corpus_name)
    corpus = PreparedCorpus.load(corpus_path)
    published = PublishedRun(
        folder=folder,
        config=config,
        phases=phases,
        rows=training_log.read(folder / TRAIN_LOG),
        corpus=corpus,
        tokenizer=load_tokenizer(corpus_path / "tokenizer"),
    )
    _require_described_corpus(published, results.get("data", {}))
    return published


def _run_folder(name: str) -> Path:
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(_PUBLISHED_FILES)))
    except Exception as error:
        # The Hub's library raises exceptions of many kinds: no such id, no network ...
        raise UserError(
            f"{flag('run', name)}: there is no such folder, and no such model on the Hub ({first_line(error)}).",
            setting="run",
        ) from error


def _settings_of_checkpoint(folder: Path) -> Mapping[str, Any] | None:
    """Returns the settings in the newest checkpoint that can be read."""
    for candidate in checkpoint.newest_first(folder):
        if not find_damage(candidate):
            return checkpoint.read_state(candidate).settings
    return None


def _config_of(settings: Mapping[str, Any]) -> PretrainingConfig:
    """Returns the configuration of stored settings. Settings of other versions are left out."""
    names = {field.name for field in fields(PretrainingConfig)}
    values = {name: value for name, value in settings.items() if name in names}
    values["phases"] = tuple(Phase(**phase) for phase in values.get("phases") or ())
    return PretrainingConfig(**values)


def _require_described_corpus(published: PublishedRun, description: Mapping[str, Any]) -> None:
    """Compares the corpus with what the run's results say of it."""
    manifest = published.corpus.manifest
    for name in ("vocab_size", "tokenizer_fingerprint", "counts"):
        if name in description and description[name] != manifest[name]:
            raise UserError(
                f"{flag('corpus', published.corpus.folder)} is not the corpus of {published.folder}: its {name} "
                "differs. Pass the corpus that the run was trained on.",
                setting="corpus",
            )


def _require_same_corpus(published: PublishedRun, start: Path) -> None:
    """Compares the content of the corpus with the digest in a checkpoint."""
    fingerprint = checkpoint.read_state(start).data_fingerprint or {}
    digest = fingerprint.get("digest of the corpus")
    if digest is not None and digest != published.corpus.content_digest:
        raise UserError(
            f"{flag('corpus', published.corpus.folder)} has the digest {published.corpus.content_digest[:16]}, but the "
            f"run was trained on a corpus with the digest {digest[:16]}. Pass the corpus that the run was trained on.",
            setting="corpus",
        )


def _last_step(published: PublishedRun, step: int) -> int:
    """Returns the step of the first row of the log that contains a step."""
    if not 1 <= step <= published.total_steps:
        raise UserError(
            f"{flag('step', step)} does not exist: the run has the steps 1 to {published.total_steps:,}.",
            setting="step",
        )
    for row in published.rows:
        if TOKENS in row and "learning_rate" in row and row["step"] >= step:
            return int(row["step"])
    raise UserError(
        f"{flag('step', step)} is not in the log of {published.folder}, which ends before it. Choose an earlier step.",
        setting="step",
    )


def _checkpoint_before(folder: Path, step: int) -> Path | None:
    """Returns the latest valid checkpoint before a step, or None to start with the untrained model."""
    for candidate in checkpoint.newest_first(folder):
        if (step_of(candidate) or 0) >= step:
            continue
        damage = find_damage(candidate)
        if not damage:
            return candidate
        logger.warning("Checkpoint %s is not used: %s", candidate, damage)
    return None


# --- The batch --------------------------------------------------------------------------------------------------------


def _batch_text(published: PublishedRun, step: int, num_examples: int, start: Path | None, folder: Path) -> str:
    """Returns the batch of a step as text: its size, and some examples with their masks."""
    source = published.source(folder)
    batch = step_at(source, step, start)
    phase = published.phases[batch.group]
    ids = batch.ids
    stream = source.streams[batch.group]
    epochs = sorted({int(epoch) for epoch in ids[:, 0]})
    lines = [
        f"step {step:,}: {len(ids)} sequences of up to {phase.max_seq_length} tokens, "
        f"{int(stream.lengths(ids).sum()):,} tokens, phase {batch.group}, epoch {' and '.join(map(str, epochs))}",
    ]
    for text in example_texts(published, source, batch.group, ids[:num_examples]):
        lines += ["", text]
    return "\n".join(lines) + "\n\n"


def step_at(source: PretrainingSource, number: int, start: Path | None = None) -> Step:
    """Returns a step of a run by its number, counted from 1.

    Args:
        source: source of the run.
        number: number of the step.
        start: checkpoint before the step; None goes through all steps from the beginning.
    """
    position = None
    first = 0
    if start is not None:
        state = checkpoint.read_state(start)
        position, first = state.position, state.step
    for offset, step in enumerate(source.steps(position), start=1):
        if first + offset == number:
            return step
    raise UserError(f"{flag('step', number)} does not exist in this run.", setting="step")


def example_texts(published: PublishedRun, source: PretrainingSource, group: int, ids: Any) -> list[str]:
    """Returns examples as text, every prediction as {what is read -> what is to be predicted}.

    Args:
        published: the run.
        source: its batch source.
        group: phase of the examples.
        ids: ids of the examples, int64 [B, 2].
    """
    objective = objective_of(published.config)
    packed = replace(published.config, packing=True)
    examples = source.streams[group].read(ids)
    batch = make_collator(packed, published.phases[group], published.tokenizer)(examples)
    tokens = batch["input_ids"][0].numpy()
    labels = batch["labels"][0].numpy()

    texts: list[str] = []
    for number, (start, end) in enumerate(pairwise(row_starts(examples.lengths))):
        text = marked_text(tokens[start:end], labels[start:end], published.tokenizer)
        if not objective.decodes_chosen_positions:
            # Every token is predicted, so marking them would say nothing.
            text = marked_text(tokens[start:end], np.full(end - start, -100), published.tokenizer)
        if objective.has_sentence_labels:
            text = f"{'NotNext' if examples.next_sentence_labels[number] else 'IsNext'}: {text}"
        texts.append(text)
    return texts


# --- The losses -------------------------------------------------------------------------------------------------------


def _recompute(published: PublishedRun, step: int, last: int, start: Path | None, folder: Path) -> ReplayResult:
    """Makes the steps after a checkpoint again and compares their means with the log.

    Args:
        published: the run.
        step: the step that was asked for.
        last: step of the row of the log that contains it.
        start: checkpoint to start from; None starts with the untrained model.
        folder: folder for sample indexes.
    """
    config = replace(
        published.config,
        output_dir=str(folder),
        resume_from_checkpoint=None if start is None else str(start),
        allow_changed_settings=True,
        report_to=("none",),
        push_to_hub=False,
        eval_steps=None,
        save_steps=None,
        dataloader_num_workers=0,
    )
    # The checkpoint contains the weights that the run started from, changed by its steps.
    if start is not None and config.model_name_or_path and not config.peft:
        config = replace(config, model_name_or_path=str(start))

    with run.begin(config) as begun:
        device = begun.accelerator.device
        config = resolve_layout(begun.config, device)
        model = place(build_model(config, published.tokenizer), device)
        trainer = Trainer(
            begun.accelerator,
            model,
            _with_layout(published, config).source(folder),
            config,
            tokenizer=published.tokenizer,
            count_right=objective_of(config).count_right,
            compile_options=compile_options(config),
            static_shapes=bool(config.static_shapes),
        )
        tolerance = _tolerance(published, start, checkpoint.environment(begun.accelerator))
        steps = list(trainer.replay(last))
    first = 0 if start is None else step_of(start) or 0
    window = _window_of_checkpoint(start)
    comparisons = _compare_rows(published.rows, first, window, steps)
    return ReplayResult(step, first, last, tuple(comparisons), tolerance)


def _with_layout(published: PublishedRun, config: PretrainingConfig) -> PublishedRun:
    """Returns the run with the layout of this device: packing, static shapes, compilation."""
    with_layout = replace(
        published.config,
        packing=config.packing,
        static_shapes=config.static_shapes,
        torch_compile=config.torch_compile,
    )
    return replace(published, config=with_layout)


def _window_of_checkpoint(start: Path | None) -> list[Mapping[str, float | None]]:
    """Returns the metrics of the steps since the last row before a checkpoint."""
    if start is None:
        return []
    log = checkpoint.read_state(start).log
    return [*log["window"]] if log else []


def _compare_rows(
    rows: Sequence[Mapping[str, Any]],
    first: int,
    window: list[Mapping[str, float | None]],
    steps: Sequence[tuple[int, Mapping[str, float]]],
) -> list[RowComparison]:
    """Compares the rows of the log with the means of recomputed steps.

    Args:
        rows: rows of the log.
        first: step of the checkpoint.
        window: metrics of the steps between the last row and the checkpoint.
        steps: number and metrics of the recomputed steps.
    """
    by_step: dict[int, Mapping[str, Any]] = {}
    tokens_before = 0
    for row in rows:
        if TOKENS not in row or "learning_rate" not in row:
            continue
        if row["step"] <= first:
            tokens_before = row[TOKENS]
        else:
            by_step[row["step"]] = row

    comparisons: list[RowComparison] = []
    for number, metrics in steps:
        window = [*window, metrics]
        logged = by_step.get(number)
        if logged is None:
            continue
        recomputed_tokens = tokens_before + sum(int(entry[TOKENS] or 0) for entry in window)
        comparisons.append(RowComparison(number, TOKENS, float(logged[TOKENS]), float(recomputed_tokens)))
        for name in logged:
            if name.endswith("loss") and name in metrics:
                comparisons.append(_compare_mean(number, name, logged[name], window))
        tokens_before = logged[TOKENS]
        window = []
    return comparisons


def _compare_mean(step: int, name: str, logged: float | None, window: Sequence[Mapping[str, Any]]) -> RowComparison:
    mean = sum(float(entry[name]) for entry in window) / len(window)
    return RowComparison(step, name, math.nan if logged is None else float(logged), mean)


def _tolerance(published: PublishedRun, start: Path | None, now: Mapping[str, Any]) -> float:
    """Returns the largest accepted difference of a loss; warns if dropout draws are not those of the run."""
    before = _environment_of(published, start)
    config = published.config
    if before is None:
        return TOLERANCES[config.mixed_precision]
    is_same_layout = before.get("processes") == now["processes"] and before.get("device") == now["device"]
    has_dropout = config.hidden_dropout_prob != 0 or config.attention_probs_dropout_prob != 0
    if has_dropout and not is_same_layout:
        logger.warning(
            "The run used %s process(es) on %s, this replay %s on %s. Dropout draws depend on that, so the losses will "
            "differ. Replay a run with dropout on the same devices.",
            before.get("processes"),
            before.get("device"),
            now["processes"],
            now["device"],
        )
    computes_equal_bits = dict(before) == dict(now) and now["device"] == "cpu"
    if computes_equal_bits:
        return EQUAL_ENVIRONMENT_TOLERANCE
    return TOLERANCES[config.mixed_precision]


def _environment_of(published: PublishedRun, start: Path | None) -> Mapping[str, Any] | None:
    """Returns versions, processes, threads and device of the run, from a checkpoint or from its results."""
    if start is not None:
        environment: Mapping[str, Any] = read_json_object(start / MANIFEST)["environment"]
        return environment
    if not (published.folder / RESULTS).is_file():
        return None
    results = read_results(published.folder)
    hardware = results.get("hardware")
    if hardware is None:
        return None
    return {
        "versions": results.get("versions"),
        "processes": hardware.get("processes"),
        "cpu_threads": hardware.get("cpu_threads"),
        "device": hardware.get("device"),
    }
