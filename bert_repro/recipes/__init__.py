"""The recipes: what each is for, the configuration it takes and the function that runs it.

`python recipes/NAME.py`, `accelerate launch recipes/NAME.py` and `bert-repro NAME` run the same row of `RECIPES`. The
help text of a recipe (examples, what to expect, costs) is NAME.txt in this folder, so that installed users see it too;
the scripts' docstrings are made from it (`make docs`).
"""

import importlib
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from bert_repro import configs
from bert_repro.errors import outcome
from bert_repro.utils import process
from bert_repro.utils.files import disk_errors


@dataclass(frozen=True)
class Recipe:
    """One recipe.

    Args:
        config: its settings.
        function: `module:function` that runs it, imported only when the arguments are valid, so `--help` stays quick.
        summary: one line for the list of recipes.
    """

    config: type[configs.Config]
    function: str
    summary: str

    def run(self, config: Any, **data: Any) -> Any:
        """Runs the recipe; where it has an output folder, status.json there says how it ended.

        Returns:
            What the function returns: of training recipes the results of the run.
        """
        output_dir = getattr(config, "output_dir", None) if getattr(config, "makes_runs", True) else None
        try:
            configs.require_checkpoints(config)
            configs.require_places(config)
            with disk_errors(Path(output_dir or "."), "cannot be read or written"):
                result = self.load()(config, **data)
        except BaseException as error:
            self._record(output_dir, *outcome(error))
            raise
        self._record(output_dir, 0, "done")
        return result

    def _record(self, output_dir: str | None, code: int, reason: str) -> None:
        with process.hold_signals():  # what comes while the outcome is written changes it no more
            process.record_outcome(output_dir, code, reason)

    def load(self) -> Any:
        """Imports the function that runs the recipe."""
        module, function = self.function.split(":")
        return getattr(importlib.import_module(module), function)


def help_text(name: str, typed: str | None) -> str:
    """Returns the help text of a recipe: a summary, examples, what to expect, costs.

    Args:
        name: a key of `RECIPES`.
        typed: the name under which `bert-repro` was asked for it, which the examples then use; None: they are written
            as calls of the scripts in `recipes/`.
    """
    text = (resources.files(__name__) / f"{name}.txt").read_text(encoding="utf-8")
    if typed is None:
        text = re.sub(r"(?<=accelerate launch )-m bert_repro (\w+)", r"recipes/\1.py", text)
        text = re.sub(r"^( +)bert-repro (\w+)", r"\1python recipes/\2.py", text, flags=re.MULTILINE)
        return re.sub(r"^(?=.{80})( +)(.+?) (--.+)", r"\1\2 \\\n\1  \3", text, flags=re.MULTILINE)
    return re.sub(rf"^( +)bert-repro {name}\b", rf"\1bert-repro {typed}", text, flags=re.MULTILINE)


RECIPES = {
    "quickstart": Recipe(
        configs.QuickstartConfig,
        "bert_repro.quickstart.run:run_quickstart",
        "from text to a published classifier in five minutes",
    ),
    "train_tokenizer": Recipe(
        configs.TokenizerConfig,
        "bert_repro.corpus.tokenizer:train_tokenizer",
        "train a WordPiece vocabulary on raw text",
    ),
    "prepare_corpus": Recipe(
        configs.CorpusConfig,
        "bert_repro.corpus.prepare:prepare_corpus",
        "turn raw text into a corpus for pre-training",
    ),
    "audit_pretraining_data": Recipe(
        configs.AuditConfig,
        "bert_repro.pretraining.audit:audit_pretraining_data",
        "check the examples of a pre-training to come",
    ),
    "run_pretraining": Recipe(
        configs.PretrainingConfig,
        "bert_repro.pretraining.run:run_pretraining",
        "pre-train BERT, from scratch or from a checkpoint",
    ),
    "compare_curve": Recipe(
        configs.CurveComparisonConfig,
        "bert_repro.pretraining.compare_curve:compare_curve",
        "compare a pre-training run with a reference curve",
    ),
    "run_glue": Recipe(
        configs.GlueConfig,
        "bert_repro.finetuning.run:run_finetuning",
        "classify texts: GLUE, or .csv, .tsv, .jsonl files",
    ),
    "run_ner": Recipe(
        configs.NerConfig,
        "bert_repro.finetuning.run:run_finetuning",
        "tag words: CoNLL-2003, or files of tagged text",
    ),
    "run_squad": Recipe(
        configs.SquadConfig,
        "bert_repro.finetuning.run:run_finetuning",
        "answer questions: SQuAD, or files in its format",
    ),
    "run_swag": Recipe(
        configs.SwagConfig,
        "bert_repro.finetuning.run:run_finetuning",
        "choose one of several: SWAG, or files in its columns",
    ),
    "predict": Recipe(
        configs.PredictConfig,
        "bert_repro.inference.predict:predict",
        "predict with a fine-tuned model, from files or stdin",
    ),
    "extract_features": Recipe(
        configs.ExtractionConfig,
        "bert_repro.inference.features:extract_features",
        "write vectors of a frozen BERT for the texts of a file",
    ),
    "score_sentences": Recipe(
        configs.SentenceScoringConfig,
        "bert_repro.inference.scoring:run_sentence_scoring",
        "score sentences by masked LM, compare minimal pairs",
    ),
    "export_onnx": Recipe(
        configs.OnnxConfig, "bert_repro.inference.onnx:export_onnx", "write a finished model as ONNX"
    ),
    "convert_checkpoint": Recipe(
        configs.ConversionConfig,
        "bert_repro.conversion.convert:convert_checkpoint",
        "convert TensorFlow checkpoints and old pickles",
    ),
    "make_card": Recipe(
        configs.CardConfig, "bert_repro.hub.card:write_card", "rewrite the model card of a finished run"
    ),
    "push_corpus": Recipe(
        configs.CorpusPushConfig,
        "bert_repro.hub.corpora:push_corpus",
        "upload a prepared corpus to the Hub as a dataset",
    ),
    "push_to_hub": Recipe(
        configs.PushConfig, "bert_repro.hub.revisions:push_to_hub", "upload a finished model to the Hugging Face Hub"
    ),
    "run_study": Recipe(configs.StudyConfig, "bert_repro.reproduction.runner:run_study", "repeat tables of the paper"),
    "report": Recipe(
        configs.ReportConfig,
        "bert_repro.reproduction.report:write_report",
        "write the paper's tables with our numbers beside them",
    ),
    "make_glue_zip": Recipe(
        configs.GlueZipConfig,
        "bert_repro.tasks.glue.leaderboard_zip:make_glue_zip",
        "gather test predictions for the GLUE leaderboard",
    ),
    "score_squad": Recipe(
        configs.SquadScoringConfig,
        "bert_repro.tasks.squad.scoring:score_squad",
        "score SQuAD predictions as the official scripts do",
    ),
    "convert_triviaqa": Recipe(
        configs.TriviaqaConfig,
        "bert_repro.tasks.squad.triviaqa:convert_triviaqa",
        "convert TriviaQA to SQuAD's format",
    ),
}
"""Name -> recipe, in the order in which a newcomer meets them."""

SHORT_NAMES = {
    "pretrain": "run_pretraining",
    "classify": "run_glue",
    "tag": "run_ner",
    "answer": "run_squad",
    "choose": "run_swag",
}
"""What `bert-repro` also calls a recipe, for those who have files of their own and no benchmark in mind."""
