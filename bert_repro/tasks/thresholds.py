"""Chooses the probability from which on a label is predicted."""

import numpy as np
import numpy.typing as npt

DEFAULT_THRESHOLD = 0.5


def best_f1_threshold(probabilities: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> float:
    """Returns the threshold with the best F1 of one label. Of several equal ones it is the one nearest to 0.5.

    The candidates are 0.5 and the middles between neighboring probabilities. If no row has the label, it is 0.5.

    Args:
        probabilities: the probability of the label for each row, (N,).
        labels: whether each row has the label, zeros and ones, (N,).
    """
    if not labels.any():
        return DEFAULT_THRESHOLD
    different = np.unique(probabilities)
    candidates = np.concatenate([[DEFAULT_THRESHOLD], (different[1:] + different[:-1]) / 2])

    # For each candidate: how many rows are predicted to have the label, and how many of these are correct.
    sorted_probabilities = np.sort(probabilities)
    sorted_positives = np.sort(probabilities[labels == 1])
    num_predicted = len(sorted_probabilities) - np.searchsorted(sorted_probabilities, candidates)
    num_correct = len(sorted_positives) - np.searchsorted(sorted_positives, candidates)
    scores = 2 * num_correct / (num_predicted + len(sorted_positives))

    best = candidates[scores == scores.max()]
    return float(best[np.abs(best - DEFAULT_THRESHOLD).argmin()])
