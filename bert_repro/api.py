"""Pre-training and fine-tuning from Python, for scripts and notebooks: settings in, the typed results out.

The recipes run the same code; the settings are those of docs/CONFIGURATION.md. Errors are raised as exceptions
(`bert_repro.errors.UserError` for wrong input) in place of exit codes, and status.json is written as by a recipe.
"""

import logging
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, cast

from bert_repro.configs import (
    Config,
    FinetuningConfig,
    GlueConfig,
    NerConfig,
    PredictConfig,
    PretrainingConfig,
    SquadConfig,
    SwagConfig,
    require_paths,
)
from bert_repro.configs.presets import preset_values
from bert_repro.errors import UserError
from bert_repro.in_memory_data import Data, Family, family_of, write_split
from bert_repro.recipes import RECIPES
from bert_repro.results import RunResults

logger = logging.getLogger("bert_repro")

C = TypeVar("C", bound=Config)

_RECIPE_OF: dict[type[FinetuningConfig], str] = {
    GlueConfig: "run_glue",
    NerConfig: "run_ner",
    SquadConfig: "run_squad",
    SwagConfig: "run_swag",
}
_CONFIG_OF: dict[Family, type[FinetuningConfig]] = {"texts": GlueConfig, "tags": NerConfig, "questions": SquadConfig}


def pretrain(config: PretrainingConfig | None = None, *, preset: str | None = None, **settings: Any) -> RunResults:
    """Pre-trains BERT from scratch or continues from a checkpoint (paper 3.1, A.2).

        import bert_repro

        results = bert_repro.pretrain(
            corpus="corpus",
            num_hidden_layers=2,
            hidden_size=32,
            num_attention_heads=2,
            max_seq_length=64,
            train_batch_size=8,
            max_steps=3,
            output_dir="runs/tiny-bert",
        )
        print(results["metrics"]["mlm_accuracy"], results["model"]["parameters"])

    Args:
        config: all settings as one object, in place of the two others; `corpus` names a folder that
            `bert_repro.prepare_corpus` made.
        preset: name of a preset, for example `paper-base` or `cpu-trial`.
        settings: settings by name; they win over the preset.

    Returns:
        What results.json in the output folder holds. The model is in that folder too, for `from_pretrained`.

    Raises:
        UserError: the settings, the corpus or the model are not as they should be.
        NonFiniteError: the loss is not finite; lower the learning rate.
    """
    if config is None:
        config = _configured(PretrainingConfig, preset, settings)
    elif preset or settings:
        raise TypeError("give a configuration, or a preset and settings, not both")
    return _run("run_pretraining", config)


def finetune(
    config: FinetuningConfig | None = None,
    *,
    model: str | Path | None = None,
    train: Data | None = None,
    validation: Data | None = None,
    test: Data | None = None,
    preset: str | None = None,
    **settings: Any,
) -> RunResults:
    """Fine-tunes a model on the data given, scores it and predicts with it.

        import bert_repro

        rows = [
            {"text": "What a bright morning.", "label": "good"},
            {"text": "The road was cold and grey.", "label": "bad"},
        ]
        results = bert_repro.finetune(
            model="runs/tiny-bert",
            train=rows * 20,
            validation=rows,
            output_dir="runs/moods",
            num_train_epochs=1,
            train_batch_size=8,
        )
        print(results["metrics"]["accuracy"])

    The columns of the data say the task: `text` (or `text_a` and `text_b`) with `label` is classification or, with
    `regression=True`, regression; `tokens` with `tags` is tagging; `question`, `context` and `answers` is question
    answering. For multiple choice, GLUE and the other tasks of the paper give a configuration.

    Args:
        config: all settings as one object, in place of everything else: `GlueConfig`, `NerConfig`, `SquadConfig` or
            `SwagConfig`.
        model: folder or Hub id of the checkpoint to start from.
        train: what to train on: a `datasets.Dataset`, a pandas data frame, a list of rows (dicts), a dict of columns,
            or the path of a file. Objects are written to OUTPUT_DIR-data, so that the run can be repeated.
        validation: what to score.
        test: what to predict; may lack labels.
        preset: name of a preset.
        settings: settings by name, see docs/CONFIGURATION.md.

    Returns:
        What results.json in the output folder holds: metrics by split, training, settings, hardware. The model and its
        predictions are in that folder too.

    Raises:
        UserError: the settings, the data or the model are not as they should be.
        NonFiniteError: the loss is not finite; lower the learning rate.
    """
    data = {name: split for name, split in (("train", train), ("validation", validation), ("test", test))
            if split is not None}  # fmt: skip
    if config is None:
        config = _with_data(data, preset, settings | ({"model_name_or_path": str(model)} if model else {}))
    elif data or model or preset or settings:
        raise TypeError("give a configuration, or data and settings, not both")
    return _run(next(name for kind, name in _RECIPE_OF.items() if isinstance(config, kind)), config)


