"""Tasks that give a tag to every word: named entities, parts of speech (paper 5.3, C.2).

The first token of each word is classified, no conditional random field on top; every word of a split gets one
prediction, however long its sentence is. CoNLL-2003 is the paper's task of this kind: persons, organizations, places
and miscellaneous names in English (Tjong Kim Sang and De Meulder, 2003). Its official files tag in IOB1, which is read
as BIO; `-DOCSTART-` lines open documents. A model reads windows over a document, which tag every word exactly once.
"""

import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from bert_repro.configs import FinetuningConfig, NerConfig, require
from bert_repro.errors import UserError
from bert_repro.tasks.base import (
    Batch,
    Columns,
    ExampleScores,
    Feature,
    Outputs,
    Predictions,
    Splits,
    Task,
    confusions,
    require_first_rows,
    special_ids,
    token_ids,
    write_json_lines,
)
from bert_repro.tasks.data import hold_out, read_tagged_text, require_columns, values
from bert_repro.tasks.metrics import compute
from bert_repro.training.batches import IGNORE_INDEX
from bert_repro.utils.arrays import Int64Array, row_starts
from bert_repro.utils.files import atomic_file
from bert_repro.utils.readers import listed, shown

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger("bert_repro")

TYPES = ("PER", "ORG", "LOC", "MISC")
TAGS = ("O", *(f"{prefix}-{kind}" for kind in TYPES for prefix in "BI"))
"""In the order of the Hub's dataset, whose tags are numbers."""
DOCUMENTS = "conll2003_documents.json"
"""Digest of a split's words -> how many sentences each of its documents has."""
FILES = {"train": "eng.train", "validation": "eng.testa", "test": "eng.testb"}
ENTITY_TAG = re.compile(r"O|[BIES]-.+")
WORD_COLUMNS, TAG_COLUMNS = ("words", "tokens"), ("tags", "ner_tags", "labels")
_NUM_SPECIAL_TOKENS = 2  # [CLS] and [SEP]


# --- Windows over documents -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenizedDocument:
    """A document's sentences laid end to end.

    Args:
        tokens: token ids, without special tokens.
        word_starts: the place of each word's first token, and behind the last word the number of tokens.
        sentence_starts: the number of each sentence's first word, and behind the last the number of words.
    """

    tokens: npt.NDArray[np.int32]
    word_starts: Int64Array
    sentence_starts: Int64Array

    @classmethod
    def of(cls, sentences: Sequence[Sequence[Sequence[int]]], room: int, unknown: int) -> "TokenizedDocument":
        """Lays the token ids of words of sentences end to end.

        Args:
            sentences: for each sentence the token ids of each word.
            room: tokens that a window holds; a longer word keeps its first ones.
            unknown: replaces a word that the tokenizer leaves nothing of.
        """
        words = [list(word[:room]) or [unknown] for sentence in sentences for word in sentence]
        lengths = np.array([len(word) for word in words], dtype=np.int64)
        counts = np.array([len(sentence) for sentence in sentences], dtype=np.int64)
        return cls(
            tokens=np.array([token for word in words for token in word], dtype=np.int32),
            word_starts=row_starts(lengths),
            sentence_starts=row_starts(counts),
        )


def windows(document: TokenizedDocument, context: str, room: int) -> Iterator[tuple[int, int]]:
    """Yields the windows of a document as ranges of words, each word in one window.

    Args:
        document: its tokens.
        context: `sentence`: a window per sentence. `tile`: as many complete sentences as fit.
        room: tokens that a window holds, special tokens apart. A sentence that is longer is cut between words.
    """
    starts, units = document.word_starts, _units(document, room)
    first, last = next(units, (0, 0))
    for begin, end in units:
        if context == "sentence" or starts[end] - starts[first] > room:
            yield first, last
            first = begin
        last = end
    if last:
        yield first, last


def _units(document: TokenizedDocument, room: int) -> Iterator[tuple[int, int]]:
    """Sentences as ranges of words, cut between words where they do not fit."""
    starts = document.word_starts
    for first, end in zip(document.sentence_starts[:-1].tolist(), document.sentence_starts[1:].tolist(), strict=True):
        while first < end:
            # The last word whose end is within `room` of the first token.
            last = min(end, int(np.searchsorted(starts, starts[first] + room, side="right")) - 1)
            yield first, last
            first = last


