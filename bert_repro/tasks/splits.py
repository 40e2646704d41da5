"""Finds the splits of a task: official files, custom files, or a dataset of the Hub."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bert_repro.errors import UserError

if TYPE_CHECKING:
    import datasets

Read = Callable[[str, Path], "datasets.Dataset"]
"""Reads the file of a split."""


def from_official_files(paths: Mapping[str, Path], read: Read, fix: str) -> "dict[str, datasets.Dataset]":
    """Reads the files that are there.

    Args:
        paths: the official file of each split.
        read: reads one.
        fix: what `--data_dir` must hold, for the message.

    Raises:
        UserError: none is there.
    """
    present = {split: path for split, path in paths.items() if path.is_file()}
    if not present:
        raise UserError(f"{' and '.join(map(str, paths.values()))}: no such file; {fix}")
    return {split: read(split, path) for split, path in present.items()}


def from_custom_files(files: Mapping[str, Path], splits: Sequence[str], read: Read) -> "dict[str, datasets.Dataset]":
    """Reads the user's files of some splits.

    Raises:
        UserError: none of the splits has one.
    """
    found = {split: files[split] for split in splits if split in files}
    if not found:
        raise UserError(f"no file for the {splits[0]} split; name it with --{splits[0]}_file")
    return {split: read(split, path) for split, path in found.items()}


def from_hub(
    dataset_id: str, splits: Sequence[str], *, name: str | None = None, revision: str | None = None
) -> "dict[str, datasets.Dataset]":
    """Reads splits of a dataset of the Hub.

    Args:
        dataset_id: for example `allenai/swag`.
        splits: the splits wanted.
        name: the dataset's configuration.
        revision: its branch or commit.

    Returns:
        The splits that it has.

    Raises:
        UserError: it cannot be read, or has none of the splits.
    """
    import datasets

    title = f"{dataset_id} ({name})" if name else dataset_id
    try:
        published = datasets.load_dataset(dataset_id, name, revision=revision)
    except (OSError, RuntimeError, ValueError, StopIteration, datasets.exceptions.DatasetsError) as error:
        raise UserError(
            f"{title} cannot be read from the Hub: {_reason(error)}; check the connection, or give the official files "
            "with --data_dir"
        ) from error
    found = {split: published[split] for split in splits if split in published}
    if not found:
        raise UserError(f"{title} has no split {' or '.join(splits)}; give the official files with --data_dir")
    return found


def without_placeholder_labels(dataset: "datasets.Dataset") -> "datasets.Dataset":
    """Drops the column `label` of an unlabelled split, whose rows the Hub marks with -1."""
    return dataset.remove_columns("label") if dataset[0]["label"] == -1 else dataset


def _reason(error: Exception) -> str:
    """Returns one line on why a dataset cannot be read; of a broken file only the error's cause says what is wrong."""
    from datasets.exceptions import DatasetGenerationError

    if isinstance(error, StopIteration):  # all that the library says of an empty file
        return "one of its files is empty"
    cause = error.__cause__ if isinstance(error, DatasetGenerationError) and error.__cause__ else error
    return next((line.strip() for line in str(cause).splitlines() if line.strip()), type(error).__name__)