def predict(model: str | Path, data: Data | Sequence[str], **settings: Any) -> list[dict[str, Any]]:
    """Returns what a fine-tuned model says about texts, questions or choices.

        import bert_repro

        for row in bert_repro.predict("runs/moods", ["A warm evening.", "The glass was cold."]):
            print(row["text"], row["prediction"], row["probability"])

    Args:
        model: folder or Hub id of the model.
        data: texts, or pairs of texts as tuples; or what `finetune` takes, with the columns that the model was trained
            on.
        settings: of `bert_repro.configs.PredictConfig`, by name.

    Returns:
        A row for each text, in order: the text, `label` where the data has it, `prediction`, `probability` and, where
        there are few answers, the `probabilities` of all.

    Raises:
        UserError: the model is not fine-tuned, or the data is not as its task needs it.
    """
    from bert_repro.finetuning.predict import predictions_of

    if isinstance(data, list | tuple) and all(isinstance(text, str) for text in data):
        data = [{"text": text} for text in data]
    elif isinstance(data, list | tuple) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in data):
        data = [{"text_a": first, "text_b": second} for first, second in data]
    with tempfile.TemporaryDirectory(prefix="bert-repro-") as folder:
        path = write_split(data, "texts", Path(folder), "data")
        config = PredictConfig(model_name_or_path=str(model), input_file=str(path), **settings)
        require_paths(config)
        return predictions_of(config)


def _with_data(data: dict[str, Data], preset: str | None, settings: dict[str, Any]) -> FinetuningConfig:
    """Makes the configuration for data given as objects or files."""
    if not data:
        raise UserError("no data: give train=, validation= or test=, or a configuration for a task of the paper")
    family = family_of(next(iter(data.values())))
    output_dir = settings.setdefault("output_dir", "runs/run")
    for split, content in data.items():
        settings[f"{split}_file"] = str(write_split(content, family, Path(f"{output_dir}-data"), split))
    return _configured(_CONFIG_OF[family], preset, settings)


def _configured(config_class: type[C], preset: str | None, settings: dict[str, Any]) -> C:
    values = preset_values(preset, config_class) if preset else {}
    several = {item.name for item in fields(config_class) if isinstance(item.default, tuple)}
    lists = {
        name: tuple(value) if isinstance(value, list | tuple) else (value,)
        for name, value in settings.items()
        if name in several
    }
    return config_class(**{**values, **settings, **lists})


def _run(recipe: str, config: Config) -> RunResults:
    with _progress_on_stdout():
        return cast(RunResults, RECIPES[recipe].run(config))


@contextmanager
def _progress_on_stdout() -> Iterator[None]:
    """Prints the log while a run lasts, unless the program has set up logging itself."""
    if logger.hasHandlers():
        yield
        return
    handler, level = logging.StreamHandler(sys.stdout), logger.level
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
