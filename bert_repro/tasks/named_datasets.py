"""Reads the data of `--dataset_name`: a dataset of the Hub, a folder of data files, or a folder by `save_to_disk`.

Order of events:

1. `read_named_dataset` loads all splits of the dataset.
2. It chooses the split to train on, the split to score and the split to predict (`splits_by_role`).
3. Rows without a label, which published datasets mark by the class -1, are removed or make the split unlabelled.
4. `with_guessed_columns` finds the columns of text and labels, if they have other names than the usual ones.

Only datasets of text files are read. No code from a dataset is run: the library has no loading scripts any more, and
formats that could hide code or are no text are refused by name.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from bert_repro.configs import CustomDataConfig, GlueConfig, NerConfig
from bert_repro.configs.base import hub_is_reachable, looks_like_a_folder, nearest
from bert_repro.errors import UserError, flag
from bert_repro.tasks.columns import TEXT_COLUMNS
from bert_repro.tasks.tagged_text import TAG_COLUMNS, WORD_COLUMNS
from bert_repro.utils.readers import first_line

if TYPE_CHECKING:
    import datasets

    Splits: TypeAlias = Mapping[str, "datasets.Dataset"]

logger = logging.getLogger("bert_repro")

DEV_SPLITS = ("validation", "dev", "valid", "val", "eval", "validation_matched")
"""Names of a split to score, in the order in which they are preferred."""

LABEL_COLUMNS = ("label", "labels", "target", "class", "category", "intent", "sentiment")
"""Usual names of a column of labels, in the order in which they are preferred."""

_TEXT_FORMATS = ("arrow", "conll", "csv", "json", "parquet", "text")  # Builders of `datasets` that read text.
_CONVERTED = "refs/convert/parquet"
_SAVED_DATASET = "state.json"
_SAVED_DATASET_DICT = "dataset_dict.json"
# What the library raises for files that are missing, damaged or unreachable. Its own errors are of these types.
_READ_ERRORS = (OSError, RuntimeError, ValueError, TypeError, StopIteration)
_NO_LABEL = -1  # The class of an unlabelled row in published datasets.


@dataclass(frozen=True)
class NamedDataset:
    """The splits of a dataset that a run uses.

    Args:
        rows: the rows by role: `train`, `validation` (to score) and `test` (to predict).
        split_names: role -> name of the split in the dataset.
        name: the dataset as it was named.
        hub_id: its id on the Hub; None for a local folder.
        config_name: the configuration, if one was named.
    """

    rows: Mapping[str, "datasets.Dataset"]
    split_names: Mapping[str, str]
    name: str
    hub_id: str | None
    config_name: str | None

    def titles(self) -> dict[str, str]:
        """Returns what messages call each split, by role."""
        return {role: f"{self.name}, split {split}" for role, split in self.split_names.items()}

    @property
    def title(self) -> str:
        """The dataset's name without its owner, with the configuration."""
        name = Path(self.name).name
        return f"{name} ({self.config_name})" if self.config_name else name

    def description(self) -> dict[str, object]:
        """Returns what results and the card say about a dataset of the Hub."""
        configuration = {"config": self.config_name} if self.config_name else {}
        return {"dataset": self.hub_id, **configuration, "split_names": dict(self.split_names)}


def read_named_dataset(config: CustomDataConfig) -> NamedDataset:
    """Reads the splits of `config.dataset_name` that the run needs.

    Raises:
        UserError: the dataset cannot be read, or it lacks a split that the run needs.
    """
    name = str(config.dataset_name)
    available = _load(name, config.dataset_config_name)
    split_names = splits_by_role(config, list(available), name)
    rows = {role: available[split] for role, split in split_names.items()}
    if isinstance(config, GlueConfig):
        label_column = _label_column(config, next(iter(rows.values())))
        rows = {role: _without_unlabelled_rows(split, label_column, role, name) for role, split in rows.items()}
    return NamedDataset(
        rows=rows,
        split_names=split_names,
        name=name,
        hub_id=None if Path(name).is_dir() else name,
        config_name=config.dataset_config_name,
    )


