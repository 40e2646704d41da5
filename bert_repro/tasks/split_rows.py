"""Rows of the published splits of the tasks' data; a score over fewer is not the split's."""

from collections.abc import Mapping

_GLUE_ROWS: Mapping[str, tuple[int, int, int]] = {
    "cola": (8_551, 1_043, 1_063),
    "sst2": (67_349, 872, 1_821),
    "mrpc": (3_668, 408, 1_725),
    "stsb": (5_749, 1_500, 1_379),
    "qqp": (363_846, 40_430, 390_965),  # as on the Hub: rows of the TSV files that lack a question or label are gone
    "qnli": (104_743, 5_463, 5_463),
    "rte": (2_490, 277, 3_000),
    "wnli": (635, 71, 146),
}

SPLIT_ROWS: Mapping[tuple[str, str], int] = {
    **{
        (task, split): rows
        for task, counts in _GLUE_ROWS.items()
        for split, rows in zip(("train", "validation", "test"), counts, strict=True)
    },
    ("mnli", "train"): 392_702,
    ("mnli", "validation_matched"): 9_815,
    ("mnli", "validation_mismatched"): 9_832,
    ("mnli", "test_matched"): 9_796,
    ("mnli", "test_mismatched"): 9_847,
    ("ax", "test"): 1_104,
    ("squad", "train"): 87_599,
    ("squad", "validation"): 10_570,
    ("squad_v2", "train"): 130_319,
    ("squad_v2", "validation"): 11_873,
    ("swag", "train"): 73_546,
    ("swag", "validation"): 20_006,
    ("swag", "test"): 20_005,
    ("conll2003", "train"): 14_041,
    ("conll2003", "validation"): 3_250,
    ("conll2003", "test"): 3_453,
}
"""Rows (SQuAD: questions, CoNLL-2003: sentences) of the published splits. SQuAD's test sets were never published."""
