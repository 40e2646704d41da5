"""Settings that name a dataset: one of the Hub, a folder of data files, or a folder that `save_to_disk` wrote."""

from collections.abc import Sequence
from dataclasses import dataclass

from bert_repro.configs.base import Config, setting
from bert_repro.errors import UserError, flag

_NEEDS_DATASET_NAME = ("dataset_config_name", "train_split_name", "validation_split_name", "test_split_name")


def refuse_other_data(config: Config, dataset_name: str, others: Sequence[str]) -> None:
    """Refuses settings that name data together with a dataset.

    Args:
        config: the settings.
        dataset_name: the dataset.
        others: names of the settings that exclude it.

    Raises:
        UserError: one of them is set.
    """
    for name in others:
        value = getattr(config, name)
        if value is not None:
            raise UserError(
                f"{flag('dataset_name', dataset_name)} and {flag(name, value)} exclude each other. Leave one out.",
                setting=name,
            )


@dataclass(frozen=True)
class NamedDataConfig(Config):
    """A dataset by its name, with the names of its splits."""

    dataset_name: str | None = setting(
        None,
        "Your own data as a dataset: a Hub id such as org/name, or a folder. The folder has CSV, JSON lines or Parquet "
        "files, or was written by save_to_disk.",
    )
    dataset_config_name: str | None = setting(None, "Configuration (subset) of the dataset, if it has several.")
    train_split_name: str | None = setting(None, "Split to train on; default: train.")
    validation_split_name: str | None = setting(
        None, "Split to score; default: validation (also called dev), or test if there is no other."
    )
    test_split_name: str | None = setting(None, "Split to predict; default: test.", decides_result=False)

    def _check_dataset_name(self) -> None:
        """Refuses settings of a dataset that is not named.

        Raises:
            UserError: a split or a configuration is named, but no dataset.
        """
        if self.dataset_name is not None:
            return
        for name in _NEEDS_DATASET_NAME:
            value = getattr(self, name)
            if value is not None:
                raise UserError(
                    f"{flag(name, value)} requires {flag('dataset_name')}, the dataset that it is a part of.",
                    setting=name,
                )
