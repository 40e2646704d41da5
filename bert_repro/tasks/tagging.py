"""Token classification: predicts one tag for each word, for example named entities or parts of speech (paper 5.3, C.2).

The first token of each word is classified, without a conditional random field. Every word of a split gets one
prediction, however long its sentence is. CoNLL-2003 is the paper's task of this kind: persons, organizations, places
and other names in English (Tjong Kim Sang and De Meulder, 2003). The other task here is the user's own tagged text.

A split is read (`tagged_text`), its tags become BIO (`tag_schemes`), and its documents are cut into windows
(`tagging_windows`). A window is one feature: it contains words of several sentences, and a tag for each.
"""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from bert_repro.configs import FinetuningConfig, NerConfig
from bert_repro.errors import UserError
from bert_repro.tasks.base import (
    Batch,
    Columns,
    ExampleScores,
    Feature,
    JsonObject,
    Outputs,
    Predictions,
    Splits,
    Task,
)
from bert_repro.tasks.columns import require_columns, values
from bert_repro.tasks.encoding import special_ids, token_ids
from bert_repro.tasks.held_out import hold_out
from bert_repro.tasks.prediction_files import confusions, require_first_rows, write_json_lines
from bert_repro.tasks.tag_schemes import (
    PREFIX_AND_HYPHEN,
    describe_scheme,
    find_notation,
    is_bioes,
    to_bio,
    why_perhaps_entities,
)
from bert_repro.tasks.tagged_text import (
    TAG_COLUMNS,
    WORD_COLUMNS,
    read_tagged_text,
    read_written_text,
    write_tagged_text,
    written_field,
)
from bert_repro.tasks.tagging_windows import TokenizedDocument, Window, windows
from bert_repro.utils.files import atomic_file
from bert_repro.utils.readers import comma_separated, quoted
from bert_repro.utils.tokenizer_losses import is_uncased

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger("bert_repro")

ENTITY_TYPES = ("PER", "ORG", "LOC", "MISC")
DOCUMENTS = "conll2003_documents.json"
"""Digest of a split's words -> the number of sentences in each of its documents."""
FILES = {"train": "eng.train", "validation": "eng.testa", "test": "eng.testb"}
_NUM_SPECIAL_TOKENS = 2  # [CLS] and [SEP]
_MANY_TAGS = 20  # Data with more different tags than this should have even more different words.


def bio_tags(entity_types: Sequence[str]) -> tuple[str, ...]:
    """Returns O, then B- and I- of each type."""
    tags = ["O"]
    for entity_type in entity_types:
        tags += [f"B-{entity_type}", f"I-{entity_type}"]
    return tuple(tags)


TAGS = bio_tags(ENTITY_TYPES)
"""In the order of the Hub's dataset, whose tags are numbers."""


