"""Finds the splits of a task: official files, custom files, or a dataset of the Hub."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bert_repro.errors import UserError
from bert_repro.utils.randomness import draw

if TYPE_CHECKING:
    import datasets

LONGEST_EXAMPLE = 300
"""Characters of a text that a card shows."""
_ROWS_LOOKED_AT = 200
HELD_OUT = 31  # names this draw in `randomness.draw`
Read = Callable[[str, Path], "datasets.Dataset"]
"""Reads the file of a split."""


def no_such_file(paths: Mapping[str, Path], fix: str) -> UserError:
    """Returns the error where none of a task's official files is there; `fix` says what `--data_dir` must hold."""
    return UserError(f"{' and '.join(map(str, paths.values()))}: no such file; {fix}")


@dataclass(frozen=True)
class CustomFiles:
    """Custom data.

    Args:
        paths: the file of each split that there is.
        validation_fraction: share of the training rows that becomes the `validation` split; None: that split has a file
            or is not there.
        seed: draws these rows.
    """

    paths: Mapping[str, Path]
    validation_fraction: float | None = None
    seed: int = 0

    def names(self) -> dict[str, str]:
        """See `custom_names`."""
        return custom_names(self.paths)

    def read(
        self,
        splits: Sequence[str],
        read: Read,
        strata: "Callable[[datasets.Dataset], Sequence[Hashable]] | None" = None,
    ) -> "dict[str, datasets.Dataset]":
        """Reads the files of some splits.

        Args:
            splits: the splits wanted.
            read: reads one file.
            strata: what to keep in proportion when rows are held out, for each row; None: nothing.

        Raises:
            UserError: none of the splits has a file, or too few rows are there to hold some out.
        """
        divided = self.validation_fraction is not None
        sources = {split: "train" if divided and split == "validation" else split for split in splits}
        present = {split: source for split, source in sources.items() if source in self.paths}
        if not present:
            raise UserError(f"no file for the {splits[0]} split; name it with --{splits[0]}_file")
        found = {}
        for split, source in present.items():
            path = self.paths[source]
            dataset = read(source, path)
            if divided and source == "train":
                groups = [None] * len(dataset) if strata is None else strata(dataset)
                held = held_out_rows(groups, self.validation_fraction or 0.0, self.seed)
                dataset = dataset.select(np.flatnonzero(held if split == "validation" else ~held))
            if not len(dataset):
                raise UserError(
                    f"--validation_fraction {self.validation_fraction}: leaves no row for the {split} split of {path}; "
                    "give another share or a file of its own"
                )
            found[split] = dataset
        return found


def held_out_rows(strata: Sequence[Hashable], fraction: float, seed: int) -> npt.NDArray[np.bool_]:
    """Draws rows to hold out, of each stratum in proportion (to within one row).

    Args:
        strata: a value for each row; rows of equal values are a stratum.
        fraction: share of the rows.
        seed: another seed draws other rows.

    Returns:
        Whether each row is held out, (N,).
    """
    numbers = {value: number for number, value in enumerate(dict.fromkeys(strata))}
    groups = np.array([numbers[value] for value in strata], dtype=np.int64)
    order = np.lexsort((draw(seed, HELD_OUT, np.arange(len(groups))), groups))
    steps = np.floor(np.arange(len(groups) + 1) * fraction + 0.5)
    held = np.zeros(len(groups), dtype=bool)
    held[order] = np.diff(steps) > 0
    return held


def custom_names(paths: Mapping[str, Path]) -> dict[str, str]:
    """Returns the names of custom files without their folders, by split."""
    return {split: path.name for split, path in paths.items()}


def custom_title(paths: Mapping[str, Path]) -> str:
    """Returns what custom data is called: the name of its first file."""
    return next(iter(paths.values())).stem


def short_row(dataset: "datasets.Dataset | None", columns: Mapping[str, str]) -> dict[str, Any] | None:
    """Returns the first of a split's rows whose texts are neither empty nor long, as an example to show, if any.

    Args:
        dataset: the split, if there is one.
        columns: name in the example -> column.
    """
    for row in () if dataset is None else dataset.select(range(min(len(dataset), _ROWS_LOOKED_AT))):
        texts = {name: " ".join(str(row[column]).split()) for name, column in columns.items()}
        if all(0 < len(text) <= LONGEST_EXAMPLE for text in texts.values()):
            return texts
    return None


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