def read_split(name: str, config_name: str | None, split: str, *, streaming: bool) -> Iterator[dict[str, Any]]:
    """Returns the rows of one split, with the names of classes in place of their numbers.

    Args:
        name: the dataset, see `NamedDataConfig`.
        config_name: its configuration.
        split: the split.
        streaming: whether rows of the Hub are read while they are used, without downloading all files first.

    Raises:
        UserError: the dataset cannot be read, or has no such split.
    """
    available = _load(name, config_name, streaming=streaming)
    if split not in available:
        raise UserError(
            f"{flag('dataset_split', split)}: {name} has no such split. Its splits are: {', '.join(available)}.",
            setting="dataset_split",
        )
    return _rows_with_class_names(available[split])


def _rows_with_class_names(split: "datasets.Dataset | datasets.IterableDataset") -> Iterator[dict[str, Any]]:
    """Yields rows whose classes are names. A column of classes in which the first row has none is left out."""
    features = split.features or {}
    class_columns = {column: feature for column, feature in features.items() if _is_class_label(feature)}
    list_columns = {column: _item_of(feature) for column, feature in features.items()}
    list_columns = {column: item for column, item in list_columns.items() if _is_class_label(item)}
    unlabelled: set[str] | None = None
    for row in split:
        if unlabelled is None:
            unlabelled = {column for column in class_columns if row[column] in (_NO_LABEL, None)}
        for column in unlabelled:
            del row[column]
        for column, feature in class_columns.items():
            if column not in unlabelled:
                row[column] = None if row[column] in (_NO_LABEL, None) else feature.int2str(row[column])
        for column, item in list_columns.items():
            row[column] = item.int2str(row[column])  # type: ignore[attr-defined]
        yield row


def identity_of(name: str, config_name: str | None) -> str:
    """Returns a text that changes when the files of a dataset change.

    Raises:
        UserError: the dataset cannot be read.
    """
    import datasets

    folder = Path(name).expanduser()
    saved = sorted(folder.rglob(_SAVED_DATASET)) if folder.is_dir() else []
    if saved:
        return " ".join(str(json.loads(path.read_text("utf-8")).get("_fingerprint")) for path in saved)
    try:
        builder = datasets.load_dataset_builder(str(folder) if folder.is_dir() else name, config_name)
        # The hash is over the names and versions of the files.
        return str(builder.hash)
    except _READ_ERRORS as error:
        raise _not_readable(name, config_name, error) from error


# --- Loading ----------------------------------------------------------------------------------------------------------


def _load(name: str, config_name: str | None, *, streaming: bool = False) -> "Splits":
    """Loads all splits of a dataset."""
    folder = Path(name).expanduser()
    if folder.is_file():
        raise UserError(
            f"{flag('dataset_name', name)} is a file. Name files with {flag('train_file')}, {flag('validation_file')} "
            f"and {flag('test_file')}.",
            setting="dataset_name",
        )
    if not folder.is_dir() and looks_like_a_folder(name):
        advice = nearest(folder) or "Check the path, or name a dataset of the Hub such as org/name."
        raise UserError(f"{flag('dataset_name', name)}: no such folder. {advice}", setting="dataset_name")
    try:
        if folder.is_dir():
            return _load_folder(folder, config_name, streaming=streaming)
        return _load_from_hub(name, config_name, streaming=streaming)
    except UserError:
        raise
    except _READ_ERRORS as error:
        raise _not_readable(name, config_name, error) from error


def _load_folder(folder: Path, config_name: str | None, *, streaming: bool) -> "Splits":
    """Loads a folder by `save_to_disk`, or a folder of data files whose names say their split."""
    import datasets

    if (folder / _SAVED_DATASET_DICT).is_file():
        return dict(datasets.load_from_disk(str(folder)))
    if (folder / _SAVED_DATASET).is_file():
        return {"train": datasets.load_from_disk(str(folder))}
    return _load_files(str(folder), datasets.load_dataset_builder(str(folder), config_name), streaming=streaming)


