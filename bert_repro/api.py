"""Pre-training and fine-tuning from Python, for scripts and notebooks: settings in, results with the model out.

The recipes run the same code with the same settings. Errors are raised as exceptions (`bert_repro.errors.UserError` for
wrong input) in place of exit codes, and status.json is written as by a recipe.
"""

import html
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from bert_repro.configs import (
    Config,
    CorpusConfig,
    CustomDataConfig,
    FinetuningConfig,
    GlueConfig,
    NerConfig,
    PredictConfig,
    PretrainingConfig,
    SquadConfig,
    SwagConfig,
    TokenizerConfig,
    require_paths,
)
from bert_repro.configs.base import did_you_mean, require, type_hints
from bert_repro.configs.presets import preset_values
from bert_repro.errors import UserError, settings_as_arguments
from bert_repro.recipes import RECIPES
from bert_repro.results import read_results
from bert_repro.utils.readers import shown

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from bert_repro.tasks.data import Data

    Texts = Data | Sequence[str] | Sequence[tuple[str, str]]
    Corpus = Data | Sequence[str | Path]

logger = logging.getLogger("bert_repro")

C = TypeVar("C", bound=Config)
P = ParamSpec("P")
T = TypeVar("T")

_ARGUMENTS = {
    "model_name_or_path": "model", "train_file": "train", "validation_file": "validation", "test_file": "test",
    "input_file": "data", "input_files": "data",
    "overwrite_output_dir": "overwrite_output_dir=True",
}  # fmt: skip
"""Settings that the functions here call otherwise."""
_RECIPES = {GlueConfig: "run_glue", NerConfig: "run_ner", SquadConfig: "run_squad", SwagConfig: "run_swag"}


def _names_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Lets a function's errors and log speak of its arguments where the recipes speak of flags."""

    @wraps(function)
    def called(*given: P.args, **settings: P.kwargs) -> T:
        logger.addFilter(_name_arguments)
        try:
            with settings_as_arguments(_ARGUMENTS):
                return function(*given, **settings)
        except UserError as error:
            error.args = (_in_python(str(error)),)
            raise
        finally:
            logger.removeFilter(_name_arguments)

    return called


def _name_arguments(record: logging.LogRecord) -> bool:
    record.msg, record.args = _in_python(record.getMessage()), None
    return True


def _in_python(message: str) -> str:
    """Returns a message with `name=value` for each `--name value`."""
    message = message.replace("--resume_from_checkpoint latest", "resume_from_checkpoint='latest'")
    message = re.sub(r"(--\w+) (true|false|\d)", lambda found: f"{found[1]}={found[2].title()}", message)
    return re.sub(r"(?<![\w'\"-])--(\w+)", lambda flag: _ARGUMENTS.get(flag[1], flag[1]), message)


