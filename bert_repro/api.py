"""Pre-training, fine-tuning and prediction from Python, for scripts and notebooks.

Settings go in as keyword arguments, and the results come out together with the trained model. The recipes of the
command line run the same code with the same settings. Here an error is raised as an exception
(`bert_repro.errors.UserError` for wrong input) instead of ending the process with an exit code. status.json is written
in both cases.
"""

import html
import logging
import os
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
from bert_repro.configs.base import did_you_mean, spelling_of, type_hints
from bert_repro.configs.presets import preset_values
from bert_repro.errors import UserError, settings_as_arguments
from bert_repro.recipes import RECIPES
from bert_repro.results import read_results
from bert_repro.utils.readers import quoted
from bert_repro.utils.streams import PlainFormatter

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from bert_repro.tasks.data import Data

    Texts = Data | Sequence[str] | Sequence[tuple[str, str]]
    Corpus = Data | Sequence[str | Path]

logger = logging.getLogger("bert_repro")

C = TypeVar("C", bound=Config)
P = ParamSpec("P")
T = TypeVar("T")

_ARGUMENT_NAMES = {
    "model_name_or_path": "model",
    "train_file": "train",
    "validation_file": "validation",
    "test_file": "test",
    "input_file": "data",
    "input_files": "data",
}
"""Setting -> argument of the functions in this module, if its name is different."""

_RECIPE_NAMES = {GlueConfig: "run_glue", NerConfig: "run_ner", SquadConfig: "run_squad", SwagConfig: "run_swag"}
"""Configuration class -> the recipe that runs it."""


def _names_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Makes errors and log messages name the function's arguments instead of command-line flags."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with settings_as_arguments(_ARGUMENT_NAMES):
            return function(*args, **kwargs)

    return call


class RunResult(dict[str, Any]):
    """The content of a run's results.json as a dict, together with the model in its output folder.

        import bert_repro

        results = bert_repro.RunResult("runs/moods")  # a run that finished earlier
        print(results.metrics["accuracy"])

    Args:
        folder: the run's output folder.
        results: the results; default: the content of results.json in the folder.
    """

    def __init__(self, folder: str | Path, results: Any = None) -> None:
        super().__init__(read_results(Path(folder)) if results is None else results)
        self.folder = Path(folder)

    @property
    def metrics(self) -> dict[str, float]:
        """The scores on the split `self["split"]`; empty if nothing was scored."""
        return dict(self.get("metrics", {}))

    @cached_property
    def model(self) -> Any:
        """The model, loaded from the folder when it is first used."""
        from bert_repro.models import modeling_bert_repro
        from bert_repro.models.loading import load_config

        # The published class is upstream's, for example BertForMaskedLM. Ours is BertReproForMaskedLM.
        published_class = load_config(str(self.folder)).architectures[0]
        head = published_class.removeprefix("BertRepro").removeprefix("Bert")
        model_class = getattr(modeling_bert_repro, f"BertRepro{head}")
        return model_class.from_pretrained(self.folder, trust_remote_code=False).eval()

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
        """Predicts with the model; see `bert_repro.predict`."""
        return predict(self.folder, data, **settings)

    @_names_arguments
    def push_to_hub(self, repo_id: str | None = None, *, dry_run: bool = False) -> None:
        """Uploads the folder to the Hub.

        Args:
            repo_id: the repository; default: the folder's name, in your own namespace.
            dry_run: only list the files and their sizes.
        """
        from bert_repro.configs import PushConfig

        config = PushConfig(folder=str(self.folder), hub_model_id=repo_id or self.folder.name, dry_run=dry_run)
        RECIPES["push_to_hub"].run(config)

    def _rows(self) -> list[tuple[str, str]]:
        """Returns the summary that is printed: pairs of a name and a value."""
        rows = [("task", str(self.get("task")))]
        for name, score in self.metrics.items():
            rows.append((name, f"{score:.4f}"))
        if not self.metrics:
            rows.append(("scores", "none: no dev data"))
        metric = self.get("primary_metric")
        for baseline, scores in self.get("baselines", {}).items():
            rows.append((f"{metric}, {baseline}", f"{scores[metric]:.4f}"))
        rows.append(("folder", str(self.folder)))
        return rows

    def __repr__(self) -> str:
        return "\n".join(f"{name:<40} {value}" for name, value in self._rows())

    def _repr_html_(self) -> str:
        rows = [f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in self._rows()]
        return f"<table>{''.join(rows)}</table>"


