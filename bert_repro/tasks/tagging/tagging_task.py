"""Tasks that give a tag to every word: named entities, parts of speech (paper 5.3).

The first token of each word is classified, no conditional random field on top; every word of a split gets one
prediction, however long its sentence is. CoNLL-2003 is the paper's task of this kind: persons, organizations, places
and miscellaneous names in English (Tjong Kim Sang and De Meulder, 2003). Its official files tag in IOB1, which is read
as BIO; `-DOCSTART-` lines open documents.
"""

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from bert_repro.configs import FinetuningConfig, NerConfig
from bert_repro.errors import NonFiniteError, UserError
from bert_repro.tasks import encoding
from bert_repro.tasks.base import Batch, ExampleScores, Feature, FloatArray, Predictions, Task
from bert_repro.tasks.encoding import special_ids
from bert_repro.tasks.predictions import (
    entity_details,
    label_details,
    require_first_rows,
    surest_errors,
    write_json_lines,
)
from bert_repro.tasks.splits import from_hub, no_such_file
from bert_repro.tasks.tagging import tagged_text
from bert_repro.tasks.tagging.tagged_text import (
    ENTITY_TAG,
    TaggedSentences,
    TokenizedDocument,
    read_tagged_text,
    to_bio,
    token_labels,
    windows,
    word_pieces,
)
from bert_repro.training.batches import IGNORE_INDEX
from bert_repro.utils.files import atomic_file
from bert_repro.utils.readers import listed, shown

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger("bert_repro")

_NUM_SPECIAL_TOKENS = 2  # [CLS] and [SEP]

HUB_DATASET, HUB_REVISION = "eriktks/conll2003", "refs/convert/parquet"
TYPES = ("PER", "ORG", "LOC", "MISC")
TAGS = ("O", *(f"{prefix}-{kind}" for kind in TYPES for prefix in "BI"))
"""In the order of the Hub's dataset, whose tags are numbers."""
FILES = {"train": "eng.train", "validation": "eng.testa", "test": "eng.testb"}