def _load_from_hub(name: str, config_name: str | None, *, streaming: bool) -> "Splits":
    """Loads a dataset of the Hub, or its converted files if it has a loading script."""
    import datasets

    if not hub_is_reachable():
        # Without this the library would retry for minutes before it looks into its cache.
        datasets.config.HF_HUB_OFFLINE = True
    try:
        return _load_files(name, datasets.load_dataset_builder(name, config_name), streaming=streaming)
    except RuntimeError as error:
        if "scripts are no longer supported" not in str(error):
            raise
        return _load_converted(name, config_name, streaming=streaming)


def _load_files(name: str, builder: "datasets.DatasetBuilder", *, streaming: bool) -> "Splits":
    """Returns the splits of a dataset, read into the library's cache or, when streaming, while they are used."""
    _require_text_format(builder, name)
    if streaming:
        return dict(builder.as_streaming_dataset())
    builder.download_and_prepare()
    return dict(builder.as_dataset())


def _load_converted(name: str, config_name: str | None, *, streaming: bool) -> "Splits":
    """Loads the Parquet files that the Hub makes of a dataset with a loading script, which is never run.

    They are in a branch of their own, in a folder for each configuration.
    """
    import datasets
    from huggingface_hub import HfApi

    files = HfApi().list_repo_files(name, repo_type="dataset", revision=_CONVERTED)
    configurations = sorted({file.split("/")[0] for file in files if file.endswith(".parquet")})
    if config_name is None and len(configurations) == 1:
        config_name = configurations[0]
    if config_name not in configurations:
        raise UserError(
            f"{flag('dataset_name', name)}: choose one of its configurations with {flag('dataset_config_name')}: "
            f"{', '.join(configurations)}.",
            setting="dataset_config_name",
        )
    logger.info("%s has a loading script, which is not run. Its Parquet files on the Hub are read instead.", name)
    builder = datasets.load_dataset_builder(name, data_dir=config_name, revision=_CONVERTED)
    return _load_files(name, builder, streaming=streaming)


def _require_text_format(builder: "datasets.DatasetBuilder", name: str) -> None:
    """Refuses a dataset whose files are not text, for example images."""
    # The module of a builder is named datasets.packaged_modules.FORMAT.FORMAT.
    file_format = type(builder).__module__.split(".")[-1]
    for base in type(builder).__mro__:
        if base.__module__.startswith("datasets.packaged_modules."):
            file_format = base.__module__.split(".")[2]
            break
    if file_format not in _TEXT_FORMATS:
        raise UserError(
            f"{flag('dataset_name', name)}: its files have the format {file_format}, which is not read here. Convert "
            "it to CSV, JSON lines or Parquet.",
            setting="dataset_name",
        )


def _not_readable(name: str, config_name: str | None, error: Exception) -> UserError:
    """Returns the error for a dataset that the library could not load; its reason may be a missing configuration."""
    reason = first_line(error.__cause__ or error)
    if "Config name is missing" in str(error) or "BuilderConfig" in str(error):
        # The library names the configurations in later lines of its message.
        reason = " ".join(str(error).split())
        title = flag("dataset_config_name", config_name) if config_name else flag("dataset_config_name")
        return UserError(
            f"{flag('dataset_name', name)}: choose one of its configurations with {title}. {reason}",
            setting="dataset_config_name",
        )
    return UserError(
        f"{flag('dataset_name', name)} cannot be read: {reason}. Check the name and the connection.",
        setting="dataset_name",
    )


# --- Splits -----------------------------------------------------------------------------------------------------------