class CorpusManifest(dict[str, Any]):
    """The manifest of a prepared corpus: a dict that is printed as its folder and its sizes."""

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
    with _log_on_stdout():
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
        The manifest of the corpus: folder, settings, sources, counts (documents, sentences, tokens, words, lines
        dropped by each rule) and versions. `pretrain(corpus=...)` accepts it.

    Raises:
        UserError: bad input, no text, or an output folder with something else in it.
    """
    if tokenizer is not None:
        settings["tokenizer"] = str(getattr(tokenizer, "name_or_path", tokenizer))
    config, texts = _text_settings(CorpusConfig, data, settings)
    with _log_on_stdout():
        return CorpusManifest(RECIPES["prepare_corpus"].run(config, texts=texts) or {}, folder=config.output_dir)


def _text_settings(
    config_class: type[C], data: "Corpus | C", settings: dict[str, Any]
) -> tuple[C, Sequence[str] | None]:
    """Returns the configuration and, if the documents are in memory, the documents.

    A list of texts and a list of file names look alike. It is a list of files if every element exists as a file.
    """
    if isinstance(data, Config):
        return data, None  # type: ignore[return-value]
    data = _without_array(data)
    if isinstance(data, str | Path):
        return _configuration(config_class, None, {"input_files": (str(data),), **settings}), None

    is_list_of_names = isinstance(data, list | tuple) and all(isinstance(name, str | Path) for name in data)
    if is_list_of_names and data:
        if all(isinstance(name, Path) or os.path.exists(name) for name in data):
            return _configuration(config_class, None, {"input_files": tuple(map(str, data)), **settings}), None
        return _configuration(config_class, None, settings), list(map(str, data))

    from bert_repro.tasks.columns import require_columns
    from bert_repro.tasks.data import as_dataset

    rows = as_dataset(data, "data=")
    column = settings.get("text_column", settings.get("text_columns", "text"))
    require_columns(rows, [column], "data=", "name the column of text with text_column=")
    return _configuration(config_class, None, settings), rows[column][:]


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
        config: all settings as one object, instead of `preset` and `settings`.
        preset: name of a preset, for example `paper-base` or `cpu-trial`.
        settings: settings by name; they override the preset. `corpus` is a folder made by
            `bert_repro.prepare_corpus`, or the manifest that it returned.

    Returns:
        The content of results.json in the output folder. That folder also contains the model, for `from_pretrained`.

    Raises:
        UserError: a setting, the corpus or the model cannot be used.
        NonFiniteError: the loss is not finite; lower the learning rate.
        TypeError: both `config` and other settings are given.
    """
    if config is not None:
        if preset or settings:
            raise TypeError("Pass config=, or preset= and settings, but not both.")
        return _run("run_pretraining", config)

    corpus = settings.get("corpus", "")
    if isinstance(corpus, dict):
        corpus = corpus["folder"]
        settings["corpus"] = corpus
    if not isinstance(corpus, str | Path):
        raise UserError(
            f"corpus is a {type(corpus).__name__}. Call prepare_corpus first and pass the folder that it made.",
            setting="corpus",
        )
    return _run("run_pretraining", _configuration(PretrainingConfig, preset, settings))


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
    """Fine-tunes a model on your data, scores it and predicts with it.

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

    The columns of the data decide the kind of task: `text` (or `text_a` and `text_b`) with `label` is classification
    or, with `regression=True`, regression; `tokens` with `tags` is tagging; `question`, `context` and `answers` is
    question answering; `sent1`, `sent2`, `ending0`, `ending1` ... is multiple choice. For GLUE and the other tasks of
    the paper, pass a configuration.

    Args:
        config: all settings as one object, instead of all other arguments: `GlueConfig`, `NerConfig`, `SquadConfig`
            or `SwagConfig`.
        model: folder or Hub id of the checkpoint to start from.
        train: training rows: a `datasets.Dataset`, a pandas data frame, a list of rows (dicts), a dict of columns,
            or the path of a file; or a `datasets.DatasetDict`, whose dev split is scored too.
        validation: rows to score, in any of these forms.
        test: rows to predict, with or without labels.
        preset: name of a preset.
        settings: settings by name.

    Returns:
        The content of results.json in the output folder: metrics by split, training, settings, hardware. That folder
        also contains the model and its predictions.

    Raises:
        UserError: a setting, the data or the model cannot be used.
        NonFiniteError: the loss is not finite; lower the learning rate.
        TypeError: both `config` and other arguments are given.
    """
    data_by_split = {"train": train, "validation": validation, "test": test}
    data_by_split = {split: data for split, data in data_by_split.items() if data is not None}
    if config is not None:
        if data_by_split or model or preset or settings:
            raise TypeError("Pass config=, or data and settings, but not both.")
        return _run(_RECIPE_NAMES[type(config)], config)
    if not data_by_split:
        raise UserError("There is no data. Pass train=, validation= or test=, or config= for a task of the paper.")
    from bert_repro.tasks.data import as_dataset
    from bert_repro.tasks.named_datasets import splits_in_memory, with_guessed_columns

    if isinstance(train, Mapping) and type(train).__name__ == "DatasetDict" and list(data_by_split) == ["train"]:
        data_by_split = dict(splits_in_memory(train, "train=", holds_out="validation_fraction" in settings))
    rows = {split: as_dataset(data, f"{split}=") for split, data in data_by_split.items()}

    # The names under which the results and the card mention the data.
    for split, data in data_by_split.items():
        settings[f"{split}_file"] = str(data) if isinstance(data, str | Path) else f"{split} data in memory"
    if model:
        settings["model_name_or_path"] = model
    config = _configuration(_family_of(next(iter(rows.values())).column_names), preset, settings)

    # The types of a dataset's columns tell which of them contain text and labels.
    if hasattr(train, "column_names") and isinstance(config, CustomDataConfig):
        config, rows = with_guessed_columns(config, rows, "train=")
    return _run(_RECIPE_NAMES[type(config)], config, data=rows)