# --- The task ---------------------------------------------------------------------------------------------------------


def are_entity_tags(tags: Sequence[str]) -> bool:
    """Returns whether tags mark entities: O and B-, I- (and E-, S-) before a type."""
    return any(tag != "O" for tag in tags) and all(ENTITY_TAG.fullmatch(tag) for tag in tags)


def to_bio(tags: Sequence[str]) -> list[str]:
    """Rewrites the entity tags of one sentence so that B- opens every entity.

    Takes IOB1 (CoNLL-2003's own: B- only between touching entities of one type), BIO (left as it is) and IOBES.

    Args:
        tags: O, or B-, I-, E-, S- before a type.
    """
    converted = []
    previous = "O"
    for tag in tags:
        if tag != "O":
            prefix, kind = tag.split("-", 1)
            opens = prefix in "BS" or previous == "O" or previous[2:] != kind or previous[0] in "ES"
            converted.append(f"{'B' if opens else 'I'}-{kind}")
        else:
            converted.append(tag)
        previous = tag
    return converted


@dataclass(frozen=True, kw_only=True)
class TaggingTask(Task):
    """A tag for every word.

    A split has a row per sentence with the columns `words` and, if it is labelled, `tags` (places in `label_names`),
    and, where documents are known, `document` (a number; the sentences of a document follow each other). Without
    `document` every sentence is a document of its own.

    Args:
        context: what a window holds: `tile` or `sentence`; see `windows`.
    """

    head: str = "BertReproForTokenClassification"
    context: str = "tile"
    reference_column: ClassVar[str] = "tags"
    rows_at_once = None  # windows reach over sentences, and documents stay together

    @property
    def columns_of_text(self) -> tuple[str, ...]:
        return ("words",)

    def prepared(self, config: FinetuningConfig, tokenizer: "PreTrainedTokenizerBase") -> "TaggingTask":
        return replace(self, context=getattr(config, "ner_context", self.context))

    def encoding_settings(self) -> dict[str, Any]:
        return {"context": self.context}

    def encode_batch(self, examples: Columns, tokenizer: "PreTrainedTokenizerBase", max_seq_length: int) -> Columns:
        """Turns the sentences of a split into windows, in the order of the words.

        Returns:
            Columns with a row per window: what `Task.encode_batch` says, `places` (of the first token of each word that
            is tagged here) and `labels` (-100 elsewhere). `truncated`: a word alone was longer than a window and lost
            its last tokens, never its tag.
        """
        cls, sep = special_ids(tokenizer)
        room = max_seq_length - _NUM_SPECIAL_TOKENS
        vocabulary = list(dict.fromkeys(chain.from_iterable(examples["words"])))
        ids_of = dict(zip(vocabulary, token_ids(tokenizer, vocabulary), strict=True))
        pieces = [[ids_of[word] for word in words] for words in examples["words"]]
        tags = list(chain.from_iterable(examples.get("tags", [])))
        numbers = examples.get("document", range(len(pieces)))
        columns = ("input_ids", "token_type_ids", "length", "truncated", "places", *(["labels"] if tags else []))
        features: Columns = {name: [] for name in columns}
        words_before = 0
        for _, group in groupby(zip(numbers, pieces, strict=True), key=lambda pair: pair[0]):
            sentences = [sentence for _, sentence in group]
            document = TokenizedDocument.of(sentences, room, int(tokenizer.unk_token_id))
            too_long = np.array([len(word) > room for sentence in sentences for word in sentence])
            for first, last in windows(document, self.context, room):
                words, (start, end) = slice(first, last), document.word_starts[[first, last]]
                places = document.word_starts[words] - start + 1
                ids = np.array([cls, *document.tokens[start:end], sep], dtype=np.int32)
                features["input_ids"].append(ids)
                features["token_type_ids"].append(np.zeros(len(ids), dtype=np.int8))
                features["length"].append(len(ids))
                features["truncated"].append(bool(too_long[words].any()))
                features["places"].append(places)
                if tags:
                    labels = np.full(len(ids), IGNORE_INDEX, dtype=np.int64)
                    labels[places] = tags[words_before + words.start : words_before + words.stop]
                    features["labels"].append(labels)
            words_before += len(document.word_starts) - 1
        return features

    def collate(self, features: Sequence[Feature], **layout: Any) -> Batch:
        """See `Task.collate`; `labels` are (1, T) packed, (B, S) padded, -100 where nothing is predicted."""
        import torch

        unlabelled = [{name: value for name, value in feature.items() if name != "labels"} for feature in features]
        batch = super().collate(unlabelled, **layout)
        if "labels" in features[0]:
            rows = [torch.tensor(feature["labels"]) for feature in features]
            if layout["packing"]:
                batch["labels"] = torch.cat(rows)[None]
            else:
                batch["labels"] = torch.full_like(batch["input_ids"], IGNORE_INDEX)
                for labels, row in zip(batch["labels"], rows, strict=True):
                    labels[: len(row)] = row
        return batch

    def loss_items(self, features: Sequence[Feature]) -> npt.NDArray[np.int64]:
        """Returns the words tagged in each window."""
        return np.array([len(feature["places"]) for feature in features], dtype=np.int64)

    def postprocess(self, dataset: "datasets.Dataset", features: "datasets.Dataset", outputs: Outputs) -> Predictions:
        """Returns the likeliest tag of every word, a list of tags for each sentence, and their `probabilities`."""
        predicted: list[str] = []
        probabilities: list[npt.NDArray[np.float32]] = []
        for places, logits in zip(features["places"], outputs, strict=True):
            scores = logits[places]
            self.require_finite(scores)
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
        if self.primary_metric == "entity_f1":
            return super().score(predictions, dataset)
        return compute(self.metrics, *self._numbers(predictions, dataset))

    def score_details(self, predictions: Predictions, dataset: "datasets.Dataset") -> dict[str, Any]:
        """See `Task.score_details`; of the tags of words, and precision, recall and F1 of every type of entity."""
        details = confusions(*self._numbers(predictions, dataset), self.label_names)
        if self.primary_metric == "entity_f1":
            from seqeval.metrics import classification_report

            expected = self.references(dataset)
            found = classification_report(expected, predictions["prediction"], output_dict=True, zero_division=0)
            kept = {name: row for name, row in found.items() if not name.startswith(("macro", "weighted"))}
            details["entities"] = {name: {key: float(row[key]) for key in row} for name, row in kept.items()}
        return details

    def _numbers(self, predictions: Predictions, dataset: "datasets.Dataset") -> tuple[list[int], list[int]]:
        """Returns predicted and true tags of all words as places in `label_names`."""
        predicted = [self.label_names.index(tag) for tag in chain.from_iterable(predictions["prediction"])]
        return predicted, list(chain.from_iterable(dataset["tags"]))

    def is_degenerate(self, predictions: Predictions, dataset: "datasets.Dataset") -> bool:
        """See `Task.is_degenerate`; whether every word has the same tag, or no entity is right where there are some."""
        tags = list(chain.from_iterable(predictions["prediction"]))
        if len(tags) > 1 and len(set(tags)) == 1:
            return True
        has_entities = any(self.label_names[tag] != "O" for tag in chain.from_iterable(dataset["tags"]))
        return has_entities and self.score(predictions, dataset).get("entity_f1") == 0

    def baselines(self, train: "datasets.Dataset", dataset: "datasets.Dataset") -> dict[str, dict[str, float]]:
        """See `Task.baselines`; the most frequent tag of each word, for a new word that of all words."""
        counts = Counter(zip(chain.from_iterable(train["words"]), chain.from_iterable(train["tags"]), strict=True))
        of_word = {word: tag for (word, tag), _ in reversed(counts.most_common())}
        usual = Counter(chain.from_iterable(train["tags"])).most_common(1)[0][0]
        tags = [[self.label_names[of_word.get(word, usual)] for word in words] for words in dataset["words"]]
        return {"most frequent tag of a word": self.score({"prediction": tags}, dataset)}

    def example_scores(self, split: str, dataset: "datasets.Dataset", run_folder: Path) -> ExampleScores:
        """See `Task.example_scores`; the entities of every sentence."""
        from seqeval.metrics.sequence_labeling import get_entities

        path = run_folder / f"predictions.{split}.txt"
        found = read_tagged_text(path)
        words = dataset["words"][: len(found)]
        require_first_rows(path, list(map(" ".join, found["words"])), list(map(" ".join, words)))
        counts = []
        for predicted, tags in zip(found["tags"], dataset["tags"][: len(words)], strict=True):
            ours = set(get_entities(predicted))
            true = set(get_entities([self.label_names[tag] for tag in tags]))
            counts.append([len(ours & true), len(ours), len(true)])
        return {"entity_f1": counts}

    def write_predictions(
        self, directory: str | Path, split: str, dataset: "datasets.Dataset", predictions: Predictions
    ) -> list[Path]:
        """Writes the predictions of a split.

        `predictions.SPLIT.txt` is as `conlleval` takes it: word, tag if known, predicted tag; an empty line after each
        sentence. `predictions.SPLIT.jsonl` has a sentence on each line, with the probability of each tag.
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
        return [path, records]

    def records(self, dataset: "datasets.Dataset", predictions: Predictions) -> Iterator[dict[str, Any]]:
        """See `Task.records`; a sentence each, with lists of its `words`, tags and their `probability`."""
        labels = self.references(dataset) if self.is_labelled(dataset) else None
        rows = zip(dataset["words"], predictions["prediction"], predictions["probabilities"], strict=True)
        for index, (words, tags, probabilities) in enumerate(rows):
            known = {} if labels is None else {"label": labels[index]}
            yield {"index": index, "words": words, **known, "prediction": tags, "probability": probabilities}

    def from_rows(self, rows: "datasets.Dataset", where: str, *, may_lack_tags: bool) -> "datasets.Dataset":
        """Returns the split that rows with words and tags are; entity tags of any scheme become BIO.

        Raises:
            UserError: a column is missing, a row has another number of tags than words, or a tag is not known.
        """
        import datasets

        words, tags = _column(rows, WORD_COLUMNS, where), None
        if not may_lack_tags or set(TAG_COLUMNS) & set(rows.column_names):
            tags = _column(rows, TAG_COLUMNS, where)
        columns: dict[str, list[Any]] = {"words": words}
        if tags is not None:
            numbers = {name: place for place, name in enumerate(self.label_names)}
            columns["tags"] = []
            for row, (sentence, found) in enumerate(zip(words, tags, strict=True), 1):
                if len(sentence) != len(found):
                    raise UserError(f"{where}, row {row} has {len(sentence)} words and {len(found)} tags")
                entities = self.primary_metric == "entity_f1" and all(map(ENTITY_TAG.fullmatch, found))
                known = to_bio(found) if entities else found
                if wrong := [tag for tag in known if tag not in numbers]:
                    raise UserError(
                        f"{where}, row {row}: tag {shown(wrong[0])} is not known; it must be one of: {listed(numbers)}"
                    )
                columns["tags"].append([numbers[tag] for tag in known])
        if "document" in rows.column_names:
            columns["document"] = rows["document"][:]
        return datasets.Dataset.from_dict(columns)


def _column(rows: "datasets.Dataset", names: Sequence[str], where: str) -> list[list[str]]:
    """Returns the first column of these names as lists of texts."""
    name = next((name for name in names if name in rows.column_names), names[0])
    require_columns(rows, [name], where, "give each row a list of words and a list of tags, or a word and a tag a line")
    found = values(rows, name, where)
    for row, value in enumerate(found, 1):
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise UserError(f"{where}, row {row}: {name} is {shown(value)}; it must be a list of texts")
    return found


def custom_tagging(config: NerConfig, rows: Splits, names: Mapping[str, str]) -> TaggingTask:
    """Makes the task of the user's tagged text.

    Tags that mark entities (B-, I- and a type) are scored by entity F1, others by the share of words that are correct.
    """
    if config.do_train:
        found = _column(rows["train"], TAG_COLUMNS, names["train"])
        tags = tuple(sorted(set(chain.from_iterable(found))))
        words = set(chain.from_iterable(_column(rows["train"], WORD_COLUMNS, names["train"])))
        swapped = f"{names['train']}: has {len(words)} words and {len(tags)} tags; words come first, tags last"
        require(len(tags) <= max(20, len(words)), swapped)
        if are_entity_tags(tags):  # both tags of every type, so that a dev set may hold the one that training lacks
            kinds = sorted({tag[2:] for tag in tags if tag != "O"})
            tags = ("O", *(f"{prefix}-{kind}" for kind in kinds for prefix in "BI"))
    else:
        from bert_repro.models.loading import load_config

        id2label = load_config(config.model_name_or_path).id2label
        tags = tuple(id2label[index] for index in sorted(id2label))
    metric = "entity_f1" if are_entity_tags(tags) else "accuracy"
    if config.do_train:
        logger.info("%d tags, scored by %s: %s", len(tags), metric, ", ".join(tags))
    title = Path(next(iter(names.values()))).stem
    task = TaggingTask(
        name="custom", title=title, metrics=(metric,), primary_metric=metric, label_names=tags, data_names=names
    )
    data = {
        split: task.from_rows(dataset, names[split], may_lack_tags=split == "test") for split, dataset in rows.items()
    }
    return replace(task, data=hold_out(data, config, together=["words"]))


# --- CoNLL-2003 -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Conll2003Task(TaggingTask):
    """CoNLL-2003. The official files mark documents; those of the Hub's rows are known by the number of sentences."""

    hub: tuple[str, str | None, str | None] = ("eriktks/conll2003", None, "refs/convert/parquet")
    official_folder = "the folder that holds the official eng.train, eng.testa and eng.testb"

    def official_file(self, data_dir: Path, split: str) -> Path:
        return data_dir / FILES[split]

    def read_official(self, split: str, path: Path) -> "datasets.Dataset":
        return self.from_rows(read_tagged_text(path), str(path), may_lack_tags=False)

    def from_published(self, dataset: "datasets.Dataset") -> "datasets.Dataset":
        """See `Task.from_published`; with `document` where the words of the split are those of the official file."""
        names = {"tokens": "words", "ner_tags": "tags"}
        split = dataset.select_columns([*names]).rename_columns(names)
        words = "\n".join(map(" ".join, split["words"]))
        known = json.loads(resources.files("bert_repro.tasks").joinpath(DOCUMENTS).read_text("utf-8"))
        sentences = known.get(hashlib.sha256(words.encode()).hexdigest()[:16])
        if sentences is None:
            return split  # `deviations` says so
        lengths = [int(length) for length in sentences.split()]
        return split.add_column("document", np.repeat(np.arange(len(lengths)), lengths).tolist())

    def data_files(self, data_dir: Path) -> list[Path]:
        """See `Task.data_files`; the test set is labelled and scored too."""
        return [data_dir / name for name in FILES.values()]

    def deviations(self, tokenizer: "PreTrainedTokenizerBase", splits: Splits) -> dict[str, str]:
        """Returns `no_documents`, where context was asked for and a split does not tell its documents apart, and
        `uncased`."""
        found = {}
        without = [name for name, dataset in splits.items() if "document" not in dataset.column_names]
        if self.context != "sentence" and without:
            found["no_documents"] = (
                f"{', '.join(without)}: the data does not say where documents begin, so each sentence is read alone, "
                f"not in the context that ner_context={self.context} asks for"
            )
        normalizer = tokenizer.backend_tokenizer.normalizer  # type: ignore[attr-defined]
        if normalizer is not None and normalizer.normalize_str("A") == "a":
            found["uncased"] = (
                "the vocabulary is uncased; the paper uses a cased one for CoNLL-2003, where case tells names apart"
            )
        return found


CONLL2003 = Conll2003Task(
    name="conll2003",
    title="CoNLL-2003",
    label_names=TAGS,
    metrics=("entity_f1",),
    primary_metric="entity_f1",
    split_rows={"train": 14_041, "validation": 3_250, "test": 3_453},
    data_license="Reuters text, for research use only",
)
