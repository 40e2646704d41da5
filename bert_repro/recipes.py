"""The recipes: what each is called, the configuration it takes and the function that runs it.

`python recipes/NAME.py`, `accelerate launch recipes/NAME.py` and `bert-repro NAME` run the same row of `RECIPES`. The
docstring of its configuration says what a recipe does.
"""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_repro import configs, registration
from bert_repro.errors import outcome
from bert_repro.utils import process
from bert_repro.utils.files import disk_errors


@dataclass(frozen=True)
class Recipe:
    """One recipe.

    Args:
        config: its settings.
        function: `module:function` that runs it, imported only when the arguments are valid.
    """

    config: type[configs.Config]
    function: str

    def run(self, config: Any, **data: Any) -> Any:
        """Runs the recipe; where it has an output folder, status.json there says how it ended.

        Returns:
            What the function returns: of training recipes the results of the run. None in the other processes of a
            launch where the recipe's work is not shared.
        """
        in_parallel = (configs.RunConfig, configs.PredictConfig, configs.StudyConfig)  # of which the last refuses it
        if not isinstance(config, in_parallel) and not process.is_main_process():
            return None  # several processes would write the same files
        output_dir = getattr(config, "output_dir", None) if getattr(config, "makes_runs", True) else None
        code, reason = 0, "done"
        try:
            no_corpus = isinstance(config, configs.PretrainingConfig) and not config.corpus
            configs.require(not no_corpus, "--corpus is missing; name a prepared corpus")
            configs.require_paths(config, data.get("data", ()))
            with disk_errors(Path(output_dir or "."), "cannot be read or written"):
                if isinstance(config, configs.FinetuningConfig):
                    # The models are imported later, so that a wrong column is refused within seconds.
                    from bert_repro.tasks import configured_task

                    data = {"task": configured_task(config, data.get("data"))}
                return self.load()(config, **data)
        except BaseException as error:
            code, reason = outcome(error)
            raise
        finally:
            with process.hold_signals():  # what comes while the outcome is written changes it no more
                process.record_outcome(output_dir, code, reason)

    def load(self) -> Any:
        """Imports the function that runs the recipe, and the models if parsing has put off their registration."""
        registration.register()
        module, function = self.function.split(":")
        return getattr(importlib.import_module(f"bert_repro.{module}"), function)


RECIPES = {
    "train_tokenizer": Recipe(configs.TokenizerConfig, "corpus.tokenizer:train_tokenizer"),
    "prepare_corpus": Recipe(configs.CorpusConfig, "corpus.prepare:prepare_corpus"),
    "audit_pretraining_data": Recipe(configs.AuditConfig, "pretraining.audit:audit_pretraining_data"),
    "run_pretraining": Recipe(configs.PretrainingConfig, "pretraining.run:run_pretraining"),
    "compare_curve": Recipe(configs.CurveComparisonConfig, "pretraining.compare_curve:compare_curve"),
    "run_glue": Recipe(configs.GlueConfig, "finetuning.run:run_finetuning"),
    "run_ner": Recipe(configs.NerConfig, "finetuning.run:run_finetuning"),
    "run_squad": Recipe(configs.SquadConfig, "finetuning.run:run_finetuning"),
    "run_swag": Recipe(configs.SwagConfig, "finetuning.run:run_finetuning"),
    "predict": Recipe(configs.PredictConfig, "inference.predict:predict"),
    "extract_features": Recipe(configs.ExtractionConfig, "inference.features:extract_features"),
    "score_sentences": Recipe(configs.SentenceScoringConfig, "inference.scoring:run_sentence_scoring"),
    "export_onnx": Recipe(configs.OnnxConfig, "inference.onnx:export_onnx"),
    "convert_checkpoint": Recipe(configs.ConversionConfig, "conversion.convert:convert_checkpoint"),
    "make_card": Recipe(configs.CardConfig, "hub.card:write_card"),
    "push_to_hub": Recipe(configs.PushConfig, "hub.push:push_to_hub"),
    "push_corpus": Recipe(configs.CorpusPushConfig, "hub.push:push_corpus"),
    "run_study": Recipe(configs.StudyConfig, "reproduction.runner:run_study"),
    "report": Recipe(configs.ReportConfig, "reproduction.report:write_report"),
    "make_glue_zip": Recipe(configs.GlueZipConfig, "tasks.glue_tasks:make_glue_zip"),
    "score_squad": Recipe(configs.SquadScoringConfig, "tasks.squad_scoring:score_squad"),
    "convert_triviaqa": Recipe(configs.TriviaqaConfig, "tasks.squad_windows:convert_triviaqa"),
}
"""Name -> recipe, in the order in which a newcomer meets them."""