def splits_by_role(config: CustomDataConfig, available: Sequence[str], name: str) -> dict[str, str]:
    """Chooses the splits of a run.

    Args:
        config: what the run does, and the splits that were named.
        available: the names of the splits.
        name: what messages call the dataset.

    Returns:
        Role (`train`, `validation`, `test`) -> name of the split, for every role that the run needs.

    Raises:
        UserError: a split that the run needs is missing.
    """
    given = {
        "train": config.train_split_name,
        "validation": config.validation_split_name,
        "test": config.test_split_name,
    }
    for role, split in given.items():
        if split is not None and split not in available:
            setting = f"{role}_split_name"
            raise UserError(
                f"{flag(setting, split)}: {name} has no such split. Its splits are: {', '.join(available)}.",
                setting=setting,
            )
    chosen = {role: split for role, split in given.items() if split is not None}
    if config.do_train and "train" not in chosen:
        chosen["train"] = _required_split("train", available, name)
    if config.do_predict and "test" not in chosen:
        chosen["test"] = _required_split("test", available, name)
    # With a fraction, the rows to score are drawn from the training rows later.
    if config.do_eval and "validation" not in chosen and config.validation_fraction is None:
        chosen["validation"] = _split_to_score(available, name)

    needed = {"train": config.do_train, "validation": config.do_eval, "test": config.do_predict}
    return {role: chosen[role] for role, is_needed in needed.items() if is_needed and role in chosen}


def _required_split(role: str, available: Sequence[str], name: str) -> str:
    if role in available:
        return role
    setting = f"{role}_split_name"
    raise UserError(
        f"{name} has no split {role}. Its splits are: {', '.join(available)}. Name one with {flag(setting)}.",
        setting=setting,
    )


def _split_to_score(available: Sequence[str], name: str) -> str:
    """Returns the dev split, or the test split of a dataset without one."""
    for split in DEV_SPLITS:
        if split in available:
            return split
    if "test" in available:
        logger.warning(
            "%s has no dev split, so its test split is scored. If you choose settings by that score, it is too good: "
            "%s holds out training rows instead.",
            name,
            flag("validation_fraction", 0.1),
        )
        return "test"
    raise UserError(
        f"{name} has no split to score. Its splits are: {', '.join(available)}. Add {flag('validation_fraction', 0.1)} "
        f"to hold out training rows, or name a split with {flag('validation_split_name')}.",
        setting="validation_split_name",
    )


def _without_unlabelled_rows(
    split: "datasets.Dataset", label_column: str | None, role: str, name: str
) -> "datasets.Dataset":
    """Removes rows with the class -1, or the column if the split has no labels at all.

    Args:
        split: the rows.
        label_column: the column of labels, if it was found.
        role: `train`, `validation` or `test`.
        name: what messages call the dataset.
    """
    if label_column not in split.column_names or not _is_class_label(split.features[label_column]):
        return split
    labels = split[label_column][:]
    labelled_rows = [row for row, label in enumerate(labels) if label not in (_NO_LABEL, None)]
    if len(labelled_rows) == len(labels):
        return split
    # Every row that was asked for gets a prediction, so only the labels are removed from a split to predict.
    if role == "test" or not labelled_rows:
        return split.remove_columns(label_column)
    logger.warning(
        "%s: %d of %d rows to %s have no label and are left out.",
        name,
        len(labels) - len(labelled_rows),
        len(labels),
        "train on" if role == "train" else "score",
    )
    return split.select(labelled_rows)


def splits_in_memory(
    data: "Mapping[str, datasets.Dataset]", name: str, *, holds_out: bool
) -> "dict[str, datasets.Dataset]":
    """Chooses the splits to train on and to score from a `DatasetDict`.

    Args:
        data: the splits by name.
        name: what messages call them.
        holds_out: whether rows to score are drawn from the training rows.

    Returns:
        `train` and, unless rows are held out, `validation`.

    Raises:
        UserError: there is no split `train`, or none to score.
    """
    rows = {"train": data[_required_split("train", list(data), name)]}
    if not holds_out:
        rows["validation"] = data[_split_to_score(list(data), name)]
    return rows


# --- Columns ----------------------------------------------------------------------------------------------------------


