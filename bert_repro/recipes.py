"""The recipes: the name of each, its configuration, the function that runs it, and its closing lines.

`python recipes/NAME.py`, `accelerate launch recipes/NAME.py` and `bert-repro NAME` run the same row of `RECIPES`. The
docstring of its configuration says what a recipe does.
"""

import importlib
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_repro import configs, next_steps, registration
from bert_repro.errors import UserError, flag, outcome
from bert_repro.utils import process
from bert_repro.utils.files import disk_errors

logger = logging.getLogger("bert_repro")


def _nothing_to_add(config: Any) -> list[str]:  # noqa: ARG001 (the default of `Recipe.closing_lines`)
    return []


@dataclass(frozen=True)
class Recipe:
    """One recipe.

    Args:
        config: its configuration class.
        function: `module:function` that runs it, imported only when the arguments are valid.
        closing_lines: configuration after the run -> the lines to print at the end, the next command among them.
        runs_in_every_process: whether each process of a launch calls the function. False: only the main process does,
            because several processes would write the same files.
        needs_models: whether it reads or makes models, so that PyTorch and transformers are imported first.
    """

    config: type[configs.Config]
    function: str
    closing_lines: Callable[[Any], list[str]] = _nothing_to_add
    runs_in_every_process: bool = False
    needs_models: bool = True

    def run(self, config: Any, **data: Any) -> Any:
        """Runs the recipe; if it has an output folder, status.json there says how it ended.

        Returns:
            The return value of the function: for training recipes the results of the run. None in a process of a launch
            that has no part in the work.

        Raises:
            UserError: a setting, a path or the data is wrong.
        """
        if not self.runs_in_every_process and not process.is_main_process():
            return None
        makes_runs = getattr(config, "makes_runs", True)
        output_dir = getattr(config, "output_dir", None) if makes_runs else None
        code, reason = 0, "done"
        try:
            _check_inputs(config, data)
            with disk_errors(Path(output_dir or "."), "cannot be read or written"):
                if isinstance(config, configs.FinetuningConfig):
                    # The task reads the columns before the models are imported, so a wrong one is refused in seconds.
                    from bert_repro.tasks import configured_task

                    data = {"task": configured_task(config, data.get("data"))}
                return self.load()(config, **data)
        except BaseException as error:
            code, reason = outcome(error)
            raise
        finally:
            # A signal that arrives while the outcome is written must not change it.
            with process.hold_signals():
                process.record_outcome(output_dir, code, reason)

    def load(self) -> Any:
        """Imports the function that runs the recipe, and registers the models if parsing has postponed that."""
        if self.needs_models:
            if "torch" not in sys.modules:
                logger.info("Loading PyTorch and transformers ...")
            registration.register()
        module, function = self.function.split(":")
        return getattr(importlib.import_module(f"bert_repro.{module}"), function)


def _check_inputs(config: Any, data: dict[str, Any]) -> None:
    """Refuses settings and paths that cannot be right, before anything expensive is imported or read."""
    if isinstance(config, configs.PretrainingConfig) and not config.corpus:
        raise UserError(f"{flag('corpus')} is missing. Pass a folder made by prepare_corpus.", setting="corpus")
    configs.require_paths(config, data.get("data", ()))


def _finetuning(config: type[configs.FinetuningConfig]) -> Recipe:
    return Recipe(config, "finetuning.recipe:run_finetuning", next_steps.after_finetuning, runs_in_every_process=True)


RECIPES = {
    "train_tokenizer": Recipe(configs.TokenizerConfig, "corpus.tokenizer:train_tokenizer", next_steps.after_tokenizer),
    "prepare_corpus": Recipe(configs.CorpusConfig, "corpus.prepare:prepare_corpus", next_steps.after_corpus),
    "audit_pretraining_data": Recipe(configs.AuditConfig, "pretraining.audit:audit_pretraining_data"),
    "run_pretraining": Recipe(
        configs.PretrainingConfig,
        "pretraining.run:run_pretraining",
        next_steps.after_pretraining,
        runs_in_every_process=True,
    ),
    "compare_curve": Recipe(configs.CurveComparisonConfig, "pretraining.compare_curve:compare_curve"),
    "run_glue": _finetuning(configs.GlueConfig),
    "run_ner": _finetuning(configs.NerConfig),
    "run_squad": _finetuning(configs.SquadConfig),
    "run_swag": _finetuning(configs.SwagConfig),
    "predict": Recipe(configs.PredictConfig, "inference.predict:predict", runs_in_every_process=True),
    "extract_features": Recipe(configs.ExtractionConfig, "inference.features:extract_features"),
    "score_sentences": Recipe(configs.SentenceScoringConfig, "inference.scoring:run_sentence_scoring"),
    "export_onnx": Recipe(configs.OnnxConfig, "inference.onnx:export_onnx"),
    "convert_checkpoint": Recipe(configs.ConversionConfig, "conversion.convert:convert_checkpoint"),
    "make_card": Recipe(configs.CardConfig, "hub.card:write_card"),
    "push_to_hub": Recipe(configs.PushConfig, "hub.push:push_to_hub"),
    "push_corpus": Recipe(configs.CorpusPushConfig, "hub.corpora:push_corpus"),
    "run_study": Recipe(
        configs.StudyConfig, "reproduction.runner:run_study", next_steps.after_study, runs_in_every_process=True
    ),
    "report": Recipe(configs.ReportConfig, "reproduction.report:write_report"),
    "claims": Recipe(configs.ClaimsConfig, "reproduction.claims:print_claims", needs_models=False),
    "replay": Recipe(configs.ReplayConfig, "reproduction.replay:replay"),
    "seen": Recipe(configs.SeenConfig, "reproduction.seen:seen"),
    "make_glue_zip": Recipe(configs.GlueZipConfig, "tasks.glue_leaderboard:make_glue_zip"),
    "score_squad": Recipe(configs.SquadScoringConfig, "tasks.squad_scoring:score_squad"),
    "convert_triviaqa": Recipe(configs.TriviaqaConfig, "conversion.triviaqa:convert_triviaqa"),
}
"""Name -> recipe, in the order in which a newcomer meets them."""