# --- The task ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TaggingTask(Task):
    """A task that predicts a tag for every word.

    A split has a row per sentence with these columns: `words`; `tags` (indices into `label_names`) if it is labelled;
    `document` (a number; the sentences of a document follow each other) if documents are known. Without `document`,
    every sentence is a document of its own.

    Args:
        context: what a window contains: `tile`, `sliding` or `sentence`; see `windows`.
    """

    head: str = "BertReproForTokenClassification"
    context: str = "tile"
    reference_column: ClassVar[str] = "tags"
    # All sentences are encoded at once, because windows contain several of them and documents stay together.
    rows_at_once = None

    @property
    def scores_entities(self) -> bool:
        """Whether entities are scored (entity F1), and not words (accuracy)."""
        return self.primary_metric == "entity_f1"

    @property
    def columns_of_text(self) -> tuple[str, ...]:
        return ("words",)

    def prepared(self, config: FinetuningConfig, tokenizer: "PreTrainedTokenizerBase") -> "TaggingTask":
        """Returns the task with the run's `ner_context`."""
        del tokenizer
        if not isinstance(config, NerConfig):
            return self
        return replace(self, context=config.ner_context)

    # ------------------------------------------------------------------------------------------------------ model input

    def encoding_settings(self) -> JsonObject:
        """Returns `context`, which decides the windows."""
        return {"context": self.context}

    def encode_batch(self, examples: Columns, tokenizer: "PreTrainedTokenizerBase", max_seq_length: int) -> Columns:
        """Cuts the documents of a split into windows, in the order of the words.

        Returns:
            Columns with a row per window: those of `Task.encode_batch`, `places` (position of the first token of each
            word that is tagged here) and `labels` (-100 at all other positions). `truncated` is true if a single word
            was longer than a window. It lost its last tokens but keeps its tag.
        """
        # This module imports torch, which the names of the tasks in --help do not need.
        from bert_repro.training.batches import IGNORE_INDEX

        cls, sep = special_ids(tokenizer)
        room = max_seq_length - _NUM_SPECIAL_TOKENS
        sentences = _word_tokens(examples["words"], tokenizer)
        tags = np.array(list(chain.from_iterable(examples.get("tags", []))), dtype=np.int64)
        is_labelled = len(tags) > 0

        features: Columns = {name: [] for name in ("input_ids", "token_type_ids", "length", "truncated", "places")}
        if is_labelled:
            features["labels"] = []
        words_before = 0  # Words of all earlier documents; `tags` has one row for all of them.
        for document_sentences in _documents(sentences, examples.get("document")):
            document = TokenizedDocument.of(document_sentences, room, int(tokenizer.unk_token_id))
            lengths = np.array([len(word) for word in chain.from_iterable(document_sentences)])
            for window in windows(document, self.context, room):
                tagged_words = slice(window.first_tagged, window.last_tagged)
                ids = np.array([cls, *_window_tokens(document, window), sep], dtype=np.int32)
                # [CLS] comes before the first token of the window.
                places = document.word_starts[tagged_words] - document.word_starts[window.first] + 1
                features["input_ids"].append(ids)
                features["token_type_ids"].append(np.zeros(len(ids), dtype=np.int8))
                features["length"].append(len(ids))
                features["truncated"].append(bool((lengths[tagged_words] > room).any()))
                features["places"].append(places)
                if is_labelled:
                    labels = np.full(len(ids), IGNORE_INDEX, dtype=np.int64)
                    labels[places] = tags[words_before + window.first_tagged : words_before + window.last_tagged]
                    features["labels"].append(labels)
            words_before += len(lengths)
        return features

    def collate(self, features: Sequence[Feature], **layout: Any) -> Batch:
        """Batches windows; see `Task.collate`. `labels` are [1, T] packed or [B, S] padded, -100 if there is no tag."""
        import torch

        from bert_repro.training.batches import IGNORE_INDEX

        # The base class expects one label per feature. Here a feature has one for each position.
        unlabelled_features = []
        for feature in features:
            unlabelled_features.append({name: value for name, value in feature.items() if name != "labels"})
        batch = super().collate(unlabelled_features, **layout)
        if "labels" not in features[0]:
            return batch

        rows = [torch.tensor(feature["labels"]) for feature in features]
        if layout["packing"]:
            batch["labels"] = torch.cat(rows)[None]
            return batch
        batch["labels"] = torch.full_like(batch["input_ids"], IGNORE_INDEX)
        for labels, row in zip(batch["labels"], rows, strict=True):
            labels[: len(row)] = row
        return batch

    def loss_items(self, features: Sequence[Feature]) -> npt.NDArray[np.int64]:
        """Returns the number of words tagged in each window, because the loss is a mean over words."""
        return np.array([len(feature["places"]) for feature in features], dtype=np.int64)

    # ------------------------------------------------------------------------------------------- predictions and scores

    def postprocess(self, dataset: "datasets.Dataset", features: "datasets.Dataset", outputs: Outputs) -> Predictions:
        """Returns the most likely tag of every word, a list for each sentence, and its probability in the same form."""
        tags: list[str] = []
        probabilities: list[npt.NDArray[np.float32]] = []
        for places, logits in zip(features["places"], outputs, strict=True):
            scores = logits[places]
            self.require_finite(scores)
            tags.extend(self.label_names[index] for index in scores.argmax(axis=1))
            # The largest entry of a softmax: its numerator is exp(0) once the maximum is subtracted.
            probabilities.append(1 / np.exp(scores - scores.max(axis=1, keepdims=True)).sum(axis=1))
        all_probabilities = np.concatenate(probabilities).astype(np.float64).round(6).tolist()
        return {
            "prediction": _by_sentence(tags, dataset),
            "probabilities": _by_sentence(all_probabilities, dataset),
        }

    def references(self, dataset: "datasets.Dataset") -> list[list[str]]:
        """Returns the true tags of every sentence of a labelled split."""
        sentences = []
        for tags in dataset["tags"]:
            sentences.append([self.label_names[index] for index in tags])
        return sentences

    def score(self, predictions: Predictions, dataset: "datasets.Dataset") -> dict[str, float]:
        """Computes entity F1 over sentences, or accuracy over words; see `Task.score`."""
        if not self.scores_entities:
            return self.compute_metrics(*self._numbers(predictions, dataset))
        predicted = self._entity_tags(predictions["prediction"])
        return self.compute_metrics(predicted, self._entity_tags(self.references(dataset)))

    def score_details(self, predictions: Predictions, dataset: "datasets.Dataset") -> JsonObject:
        """Returns the confusion matrix of tags, and precision, recall and F1 of each type of entity in `entities`.

        Notes on words that all have the same tag are in `notes` and are also logged.
        """
        details = confusions(*self._numbers(predictions, dataset), self.label_names)
        notes = self.score_notes(dataset)
        for note in notes:
            logger.warning("%s: %s", self.name, note)
        if notes:
            details["notes"] = notes

        # Only entities have types.
        if not self.scores_entities:
            return details

        from seqeval.metrics import classification_report

        report = classification_report(
            self._entity_tags(self.references(dataset)),
            self._entity_tags(predictions["prediction"]),
            output_dict=True,
            zero_division=0,
        )
        entities = {}
        for name, row in report.items():
            # Means over types are left out; the paper and conlleval report the mean over entities (`micro avg`).
            if not name.startswith(("macro", "weighted")):
                entities[name] = {key: float(value) for key, value in row.items()}
        return {**details, "entities": entities}

    def score_notes(self, dataset: "datasets.Dataset") -> list[str]:
        """Returns sentences about scores that say less than they seem to, because all words have the same tag."""
        true_tags = list(chain.from_iterable(dataset["tags"]))
        if len(set(true_tags)) != 1:
            return []
        name = self.label_names[true_tags[0]]
        note = (
            f"All {len(true_tags)} words have the tag {quoted(name)}, so the scores do not show what the model learned."
        )
        if self.scores_entities and name == "O":
            note += " Without an entity entity_f1 is undefined, and reported as 0."
        return [note]

    def is_degenerate(self, predictions: Predictions, dataset: "datasets.Dataset") -> bool:
        """Returns whether every word has the same tag, or no entity is right although there are some.

        If all true tags are equal, a constant answer is right.
        """
        if len(set(chain.from_iterable(dataset["tags"]))) == 1:
            return False
        tags = list(chain.from_iterable(predictions["prediction"]))
        if len(tags) > 1 and len(set(tags)) == 1:
            return True
        if not self.scores_entities:
            return False
        # A model that has learned nothing can also scatter tags. Then no entity is right, although there are some.
        has_entities = any(self.label_names[index] != "O" for index in chain.from_iterable(dataset["tags"]))
        return has_entities and self.score(predictions, dataset)["entity_f1"] == 0

    def baselines(self, train: "datasets.Dataset", dataset: "datasets.Dataset") -> dict[str, dict[str, float]]:
        """Scores the most frequent tag of each word in the training set. A new word gets the most frequent tag of all.

        See `Task.baselines`.
        """
        train_words = chain.from_iterable(train["words"])
        counts = Counter(zip(train_words, chain.from_iterable(train["tags"]), strict=True))
        # A later entry of a dict replaces an earlier one, so the most frequent tag of a word comes last.
        tag_of_word = {word: tag for (word, tag), _ in reversed(counts.most_common())}
        most_frequent_tag = Counter(chain.from_iterable(train["tags"])).most_common(1)[0][0]

        sentences = []
        for words in dataset["words"]:
            indices = [tag_of_word.get(word, most_frequent_tag) for word in words]
            sentences.append([self.label_names[index] for index in indices])
        baseline = "most frequent tag of a word"
        scores = self.score({"prediction": sentences}, dataset)
        if scores[self.primary_metric] == 0:
            logger.info(
                "The baseline %r has %s 0 because none of its tags counts as right.", baseline, self.primary_metric
            )
        return {baseline: scores}

    def example_scores(self, split: str, dataset: "datasets.Dataset", run_folder: Path) -> ExampleScores:
        """Counts the entities of every sentence: correct, predicted and true ones; see `Task.example_scores`."""
        from seqeval.metrics.sequence_labeling import get_entities

        # The run may have scored fewer sentences than the split has, but only the first ones.
        path = run_folder / f"predictions.{split}.txt"
        sentences = read_written_text(path)
        written = []
        for rows in sentences:
            written.append(" ".join(fields[0] for fields in rows))
        words = []
        for sentence in dataset["words"]:
            words.append(" ".join(map(written_field, sentence)))
        require_first_rows(path, written, words)

        # F1 is made of these counts, so that it can be resampled over sentences.
        references = self.references(dataset.select(range(len(sentences))))
        counts = []
        for rows, true_tags in zip(sentences, references, strict=True):
            predicted_tags = [fields[-1] for fields in rows]
            predicted_entities, true_entities = map(get_entities, self._entity_tags([predicted_tags, true_tags]))
            # An entity is its type, its first and its last word. All three must be right.
            correct_entities = set(predicted_entities) & set(true_entities)
            counts.append([len(correct_entities), len(set(predicted_entities)), len(set(true_entities))])
        return {"entity_f1": counts}

    def _entity_tags(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        """Returns tags in the form that seqeval supports: one of the letters B, I, E and S before a hyphen."""
        notation = find_notation(self.label_names, are_entities=True)
        if notation is None or is_bioes(self.label_names):
            return [list(tags) for tags in sentences]
        return [to_bio(tags, notation) for tags in sentences]

    def _numbers(self, predictions: Predictions, dataset: "datasets.Dataset") -> tuple[list[int], list[int]]:
        """Returns the predicted and the true tags of all words as indices into `label_names`."""
        number_of_tag = {tag: number for number, tag in enumerate(self.label_names)}
        predicted = [number_of_tag[tag] for tag in chain.from_iterable(predictions["prediction"])]
        return predicted, list(chain.from_iterable(dataset["tags"]))

    # -------------------------------------------------------------------------------------------------- files of a run

    def write_predictions(
        self, directory: str | Path, split: str, dataset: "datasets.Dataset", predictions: Predictions
    ) -> list[Path]:
        """Writes the predictions of a split.

        `predictions.SPLIT.txt` is in the form of `conlleval`: word, true tag if the split is labelled, predicted tag;
        see `write_tagged_text`. `predictions.SPLIT.jsonl` contains a sentence on each line, with all probabilities.
        """
        path = Path(directory) / f"predictions.{split}.txt"
        # The last column is the prediction, so that conlleval and our own reader take it as the tag.
        columns = [dataset["words"], predictions["prediction"]]
        if self.is_labelled(dataset):
            columns.insert(1, self.references(dataset))
        with atomic_file(path) as file:
            write_tagged_text(file, zip(*columns, strict=True))
        records = path.with_suffix(".jsonl")
        write_json_lines(records, self.records(dataset, predictions))
        return [path, records]

    def records(self, dataset: "datasets.Dataset", predictions: Predictions) -> Iterator[JsonObject]:
        """Yields a sentence each, with lists of its `words`, their tags and the `probability` of each tag."""
        references = self.references(dataset) if self.is_labelled(dataset) else None
        rows = zip(dataset["words"], predictions["prediction"], predictions["probabilities"], strict=True)
        for index, (words, tags, probabilities) in enumerate(rows):
            record = {"index": index, "words": words}
            if references is not None:
                record["label"] = references[index]
            yield {**record, "prediction": tags, "probability": probabilities}

    # ------------------------------------------------------------------------------------------------------- the data

    def from_rows(self, rows: "datasets.Dataset", where: str, *, may_lack_tags: bool) -> "datasets.Dataset":
        """Turns rows with words and tags into a split of this task. Tags of entities become BIO, whatever their scheme.

        Args:
            rows: a row per sentence, with a column of words and one of tags; see `read_words` and `read_tags`.
            where: name of the data for messages.
            may_lack_tags: whether the tags may be missing, as in a test set.

        Raises:
            UserError: a column is missing, a row has another number of tags than words, or a tag is not known.
        """
        import datasets

        words = read_words(rows, where)
        columns: dict[str, list[Any]] = {"words": words}
        if not may_lack_tags or tag_column(rows) is not None:
            columns["tags"] = self._tag_numbers(words, read_tags(rows, where), where)
        if "document" in rows.column_names:
            columns["document"] = rows["document"][:]
        return datasets.Dataset.from_dict(columns)

    def _tag_numbers(self, words: list[list[str]], tags: list[list[str]], where: str) -> list[list[int]]:
        """Returns tags as indices into `label_names`."""
        number_of_tag = {tag: number for number, tag in enumerate(self.label_names)}
        # A dev set may be written in another scheme than the training set.
        notation = None
        if self.scores_entities:
            notation = find_notation(set(chain.from_iterable(tags)), are_entities=True) or PREFIX_AND_HYPHEN
        numbers = []
        for row, (sentence, sentence_tags) in enumerate(zip(words, tags, strict=True), start=1):
            if len(sentence) != len(sentence_tags):
                raise UserError(f"{where}, row {row} has {len(sentence)} words and {len(sentence_tags)} tags.")
            bio = sentence_tags if notation is None else to_bio(sentence_tags, notation)
            row_numbers = []
            for tag, bio_tag in zip(sentence_tags, bio, strict=True):
                # The labels of a model that was not made here may be in the scheme of the file.
                name = bio_tag if bio_tag in number_of_tag else tag
                if name not in number_of_tag:
                    raise UserError(
                        f"{where}, row {row}: tag {quoted(tag)} is not known. It must be one of: "
                        f"{comma_separated(number_of_tag)}"
                    )
                row_numbers.append(number_of_tag[name])
            numbers.append(row_numbers)
        return numbers


def _word_tokens(sentences: list[list[str]], tokenizer: "PreTrainedTokenizerBase") -> list[list[list[int]]]:
    """Returns the token ids of each word of each sentence. Every different word is tokenized once."""
    vocabulary = list(dict.fromkeys(chain.from_iterable(sentences)))
    ids_of_word = dict(zip(vocabulary, token_ids(tokenizer, vocabulary), strict=True))
    tokens = []
    for words in sentences:
        tokens.append([ids_of_word[word] for word in words])
    return tokens


def _documents(sentences: list[list[list[int]]], numbers: Sequence[int] | None) -> Iterator[list[list[list[int]]]]:
    """Yields the sentences of each document.

    Args:
        sentences: token ids of the words of each sentence.
        numbers: number of each sentence's document; None if every sentence is a document.
    """
    if numbers is None:
        numbers = range(len(sentences))
    for _, group in groupby(zip(numbers, sentences, strict=True), key=lambda pair: pair[0]):
        yield [sentence for _, sentence in group]


def _window_tokens(document: TokenizedDocument, window: Window) -> list[int]:
    start, end = document.word_starts[[window.first, window.last]]
    tokens: list[int] = document.tokens[start:end].tolist()
    return tokens


def _by_sentence(word_values: list[Any], dataset: "datasets.Dataset") -> list[list[Any]]:
    """Divides one value for each word of a split into a list for each sentence."""
    sentences = []
    start = 0
    for words in dataset["words"]:
        sentences.append(word_values[start : start + len(words)])
        start += len(words)
    return sentences


# --- Columns of words and tags ----------------------------------------------------------------------------------------


def read_words(rows: "datasets.Dataset", where: str) -> list[list[str]]:
    """Returns the words of every sentence, from the first column of `WORD_COLUMNS` that exists.

    Raises:
        UserError: there is no such column, or a row contains something else than a list of texts.
    """
    names = [name for name in WORD_COLUMNS if name in rows.column_names]
    return _text_lists(rows, names[0] if names else WORD_COLUMNS[0], where)


def read_tags(rows: "datasets.Dataset", where: str) -> list[list[str]]:
    """Returns the tags of every sentence, from the column that `tag_column` names.

    Raises:
        UserError: there is no such column, or a row contains something else than a list of texts.
    """
    sentences = []
    for tags in _text_lists(rows, tag_column(rows) or TAG_COLUMNS[0], where):
        # "O " and "O" are the same tag.
        sentences.append([tag.strip() for tag in tags])
    return sentences


def tag_column(rows: "datasets.Dataset") -> str | None:
    """Returns the name of the column of tags, or None if the rows have no tags."""
    for name in TAG_COLUMNS:
        if name in rows.column_names:
            return name
    # Our own predictions.SPLIT.jsonl calls true tags `label`. In other data, `label` may be one label for a sentence.
    if "label" in rows.column_names and isinstance(rows[0]["label"], list):
        return "label"
    return None


def _text_lists(rows: "datasets.Dataset", name: str, where: str) -> list[list[str]]:
    require_columns(rows, [name], where, "give each row a list of words and a list of tags, or a word and a tag a line")
    column = values(rows, name, where)
    for row, value in enumerate(column, start=1):
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise UserError(f"{where}, row {row}: {name} is {quoted(value)}. It must be a list of texts.")
    return column


# --- The user's own data ----------------------------------------------------------------------------------------------


def custom_tagging(config: NerConfig, rows: Splits, names: Mapping[str, str]) -> TaggingTask:
    """Makes the task of the user's tagged text.

    Tags that mark entities are scored by entity F1, others by the share of words whose tag is right.

    Args:
        config: the settings. With `do_train` the training set decides the tags, otherwise the model does.
        rows: the splits.
        names: name of each split for messages.
    """
    # Without training, the head of the model predicts the tags that it was trained with, in that order.
    if config.do_train:
        label_names = _training_tags(rows["train"], names["train"])
    else:
        label_names = _model_tags(config.model_name_or_path)
    metric = "entity_f1" if find_notation(label_names) is not None else "accuracy"
    if config.do_train:
        logger.info("%d tags, scored by %s: %s", len(label_names), metric, ", ".join(label_names))

    task = TaggingTask(
        name="custom",
        title=Path(next(iter(names.values()))).stem,
        metrics=(metric,),
        primary_metric=metric,
        label_names=label_names,
        data_names=names,
    )
    # The splits become numbers only now, because all of them use the tags of the training set.
    data = {}
    for split, dataset in rows.items():
        data[split] = task.from_rows(dataset, names[split], may_lack_tags=split == "test")
    return replace(task, data=hold_out(data, config, together=["words"]))


def _training_tags(rows: "datasets.Dataset", where: str) -> tuple[str, ...]:
    """Returns the tags that a model trained on these rows predicts; for entities in BIO."""
    tags = set(chain.from_iterable(read_tags(rows, where)))
    words = set(chain.from_iterable(read_words(rows, where)))
    _require_order(words, tags, where)
    notation = find_notation(tags)
    # The tags of something else, for example parts of speech, are predicted as they are.
    if notation is None:
        reason = why_perhaps_entities(tags)
        if reason is not None:
            logger.warning(
                "%s: %s. The tags are scored by accuracy over words (%s). To have entities scored, write B-TYPE for "
                "the first word of an entity, I-TYPE for the others and O for words outside.",
                where, reason, comma_separated(sorted(tags)),
            )  # fmt: skip
        return tuple(sorted(tags))

    if notation != PREFIX_AND_HYPHEN or not is_bioes(tags):
        logger.info("%s: tags are read as %s, and become BIO", where, describe_scheme(tags, notation))
    entity_types = set()
    for tag in tags:
        parts = notation.split(tag)
        if parts is not None:
            entity_types.add(parts[1])
    if len({entity_type.casefold() for entity_type in entity_types}) < len(entity_types):
        logger.warning(
            "%s: some types of entities differ only in case and are scored as different types: %s",
            where, comma_separated(sorted(entity_types)),
        )  # fmt: skip
    # Both tags of every type, because a dev set may contain the one that is missing here.
    return bio_tags(sorted(entity_types))


def _require_order(words: Collection[str], tags: Collection[str], where: str) -> None:
    """Refuses data whose words and tags seem to be in each other's place."""
    are_swapped = find_notation(words) is not None and find_notation(tags) is None
    if are_swapped or len(tags) > max(_MANY_TAGS, len(words)):
        raise UserError(
            f"{where} has {len(words)} words, for example {quoted(min(words))}, and {len(tags)} tags, for example "
            f"{quoted(min(tags))}. Write words first and tags last."
        )


def _model_tags(model_name_or_path: str) -> tuple[str, ...]:
    """Returns the labels of a fine-tuned model in their order."""
    from bert_repro.models.loading import load_config

    id2label = load_config(model_name_or_path).id2label
    return tuple(id2label[index] for index in sorted(id2label))


# --- CoNLL-2003 -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Conll2003Task(TaggingTask):
    """CoNLL-2003.

    The official files mark the beginning of documents. The Hub's rows do not, so this package contains the number of
    sentences in each document.
    """

    hub: tuple[str, str | None, str | None] = ("eriktks/conll2003", None, "refs/convert/parquet")
    official_folder = "the folder that holds the official eng.train, eng.testa and eng.testb"

    def official_file(self, data_dir: Path, split: str) -> Path:
        """Returns the path of a split's official file."""
        return data_dir / FILES[split]

    def read_official(self, split: str, path: Path) -> "datasets.Dataset":
        """Reads the official file of a split, whose tags are IOB1."""
        del split
        return self.from_rows(read_tagged_text(path), str(path), may_lack_tags=False)

    def from_published(self, dataset: "datasets.Dataset") -> "datasets.Dataset":
        """Brings a split of the Hub's dataset into the columns of the task.

        It gets the column `document` if it has exactly the words of the official file.
        """
        names = {"tokens": "words", "ner_tags": "tags"}
        split = dataset.select_columns([*names]).rename_columns(names)
        # The digest shows that this is the split whose documents are known, word for word.
        text = "\n".join(map(" ".join, split["words"]))
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        documents_of_split = json.loads(resources.files("bert_repro.tasks").joinpath(DOCUMENTS).read_text("utf-8"))
        if digest not in documents_of_split:
            # `deviations` reports that documents are not known.
            return split
        lengths = [int(length) for length in documents_of_split[digest].split()]
        return split.add_column("document", np.repeat(np.arange(len(lengths)), lengths).tolist())

    def data_files(self, data_dir: Path) -> list[Path]:
        """Lists the official files; the test set is labelled and scored too."""
        return [data_dir / name for name in FILES.values()]

    def deviations(self, tokenizer: "PreTrainedTokenizerBase", splits: Splits) -> dict[str, str]:
        """Returns `no_documents` if context is requested but documents are not known, and `uncased`."""
        deviations = {}
        without_documents = [name for name, dataset in splits.items() if "document" not in dataset.column_names]
        if self.context != "sentence" and without_documents:
            deviations["no_documents"] = (
                f"{', '.join(without_documents)}: the data does not say where documents begin, so each sentence is "
                f"read alone, without the context of its document (ner_context={self.context})."
            )
        if is_uncased(tokenizer):
            deviations["uncased"] = (
                "The vocabulary is uncased. The paper uses a cased one for CoNLL-2003, because case helps to recognize "
                "names."
            )
        return deviations


CONLL2003 = Conll2003Task(
    name="conll2003",
    title="CoNLL-2003",
    label_names=TAGS,
    metrics=("entity_f1",),
    primary_metric="entity_f1",
    split_rows={"train": 14_041, "validation": 3_250, "test": 3_453},
    data_license="Reuters text, for research use only",
)