def with_guessed_columns(
    config: CustomDataConfig, rows: "Splits", name: str
) -> tuple[CustomDataConfig, dict[str, "datasets.Dataset"]]:
    """Finds the columns of a dataset by their types, if they do not have the usual names.

    Args:
        config: the settings; columns that they name are kept.
        rows: the splits, by role.
        name: what messages call the dataset.

    Returns:
        The settings with `text_columns` and `label_column` (classification), and the splits, whose columns of words
        and tags are called `words` and `tags` (tagging).

    Raises:
        UserError: several columns could be meant.
    """
    splits = dict(rows)
    first = next(iter(splits.values()))
    if isinstance(config, GlueConfig):
        label_column = _label_column(config, first) or config.label_column
        text_columns = config.text_columns or _text_columns(first, label_column, name)
        guessed = replace(config, text_columns=text_columns, label_column=label_column)
        if guessed != config:
            logger.info("%s: text in %s, labels in %s", name, " and ".join(text_columns), label_column)
        return guessed, splits
    if isinstance(config, NerConfig):
        return config, {role: _with_usual_tag_columns(split) for role, split in splits.items()}
    return config, splits


def _label_column(config: GlueConfig, split: "datasets.Dataset") -> str | None:
    """Returns the column of labels: as it was named, by a usual name, or the only column of classes."""
    if config.label_column in split.column_names:
        return config.label_column
    column_names: list[str] = split.column_names
    class_columns = [str(column) for column, feature in split.features.items() if _has_class_names(feature)]
    if len(class_columns) == 1:
        return class_columns[0]
    candidates = class_columns or column_names
    for column in LABEL_COLUMNS:
        if column in candidates:
            return column
    return None


def _text_columns(split: "datasets.Dataset", label_column: str, name: str) -> tuple[str, ...]:
    """Returns the columns of text: with the usual names, or the only one that contains texts."""
    for columns in TEXT_COLUMNS:
        if set(columns) <= set(split.column_names):
            return columns
    text_columns = [
        column
        for column, feature in split.features.items()
        if _is_text(feature) and column != label_column and not _is_identifier(column)
    ]
    if len(text_columns) == 1:
        return tuple(text_columns)
    if not text_columns:
        raise UserError(
            f"{name} has no column of text. Its columns are: {', '.join(split.column_names)}.", setting="text_columns"
        )
    raise UserError(
        f"{name} has several columns of text: {', '.join(text_columns)}. Name one, or two for pairs of texts, with "
        f"{flag('text_columns')}.",
        setting="text_columns",
    )


def _with_usual_tag_columns(split: "datasets.Dataset") -> "datasets.Dataset":
    """Calls the only column of lists of texts `words` and the only one of lists of classes `tags`."""
    word_columns = [column for column, feature in split.features.items() if _is_text(_item_of(feature))]
    tag_columns = [column for column, feature in split.features.items() if _is_class_label(_item_of(feature))]
    names: dict[str, str] = {}
    if not set(WORD_COLUMNS) & set(split.column_names) and len(word_columns) == 1:
        names[word_columns[0]] = WORD_COLUMNS[0]
    if not set(TAG_COLUMNS) & set(split.column_names) and len(tag_columns) == 1:
        names[tag_columns[0]] = TAG_COLUMNS[0]
    return split.rename_columns(names) if names else split


def _item_of(feature: object) -> object:
    """Returns the type of a list's items; None for what is no list."""
    return getattr(feature, "feature", None)


def _is_text(feature: object) -> bool:
    return getattr(feature, "dtype", None) in ("string", "large_string")


def _is_class_label(feature: object) -> bool:
    return getattr(feature, "names", None) is not None


def _has_class_names(feature: object) -> bool:
    """Returns whether a column has classes, or lists of classes for several labels."""
    return _is_class_label(feature) or _is_class_label(_item_of(feature))


def _is_identifier(column: str) -> bool:
    """Returns whether a column's name says that it identifies rows."""
    name = column.lower()
    return name in ("id", "idx", "index", "guid", "uuid", "url") or name.endswith(("_id", "_url"))