class RunResult(dict[str, Any]):
    """What results.json of a run holds, as a dict, with the model that the run left.

        import bert_repro

        results = bert_repro.RunResult("runs/moods")  # of a run that ended some time ago
        print(results.metrics["accuracy"])

    Args:
        folder: the run's output folder.
        results: the results; default: those of results.json there.
    """

    def __init__(self, folder: str | Path, results: Any = None) -> None:
        super().__init__(read_results(Path(folder)) if results is None else results)
        self.folder = Path(folder)

    @property
    def metrics(self) -> dict[str, float]:
        """The scores on the split that `self["split"]` names; empty where nothing was scored."""
        return dict(self.get("metrics", {}))

    @cached_property
    def model(self) -> Any:
        """The model, loaded from the folder once."""
        from bert_repro.models import modeling_bert_repro
        from bert_repro.models.loading import load_config

        name = load_config(str(self.folder)).architectures[0].removeprefix("BertRepro").removeprefix("Bert")
        return (
            getattr(modeling_bert_repro, f"BertRepro{name}")
            .from_pretrained(self.folder, trust_remote_code=False)
            .eval()
        )

    def errors(self, split: str | None = None) -> list[dict[str, Any]]:
        """Returns the rows of a scored split whose prediction is wrong, as its file of predictions contains them.

        Args:
            split: the split; None: the one that `metrics` are about.

        Raises:
            UserError: the split has no labels, or the run wrote no predictions for it.
        """
        from bert_repro.finetuning.error_analysis import predictions_file, wrong_rows

        name = split or str(self.get("split"))
        path = predictions_file(self.folder, name)
        if path is None or self.get("primary_metric") == "pearson":
            raise UserError(f"{self.folder} has no predictions for the split {name} that can be right or wrong.")
        return wrong_rows(path)

    def predict(self, data: "Texts", **settings: Any) -> list[dict[str, Any]]:
        """Returns what the model says about texts; see `bert_repro.predict`."""
        return predict(self.folder, data, **settings)

    @_names_arguments
    def push_to_hub(self, repo_id: str | None = None, *, dry_run: bool = False) -> None:
        """Uploads the folder to a repository of the Hub (default: of its name); a dry run lists files and sizes."""
        from bert_repro.configs import PushConfig

        config = PushConfig(folder=str(self.folder), hub_model_id=repo_id or self.folder.name, dry_run=dry_run)
        RECIPES["push_to_hub"].run(config)

    def _rows(self) -> list[tuple[str, str]]:
        scores = [(name, f"{value:.4f}") for name, value in self.metrics.items()] or [("scores", "none: no dev data")]
        metric = self.get("primary_metric")
        scores += [(f"{metric}, {name}", f"{of[metric]:.4f}") for name, of in self.get("baselines", {}).items()]
        return [("task", str(self.get("task"))), *scores, ("folder", str(self.folder))]

    def __repr__(self) -> str:
        return "\n".join(f"{name:<40} {value}" for name, value in self._rows())

    def _repr_html_(self) -> str:
        rows = (f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in self._rows())
        return f"<table>{''.join(rows)}</table>"


class CorpusManifest(dict[str, Any]):
    """The manifest of a prepared corpus, a dict that is shown as its folder and sizes."""

    def __repr__(self) -> str:
        return f"{self['folder']}: {self['counts']['documents']:,} documents, {self['counts']['tokens']:,} tokens"


@_names_arguments
def train_tokenizer(data: "Corpus | TokenizerConfig", **settings: Any) -> "PreTrainedTokenizerFast":
    """Trains a WordPiece vocabulary on text and saves the tokenizer in `output_dir`.

        import bert_repro

        tokenizer = bert_repro.train_tokenizer("texts.txt", vocab_size=200, output_dir="runs/tokenizer")
        print(tokenizer.tokenize("a text of yours"))

    Args:
        data: a list of documents, a data frame or `datasets.Dataset` (its column `text`), or files and folders; or a
            `TokenizerConfig` with all settings.
        settings: of `TokenizerConfig`, by name.

    Raises:
        UserError: bad input, or no text.
    """
    config, texts = _text_settings(TokenizerConfig, data, settings)
    with _progress_on_stdout():
        return RECIPES["train_tokenizer"].run(config, texts=texts)


@_names_arguments
def prepare_corpus(data: "Corpus | CorpusConfig", *, tokenizer: Any = None, **settings: Any) -> CorpusManifest:
    """Turns text into a corpus for pre-training: documents, sentences, token ids.

        import bert_repro

        manifest = bert_repro.prepare_corpus("texts.txt", tokenizer="runs/tokenizer", output_dir="corpus")
        print(manifest["counts"]["documents"])

    Args:
        data: as for `train_tokenizer`; or a `CorpusConfig` with all settings.
        tokenizer: folder or Hub id of the tokenizer, or a tokenizer that was loaded from one.
        settings: of `CorpusConfig`, by name.

    Returns:
        The manifest of the corpus, for `pretrain(corpus=...)`: folder, settings, sources, counts (documents, sentences,
        tokens, words, lines dropped by each rule), versions.

    Raises:
        UserError: bad input, no text, or an output folder with something else in it.
    """
    if tokenizer is not None:
        settings["tokenizer"] = str(getattr(tokenizer, "name_or_path", tokenizer))
    config, texts = _text_settings(CorpusConfig, data, settings)
    with _progress_on_stdout():
        return CorpusManifest(RECIPES["prepare_corpus"].run(config, texts=texts) or {}, folder=config.output_dir)