@_names_arguments
def predict(model: str | Path, data: "Texts", **settings: Any) -> list[dict[str, Any]]:
    """Predicts with a fine-tuned model for texts, questions or choices.

        import bert_repro

        for row in bert_repro.predict("runs/moods", ["A warm evening.", "The glass was cold."]):
            print(row["text"], row["prediction"], row["probability"])

    Args:
        model: folder or Hub id of the model.
        data: texts, or pairs of texts as tuples; or anything that `finetune` accepts, with the columns that the model
            was trained on.
        settings: of `bert_repro.configs.PredictConfig`, by name.

    Returns:
        A row for each text, in order: the columns of the data, `prediction`, its `probability` and, if there are few
        possible answers, the probability of each, for example `probability_good`.

    Raises:
        UserError: the model is not fine-tuned, or the data does not have what its task needs.
    """
    from bert_repro.inference.predict import predictions_of
    from bert_repro.tasks.data import as_dataset

    config = _configuration(PredictConfig, None, {"model_name_or_path": model, **settings})
    require_paths(config)
    if isinstance(data, str | Path):
        if not os.path.exists(data):
            raise UserError(
                f"data {quoted(str(data))}: there is no such file. Pass texts as a list.", setting="input_file"
            )
        return predictions_of(_configuration(PredictConfig, None, {**vars(config), "input_file": str(data)}))
    return predictions_of(config, as_dataset(_as_columns(data), "data="))


def _as_columns(data: Any) -> Any:
    """Returns texts, pairs of texts and lists of words as a dict of columns; data with columns is returned as it is."""
    rows = _without_array(data)
    if not isinstance(rows, list | tuple) or not rows:
        return rows
    if any(isinstance(row, str | list) for row in rows):
        # A tagger also accepts texts that are already divided into words.
        column = "words" if isinstance(rows[0], list) else "text"
        return {column: list(rows)}
    if all(isinstance(row, tuple) and len(row) == 2 for row in rows):
        return {"text_a": [left for left, _ in rows], "text_b": [right for _, right in rows]}
    return rows


def _without_array(data: Any) -> Any:
    """Returns a list for a pandas series or a NumPy array, and any other data as it is."""
    convert = getattr(data, "tolist", getattr(data, "to_list", None))
    if convert is None or hasattr(data, "column_names"):
        return data
    return convert()


def _family_of(columns: Sequence[str]) -> type[FinetuningConfig]:
    """Returns the configuration class for data with these columns."""
    if {"question", "context"} <= set(columns):
        return SquadConfig
    if "ending0" in columns:
        return SwagConfig
    if {"tokens", "words"} & set(columns):
        return NerConfig
    return GlueConfig


def _configuration(config_class: type[C], preset: str | None, settings: dict[str, Any]) -> C:
    """Makes a configuration from keyword arguments and the values of a preset.

    Raises:
        UserError: a setting or the preset does not exist, or a value is wrong.
    """
    names = type_hints(config_class)
    settings = {spelling_of(name, names): value for name, value in settings.items()}
    for name in settings:
        if name not in names:
            arguments = [_ARGUMENT_NAMES.get(known, known) for known in names]
            advice = did_you_mean(name, arguments) or f"{config_class.__name__} lists all settings"
            raise UserError(f"{name} is not a setting; {advice}")

    values = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
    model = values.get("model_name_or_path") or ""
    if not isinstance(model, str):
        raise UserError(f"model is a {type(model).__name__}. Pass a folder or a Hub id.", setting="model_name_or_path")
    if preset:
        values = {**preset_values(preset, config_class, values), **values}
    return config_class(**values)


def _run(recipe: str, config: Any, **data: Any) -> RunResult:
    """Runs a recipe that trains, and returns its results."""
    with _log_on_stdout():
        return RunResult(config.output_dir, RECIPES[recipe].run(config, **data))


@contextmanager
def _log_on_stdout() -> Iterator[None]:
    """Prints the log during a run, unless the program has configured logging itself."""
    if logger.hasHandlers():
        yield
        return
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(PlainFormatter("%(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
