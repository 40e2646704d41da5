"""Reading a task's dataset from the Hub, with one clear line where that fails."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bert_repro.errors import UserError

if TYPE_CHECKING:
    import datasets


def load_from_hub(
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
        reason = _reason(error)
        raise UserError(
            f"{title} cannot be read from the Hub: {reason}; check the connection, or give the official files "
            "with --data_dir"
        ) from error
    found = {split: published[split] for split in splits if split in published}
    if not found:
        raise UserError(f"{title} has no split {' or '.join(splits)}; give the official files with --data_dir")
    return found


def _reason(error: Exception) -> str:
    """One line on why a dataset cannot be read; what is wrong with a broken file only the error's cause says."""
    from datasets.exceptions import DatasetGenerationError

    if isinstance(error, StopIteration):  # all that the library says of an empty file
        return "one of its files is empty"
    told = error.__cause__ if isinstance(error, DatasetGenerationError) and error.__cause__ else error
    return next((line.strip() for line in str(told).splitlines() if line.strip()), type(error).__name__)