def _text_settings(
    config_class: type[C], data: "Corpus | C", settings: dict[str, Any]
) -> tuple[C, Sequence[str] | None]:
    """Returns the configuration, and the documents where they are in memory."""
    if isinstance(data, Config):
        return data, None  # type: ignore[return-value]
    data = _listed(data)
    names = [data] if isinstance(data, str | Path) else data
    if isinstance(names, list | tuple) and names and all(isinstance(name, str | Path) for name in names):
        if isinstance(data, str | Path) or all(isinstance(name, Path) or os.path.exists(name) for name in names):
            return _configured(config_class, None, {"input_files": tuple(map(str, names)), **settings}), None
        texts = list(names)
    else:
        from bert_repro.tasks.data import as_dataset, require_columns

        rows, column = as_dataset(data, "data="), settings.get("text_column", "text")
        require_columns(rows, [column], "data=", "name the column of text with text_column=")
        texts = rows[column][:]
    return _configured(config_class, None, settings), texts


@_names_arguments
def pretrain(config: PretrainingConfig | None = None, *, preset: str | None = None, **settings: Any) -> RunResult:
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
        print(results.metrics["mlm_accuracy"], results["model"]["parameters"])

    Args:
        config: all settings as one object, in place of the two others; `corpus` is the folder that
            `bert_repro.prepare_corpus` made, or what it returned.
        preset: name of a preset, for example `paper-base` or `cpu-trial`.
        settings: settings by name; they win over the preset.

    Returns:
        What results.json in the output folder holds. The model is in that folder too, for `from_pretrained`.

    Raises:
        UserError: the settings, the corpus or the model are not as they should be.
        NonFiniteError: the loss is not finite; lower the learning rate.
    """
    if config is None:
        if isinstance(corpus := settings.get("corpus", ""), dict):
            settings["corpus"] = corpus = corpus["folder"]
        require(isinstance(corpus, str | Path), f"corpus is a {type(corpus).__name__}; call prepare_corpus first")
        config = _configured(PretrainingConfig, preset, settings)
    elif preset or settings:
        raise TypeError("give config=, or preset= and settings, not both")
    return _run("run_pretraining", config)


@_names_arguments
def finetune(
    config: FinetuningConfig | None = None,
    *,
    model: str | Path | None = None,
    train: "Data | None" = None,
    validation: "Data | None" = None,
    test: "Data | None" = None,
    preset: str | None = None,
    **settings: Any,
) -> RunResult:
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
        print(results.metrics["accuracy"], results.predict(["A warm evening."])[0]["prediction"])

    The columns of the data say the task: `text` (or `text_a` and `text_b`) with `label` is classification or, with
    `regression=True`, regression; `tokens` with `tags` is tagging; `question`, `context` and `answers` is question
    answering; `sent1`, `sent2`, `ending0`, `ending1` ... is multiple choice. For GLUE and the other tasks of the paper
    give a configuration.

    Args:
        config: all settings as one object, in place of everything else: `GlueConfig`, `NerConfig`, `SquadConfig` or
            `SwagConfig`.
        model: folder or Hub id of the checkpoint to start from.
        train: what to train on: a `datasets.Dataset`, a pandas data frame, a list of rows (dicts), a dict of columns,
            or the path of a file; or a `datasets.DatasetDict`, whose dev split is scored too.
        validation: what to score.
        test: what to predict; may lack labels.
        preset: name of a preset.
        settings: settings by name.

    Returns:
        What results.json in the output folder holds: metrics by split, training, settings, hardware. The model and its
        predictions are in that folder too.

    Raises:
        UserError: the settings, the data or the model are not as they should be.
        NonFiniteError: the loss is not finite; lower the learning rate.
    """
    given = {"train": train, "validation": validation, "test": test}
    given = {split: data for split, data in given.items() if data is not None}
    if config is not None:
        if given or model or preset or settings:
            raise TypeError("give config=, or data and settings, not both")
        return _run(_RECIPES[type(config)], config)
    require(given, "no data: give train=, validation= or test=, or config= for a task of the paper")
    from bert_repro.tasks.data import as_dataset
    from bert_repro.tasks.named_datasets import splits_in_memory, with_guessed_columns

    if isinstance(train, Mapping) and type(train).__name__ == "DatasetDict" and list(given) == ["train"]:
        given = dict(splits_in_memory(train, "train=", holds_out="validation_fraction" in settings))
    rows = {split: as_dataset(data, f"{split}=") for split, data in given.items()}
    for split, data in given.items():  # what the results call them
        settings[f"{split}_file"] = str(data) if isinstance(data, str | Path) else f"{split} data in memory"
    if model:
        settings["model_name_or_path"] = model
    config = _configured(_family(next(iter(rows.values())).column_names), preset, settings)
    # The types of a dataset's columns say which of them are text and labels.
    if hasattr(train, "column_names") and isinstance(config, CustomDataConfig):
        config, rows = with_guessed_columns(config, rows, "train=")
    return _run(_RECIPES[type(config)], config, data=rows)