@dataclass(frozen=True, kw_only=True)
class TaggingTask(Task):
    """A tag for every word.

    A split has a row per sentence with the columns `words` and, if it is labelled, `tags` (places in `label_names`),
    and, where documents are known, `document` (a number; the sentences of a document follow each other).

    Args:
        context: what a window holds: `tile`, `centred` or `sentence`; see
            `bert_repro.tasks.tagging.tagged_text.windows`.
            Without `document` every sentence is a document of its own.
    """

    head: str = "BertReproForTokenClassification"
    context: str = "tile"
    reference_column: ClassVar[str] = "tags"
    encoding_code: ClassVar[tuple[Any, ...]] = (encoding, tagged_text)

    def prepared(self, config: FinetuningConfig, tokenizer: "PreTrainedTokenizerBase") -> "TaggingTask":
        """Returns the task with the configuration's `ner_context`."""
        if not isinstance(config, NerConfig):
            return self
        return dataclasses.replace(self, context=config.ner_context)

    def rows_at_once(self, dataset: "datasets.Dataset", max_seq_length: int) -> None:
        """See `Task.rows_at_once`; all, as windows reach over sentences, and documents stay together."""

    def deviations(
        self, tokenizer: "PreTrainedTokenizerBase", splits: "Mapping[str, datasets.Dataset]"
    ) -> dict[str, str]:
        """Returns `no_documents`, where context was asked for and a split does not tell its documents apart."""
        without = [name for name, dataset in splits.items() if "document" not in dataset.column_names]
        if self.context == "sentence" or not without:
            return {}
        return {
            "no_documents": f"{', '.join(without)}: the data does not say where documents begin, so each sentence is "
            f"read alone, not in the context that ner_context={self.context} asks for"
        }

    def encoding_settings(self) -> dict[str, Any]:
        """See `Task.encoding_settings`."""
        return {"context": self.context}

    def encode_batch(
        self, examples: Mapping[str, list[Any]], tokenizer: "PreTrainedTokenizerBase", max_seq_length: int
    ) -> dict[str, list[Any]]:
        """Turns the sentences of a split into windows, in the order of the words.

        Returns:
            Columns with a row per window: what `Task.encode_batch` says, `places` (of the first token of each word that
            is tagged here) and `labels` (-100 elsewhere). `truncated`: a word alone was longer than a window and lost
            its last tokens, never its tag.
        """
        cls, sep = special_ids(tokenizer)
        room = max_seq_length - _NUM_SPECIAL_TOKENS
        pieces = word_pieces(examples["words"], tokenizer)
        tags = list(chain.from_iterable(examples.get("tags", [])))
        numbers = examples.get("document", range(len(pieces)))
        columns = ("input_ids", "token_type_ids", "length", "truncated", "places", *(["labels"] if tags else []))
        features: dict[str, list[Any]] = {name: [] for name in columns}
        words_before = 0
        for _, group in groupby(zip(numbers, pieces, strict=True), key=lambda pair: pair[0]):
            sentences = [sentence for _, sentence in group]
            document = TokenizedDocument.of(sentences, room, int(tokenizer.unk_token_id))
            too_long = np.array([len(word) > room for sentence in sentences for word in sentence])
            for window in windows(document, self.context, room):
                words = slice(window.first_word, window.last_word)
                places = document.word_starts[words] - window.start + 1
                ids = np.array([cls, *document.tokens[window.start : window.end], sep], dtype=np.int32)
                features["input_ids"].append(ids)
                features["token_type_ids"].append(np.zeros(len(ids), dtype=np.int8))
                features["length"].append(len(ids))
                features["truncated"].append(bool(too_long[words].any()))
                features["places"].append(places)
                if tags:
                    own = tags[words_before + words.start : words_before + words.stop]
                    features["labels"].append(token_labels(len(ids), places, own))
            words_before += len(document.word_starts) - 1
        return features

    def collate(
        self, features: Sequence[Feature], *, pad_token_id: int, packing: bool, pad_to_multiple_of: int | None = None
    ) -> Batch:
        """Batches windows; `labels` are (1, T) packed, (B, S) padded, -100 where nothing is predicted."""
        import torch

        from bert_repro.training.batches import collate_features

        batch = collate_features(
            features, pad_token_id=pad_token_id, packing=packing, pad_to_multiple_of=pad_to_multiple_of
        )
        if "labels" in features[0]:
            rows = [torch.tensor(feature["labels"]) for feature in features]
            if packing:
                batch["labels"] = torch.cat(rows)[None]
            else:
                batch["labels"] = torch.full_like(batch["input_ids"], IGNORE_INDEX)
                for labels, row in zip(batch["labels"], rows, strict=True):
                    labels[: len(row)] = row
        return batch

    def loss_items(self, features: Sequence[Feature]) -> npt.NDArray[np.int64]:
        """Returns the words tagged in each window."""
        return np.array([len(feature["places"]) for feature in features], dtype=np.int64)

    def postprocess(
        self, dataset: "datasets.Dataset", features: "datasets.Dataset", outputs: Iterable[FloatArray]
    ) -> Predictions:
        """Returns the likeliest tag of every word, a list of tags for each sentence, and their `probabilities`."""
        predicted: list[str] = []
        probabilities: list[npt.NDArray[np.float32]] = []
        for places, logits in zip(features["places"], outputs, strict=True):
            scores = logits[places]
            if not np.isfinite(scores).all():
                raise NonFiniteError(f"{self.name}: the model's output is not finite")
            predicted.extend(self.label_names[tag] for tag in scores.argmax(axis=1))
            # The largest of a softmax, whose own exponent is 1.
            probabilities.append(1 / np.exp(scores - scores.max(axis=1, keepdims=True)).sum(axis=1))
        ends = np.cumsum([len(words) for words in dataset["words"]])
        sentences = [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
        sure = np.concatenate(probabilities).astype(np.float64)
        return {
            "prediction": [predicted[sentence] for sentence in sentences],
            "probabilities": [sure[sentence].round(6).tolist() for sentence in sentences],
        }

    def references(self, dataset: "datasets.Dataset") -> list[list[str]]:
        """See `Task.references`; the tags of every sentence."""
        return [[self.label_names[tag] for tag in tags] for tags in dataset["tags"]]

    def score(self, predictions: Predictions, dataset: "datasets.Dataset") -> dict[str, float]:
        """See `Task.score`; entity F1 over sentences, or accuracy over words."""
        if self.metrics != ("accuracy",):
            return super().score(predictions, dataset)
        numbers = {name: number for number, name in enumerate(self.label_names)}
        predicted = [numbers[tag] for tag in chain.from_iterable(predictions["prediction"])]
        scores: dict[str, float] = self.load_metric().compute(
            predictions=predicted, references=list(chain.from_iterable(dataset["tags"]))
        )
        return scores

    def score_details(self, predictions: Predictions, dataset: "datasets.Dataset") -> dict[str, Any]:
        """See `Task.score_details`; of entities, or of tags that mark none."""
        if self.metrics != ("accuracy",):
            return entity_details(predictions["prediction"], self.references(dataset))
        numbers = {name: number for number, name in enumerate(self.label_names)}
        predicted = np.array([numbers[tag] for tag in chain.from_iterable(predictions["prediction"])])
        return label_details(predicted, np.array(list(chain.from_iterable(dataset["tags"]))), self.label_names)

    def is_degenerate(self, predictions: Predictions, dataset: "datasets.Dataset") -> bool:
        """See `Task.is_degenerate`; whether every word has the same tag."""
        tags = list(chain.from_iterable(predictions["prediction"]))
        return len(tags) > 1 and len(set(tags)) == 1

    def example_scores(self, split: str, dataset: "datasets.Dataset", run_folder: Path) -> ExampleScores:
        """See `Task.example_scores`; the entities of every sentence."""
        from seqeval.metrics.sequence_labeling import get_entities

        path = run_folder / f"predictions.{split}.txt"
        found = read_tagged_text(path)
        words = dataset["words"][: len(found.words)]
        require_first_rows(path, [" ".join(sentence) for sentence in found.words], list(map(" ".join, words)))
        counts = []
        for predicted, tags in zip(found.tags or [], dataset["tags"][: len(words)], strict=True):
            ours = set(get_entities(predicted))
            true = set(get_entities([self.label_names[tag] for tag in tags]))
            counts.append([len(ours & true), len(ours), len(true)])
        return {"entity_f1": counts}

    def write_predictions(
        self, directory: str | Path, split: str, dataset: "datasets.Dataset", predictions: Predictions
    ) -> list[Path]:
        """Writes the predictions of a split.

        `predictions.SPLIT.txt` is as `conlleval` takes it: word, tag if known, predicted tag; an empty line after each
        sentence. `predictions.SPLIT.jsonl` has a sentence on each line, with the probability of each tag; of a labelled
        split, `predictions.SPLIT.errors.jsonl` the hundred wrong words that the model was surest of.
        """
        path = Path(directory) / f"predictions.{split}.txt"
        columns = [dataset["words"], *([self.references(dataset)] if self.is_labelled(dataset) else [])]
        with atomic_file(path) as file:
            for sentence in zip(*columns, predictions["prediction"], strict=True):
                for fields in zip(*sentence, strict=True):
                    file.write(" ".join(fields) + "\n")
                file.write("\n")
        records = path.with_suffix(".jsonl")
        write_json_lines(records, self.records(dataset, predictions))
        if not self.is_labelled(dataset):
            return [path, records]
        errors = path.with_suffix(".errors.jsonl")
        write_json_lines(errors, surest_errors(_words(self.records(dataset, predictions))))
        return [path, records, errors]

    def records(self, dataset: "datasets.Dataset", predictions: Predictions) -> Iterator[dict[str, Any]]:
        """See `Task.records`; a sentence each, with lists of its `words`, tags and their `probability`."""
        labels = self.references(dataset) if self.is_labelled(dataset) else None
        rows = zip(dataset["words"], predictions["prediction"], predictions["probabilities"], strict=True)
        for index, (words, tags, probabilities) in enumerate(rows):
            known = {} if labels is None else {"label": labels[index]}
            yield {"index": index, "words": words, **known, "prediction": tags, "probability": probabilities}


def _words(records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields the words of labelled sentences, each with its sentence."""
    for record in records:
        columns = zip(*(record[name] for name in ("words", "label", "prediction", "probability")), strict=True)
        sentence = " ".join(record["words"])
        for word, label, prediction, probability in columns:
            shown = {"index": record["index"], "word": word, "label": label, "prediction": prediction}
            yield {**shown, "probability": probability, "sentence": sentence}


def tagged_dataset(sentences: TaggedSentences, label_names: Sequence[str], *, entities: bool) -> "datasets.Dataset":
    """Returns the split that a `TaggingTask` takes.

    Args:
        sentences: what a file holds.
        label_names: all tags that may occur, in BIO if they mark entities.
        entities: rewrite the tags as BIO.

    Raises:
        UserError: a tag is not among them.
    """
    import datasets

    columns: dict[str, list[list[str]] | list[list[int]] | list[int]] = {"words": sentences.words}
    if sentences.tags is not None:
        numbers = {name: number for number, name in enumerate(label_names)}
        columns["tags"] = [
            _numbered(sentences, row, tags, numbers, entities=entities) for row, tags in enumerate(sentences.tags)
        ]
    if sentences.documents is not None:
        columns["document"] = sentences.documents
    return datasets.Dataset.from_dict(columns)


def _numbered(
    sentences: TaggedSentences, row: int, written: Sequence[str], numbers: Mapping[str, int], *, entities: bool
) -> list[int]:
    wrong = next((place for place, tag in enumerate(written) if entities and not ENTITY_TAG.fullmatch(tag)), None)
    tags = to_bio(written) if entities and wrong is None else written
    if wrong is None:
        wrong = next((place for place, tag in enumerate(tags) if tag not in numbers), None)
    if wrong is not None:
        raise UserError(
            f"{sentences.path}, line {sentences.lines[row] + wrong}: tag {shown(written[wrong])} is not known; it must "
            f"be one of: {listed(numbers)}"
        )
    return [numbers[tag] for tag in tags]


@dataclass(frozen=True, kw_only=True)
class Conll2003Task(TaggingTask):
    """CoNLL-2003; the paper uses a cased vocabulary."""

    def load(self, data_dir: Path | None, splits: Sequence[str]) -> "dict[str, datasets.Dataset]":
        """See `Task.load`. The Hub's dataset does not know documents, the official files do."""
        if data_dir is None:
            found = from_hub(HUB_DATASET, splits, revision=HUB_REVISION)
            names = {"tokens": "words", "ner_tags": "tags"}
            return {split: dataset.select_columns([*names]).rename_columns(names) for split, dataset in found.items()}
        paths = {split: data_dir / FILES[split] for split in splits}
        found = {split: self._read(split, path) for split, path in paths.items() if path.is_file()}
        if not found:
            raise no_such_file(
                paths, "--data_dir is the folder that holds the official eng.train, eng.testa and eng.testb"
            )
        return found

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
