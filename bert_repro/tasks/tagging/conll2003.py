"""CoNLL-2003, English: persons, organisations, places and miscellaneous names (paper 5.3; Tjong Kim Sang and De
Meulder, 2003). The official files tag in IOB1, which is read as BIO; `-DOCSTART-` lines open documents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_repro.tasks.splits import from_hub, from_official_files
from bert_repro.tasks.tagging.tag_files import read_tagged_text
from bert_repro.tasks.tagging.tagging_task import TaggingTask, tagged_dataset

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

HUB_DATASET, HUB_REVISION = "eriktks/conll2003", "refs/convert/parquet"
TYPES = ("PER", "ORG", "LOC", "MISC")
TAGS = ("O", *(f"{prefix}-{kind}" for kind in TYPES for prefix in "BI"))
"""In the order of the Hub's dataset, whose tags are numbers."""
FILES = {"train": "eng.train", "validation": "eng.testa", "test": "eng.testb"}


@dataclass(frozen=True, kw_only=True)
class Conll2003Task(TaggingTask):
    """CoNLL-2003; the paper uses a cased vocabulary."""

    def read_splits(self, data_dir: Path | None, splits: Sequence[str]) -> "dict[str, datasets.Dataset]":
        """See `Task.read_splits`. The Hub's dataset does not know documents, the official files do."""
        if data_dir is None:
            found = from_hub(HUB_DATASET, splits, revision=HUB_REVISION)
            names = {"tokens": "words", "ner_tags": "tags"}
            return {split: dataset.select_columns([*names]).rename_columns(names) for split, dataset in found.items()}
        paths = {split: data_dir / FILES[split] for split in splits}
        fix = "--data_dir is the folder that holds the official eng.train, eng.testa and eng.testb"
        return from_official_files(paths, self._read, fix)

    def data_files(self, data_dir: Path) -> list[Path]:
        """See `Task.data_files`; the test set is labelled and scored too."""
        return [data_dir / name for name in FILES.values()]

    def deviations(
        self, tokenizer: "PreTrainedTokenizerBase", splits: "Mapping[str, datasets.Dataset]"
    ) -> dict[str, str]:
        """Returns what `TaggingTask.deviations` finds, and `uncased`."""
        found = super().deviations(tokenizer, splits)
        if _is_uncased(tokenizer):
            found["uncased"] = (
                "the vocabulary is uncased; the paper uses a cased one for CoNLL-2003, where case tells names apart"
            )
        return found

    def data_description(self) -> dict[str, Any]:
        """See `Task.data_description`."""
        return {"dataset": HUB_DATASET, "language": "en", "license": self.data_license}

    def _read(self, split: str, path: Path) -> "datasets.Dataset":
        return tagged_dataset(read_tagged_text(path), self.label_names, entities=True)


def _is_uncased(tokenizer: "PreTrainedTokenizerBase") -> bool:
    normalizer = tokenizer.backend_tokenizer.normalizer
    return normalizer is not None and normalizer.normalize_str("A") == "a"


CONLL2003 = Conll2003Task(
    name="conll2003",
    title="CoNLL-2003",
    label_names=TAGS,
    metrics=("entity_f1",),
    primary_metric="entity_f1",
    data_license="Reuters text, for research use only",
    paper_metrics={"table_7": ("entity_f1",), "table_8": ("entity_f1",)},
)