@_names_arguments
def predict(model: str | Path, data: "Texts", **settings: Any) -> list[dict[str, Any]]:
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
        A row for each text, in order: the columns of the data, `prediction`, its `probability` and, where there are few
        answers, that of each, such as `probability_good`.

    Raises:
        UserError: the model is not fine-tuned, or the data is not as its task needs it.
    """
    from bert_repro.inference.predict import predictions_of
    from bert_repro.tasks.data import as_dataset

    rows = _listed(data)
    if isinstance(rows, list | tuple) and any(isinstance(row, str | list) for row in rows):
        rows = {"words" if isinstance(rows[0], list) else "text": list(rows)}
    elif isinstance(rows, list | tuple) and rows and all(isinstance(pair, tuple) and len(pair) == 2 for pair in rows):
        rows = dict(zip(("text_a", "text_b"), map(list, zip(*rows, strict=True)), strict=True))
    config = _configured(PredictConfig, None, {"model_name_or_path": model, **settings})
    require_paths(config)
    if isinstance(data, str | Path):
        require(os.path.exists(data), f"data {shown(str(data))}: no such file; give texts as a list")
        return predictions_of(_configured(PredictConfig, None, {**vars(config), "input_file": str(data)}))
    return predictions_of(config, as_dataset(rows, "data="))


def _listed(data: Any) -> Any:
    """Returns a list for a series or an array, and anything else as it is."""
    convert = getattr(data, "tolist", getattr(data, "to_list", None))
    return convert() if convert and not hasattr(data, "column_names") else data


def _family(columns: Sequence[str]) -> type[FinetuningConfig]:
    """Returns the settings of the kind of task that data with these columns is for."""
    if {"question", "context"} <= set(columns):
        return SquadConfig
    if "ending0" in columns:
        return SwagConfig
    return NerConfig if {"tokens", "words"} & set(columns) else GlueConfig


def _configured(config_class: type[C], preset: str | None, settings: dict[str, Any]) -> C:
    known = type_hints(config_class)
    if unknown := next((name for name in settings if name not in known), None):
        arguments = [_ARGUMENTS.get(name, name) for name in known]
        fix = did_you_mean(unknown, arguments) or f"{config_class.__name__} has all settings"
        raise UserError(f"{unknown} is no setting here; {fix}")
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
    model = settings.get("model_name_or_path") or ""
    require(isinstance(model, str), f"model is a {type(model).__name__}; give a folder or an id of the Hub")
    return config_class(**(preset_values(preset, config_class, settings) if preset else {}) | settings)


def _run(recipe: str, config: Any, **data: Any) -> RunResult:
    with _progress_on_stdout():
        return RunResult(config.output_dir, RECIPES[recipe].run(config, **data))


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
