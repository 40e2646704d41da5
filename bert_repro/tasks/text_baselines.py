"""Predicts labels of texts without a network: the most frequent label, and a linear model of the words in a text.

A fine-tuned model that does not score higher has learned nothing from the texts that their words alone do not say.
"""

import logging
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from bert_repro.tasks.thresholds import best_f1_threshold
from bert_repro.utils.randomness import Stream, drawn_rows

if TYPE_CHECKING:
    import datasets
    from scipy.sparse import csr_matrix

    Weights: TypeAlias = csr_matrix

Numbers: TypeAlias = npt.NDArray[np.int64] | npt.NDArray[np.float64]

logger = logging.getLogger("bert_repro")

MOST_FREQUENT = "most frequent label"
BAG_OF_WORDS = "bag of words"
BASELINE_ROWS = 20_000
"""The baselines learn from at most this many rows, which takes seconds."""

# Scripts that are written without spaces, where a run of letters is a sentence: Thai, Lao, Burmese and Khmer, kana, and
# the Chinese characters, which BERT's tokenizer also splits. There, each letter counts as a word. Elsewhere a word has
# two or more letters, as by default in scikit-learn.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORDS = rf"(?u)[{_UNSPACED}]|(?:(?![{_UNSPACED}])\w){{2,}}"
_CHARACTERS = r"\S"
"""A character that is no white space, for texts without words."""


def baseline_predictions(
    train: "datasets.Dataset", dataset: "datasets.Dataset", text_columns: Sequence[str], *, predicts_numbers: bool
) -> dict[str, Numbers]:
    """Returns the predictions of each baseline for a split.

    For one label per row, the bag of words is a logistic regression of TF-IDF weights of words and pairs of words. For
    several labels it is one logistic regression per label, with the threshold of its best F1, as for the model. For
    numbers it is a ridge regression; there the most frequent label is left out, because a constant has no correlation.

    Args:
        train: rows to learn from, with `text_columns` and `label`.
        dataset: rows to predict. Their labels choose the thresholds if there are several labels per row.
        text_columns: one or two columns of text.
        predicts_numbers: whether labels are numbers.

    Returns:
        Name of the baseline -> label ids or numbers, (N,), or zeros and ones, (N, labels). Empty if the training rows
        have no words or only one label.
    """
    if len(train) > BASELINE_ROWS:
        train = train.select(drawn_rows(Stream.BASELINE_ROWS, len(train), BASELINE_ROWS))
    labels = np.asarray(train["label"][:])
    if len(np.unique(labels, axis=0)) < 2:
        logger.info("No baselines, because all training rows have the same label.")
        return {}
    try:
        words, new_words = _bags_of_words(train, dataset, text_columns, _WORDS, with_overlap=predicts_numbers)
    except ValueError:
        # Texts of emoji or punctuation have no words, but the model reads these characters.
        try:
            words, new_words = _bags_of_words(train, dataset, text_columns, _CHARACTERS, with_overlap=predicts_numbers)
        except ValueError:
            logger.info("No baselines, because the training texts are empty.")
            return {}

    if predicts_numbers:
        return {BAG_OF_WORDS: _ridge_regression(words, labels, new_words)}
    if labels.ndim > 1:
        return {BAG_OF_WORDS: _label_by_label(words, labels, new_words, np.asarray(dataset["label"][:]))}
    different, counts = np.unique(labels, return_counts=True)
    most_frequent = np.full(len(dataset), different[counts.argmax()])
    return {MOST_FREQUENT: most_frequent, BAG_OF_WORDS: _logistic_regression(words, labels, new_words)}


def _bags_of_words(
    train: "datasets.Dataset",
    dataset: "datasets.Dataset",
    text_columns: Sequence[str],
    pattern: str,
    *,
    with_overlap: bool,
) -> tuple["Weights", "Weights"]:
    """Returns TF-IDF weights of the texts of both splits, sparse arrays (rows, words).

    The words and their weights are those of the training texts. Each text of a pair has its own words.

    Args:
        train: the training rows.
        dataset: the rows to predict.
        text_columns: one or two columns of text.
        pattern: regular expression of a word.
        with_overlap: for pairs, add one more weight: the cosine similarity of the two texts.

    Raises:
        ValueError: the training texts contain no words.
    """
    from scipy.sparse import csr_matrix, hstack
    from sklearn.feature_extraction.text import TfidfVectorizer

    bags: list[list[Weights]] = [[], []]
    for name in text_columns:
        vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=pattern)
        vectorizer.fit(train[name][:])
        for bag, split in zip(bags, (train, dataset), strict=True):
            bag.append(vectorizer.transform(split[name][:]))

    if with_overlap and len(text_columns) == 2:
        vectorizer = TfidfVectorizer(sublinear_tf=True, token_pattern=pattern)
        vectorizer.fit(chain(*(train[name][:] for name in text_columns)))
        for bag, split in zip(bags, (train, dataset), strict=True):
            first, second = (vectorizer.transform(split[name][:]) for name in text_columns)
            bag.append(csr_matrix(first.multiply(second).sum(axis=1)))
    return hstack(bags[0]), hstack(bags[1])


def _ridge_regression(words: "Weights", labels: Numbers, new_words: "Weights") -> Numbers:
    from sklearn.linear_model import Ridge

    numbers: Numbers = Ridge(alpha=10.0).fit(words, labels).predict(new_words)
    return numbers


def _logistic_regression(words: "Weights", labels: Numbers, new_words: "Weights") -> Numbers:
    from sklearn.linear_model import LogisticRegression

    predicted: Numbers = LogisticRegression(max_iter=300, C=10.0).fit(words, labels).predict(new_words)
    return predicted


def _label_by_label(words: "Weights", labels: Numbers, new_words: "Weights", true_labels: Numbers) -> Numbers:
    """Returns zeros and ones, (N, labels), of one logistic regression per label."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    classifier = OneVsRestClassifier(LogisticRegression(max_iter=300, C=10.0)).fit(words, labels)
    probabilities = classifier.predict_proba(new_words)
    thresholds = list(map(best_f1_threshold, probabilities.T, true_labels.T))
    predicted: Numbers = (probabilities >= np.array(thresholds)).astype(np.int64)
    return predicted
