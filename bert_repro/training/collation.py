"""From tokenized sequences to the tensors of a forward pass, padded or packed; shared by pre-training and all tasks.

Shape legend: `B` sequences, `S` columns of a padded batch, `T` tokens of all sequences together.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bert_repro.utils.ragged import Int64Array, pad, places_in_row, row_starts

IGNORE_INDEX = -100

IntArray = npt.NDArray[np.integer]
Batch = dict[str, Any]


def collate_features(
    features: Sequence[Mapping[str, Any]],
    *,
    pad_token_id: int,
    packing: bool,
    pad_to_multiple_of: int | None = None,
) -> Batch:
    """Puts tokenised texts of different lengths into one batch of model inputs.

    Other fields of the features are left to the caller.

    Args:
        features: one mapping per sequence with `input_ids` and, in every one or none, `token_type_ids`.
        pad_token_id: fills the places after a sequence's end.
        packing: lay the sequences end to end instead of padding them to the longest.
        pad_to_multiple_of: round S up to a multiple of this; for padded batches only.

    Returns:
        Padded: `input_ids`, `token_type_ids`, `attention_mask`, int64 (B, S).
        Packed: `input_ids`, `token_type_ids`, `position_ids`, int64 (1, T); `cu_seq_lens_q` and `cu_seq_lens_k`, int32
        (B + 1); `max_length_q` and `max_length_k`, plain integers.
        `token_type_ids` only if the features have them.

    Raises:
        ValueError: no features, or `pad_to_multiple_of` together with `packing`.
    """
    if not features:
        raise ValueError("features is empty; a batch needs at least one sequence")
    if packing and pad_to_multiple_of is not None:
        raise ValueError(f"pad_to_multiple_of is {pad_to_multiple_of}; a packed batch has no padding, leave it out")
    fields = {name: flatten_field(features, name) for name in ("input_ids", "token_type_ids") if name in features[0]}
    lengths = np.array([len(feature["input_ids"]) for feature in features], dtype=np.int64)
    if packing:
        return packed_batch(fields, lengths, int(lengths.max()))
    width = round_up(int(lengths.max()), pad_to_multiple_of or 1)
    return padded_batch(fields, lengths, width, {"input_ids": pad_token_id, "token_type_ids": 0})


def padded_batch(fields: Mapping[str, IntArray], lengths: Int64Array, width: int, fill: Mapping[str, int]) -> Batch:
    """Lays flat fields out as (B, `width`) with an `attention_mask`; `fill` names each field's padding value."""
    batch: Batch = {name: int64_tensor(pad(flat, lengths, width, fill[name])) for name, flat in fields.items()}
    batch["attention_mask"] = torch.from_numpy((np.arange(width) < lengths[:, None]).astype(np.int64))
    return batch


def packed_batch(fields: Mapping[str, IntArray], lengths: Int64Array, longest: int) -> Batch:
    """Lays flat fields out as (1, T) with positions and the offsets that attention needs."""
    batch: Batch = {name: int64_tensor(flat[None]) for name, flat in fields.items()}
    batch["position_ids"] = torch.from_numpy(places_in_row(lengths)[None])
    starts = torch.from_numpy(row_starts(lengths).astype(np.int32))
    batch.update(cu_seq_lens_q=starts, cu_seq_lens_k=starts, max_length_q=longest, max_length_k=longest)
    return batch


def flatten_field(features: Sequence[Mapping[str, Any]], name: str) -> Int64Array:
    """Joins one field of all sequences, int64 [T]."""
    return np.concatenate([np.asarray(feature[name], dtype=np.int64) for feature in features])


def int64_tensor(array: npt.NDArray[np.generic]) -> torch.Tensor:
    """Returns the array as an int64 tensor."""
    return torch.from_numpy(array.astype(np.int64, copy=False))


def round_up(number: int, multiple: int) -> int:
    """Rounds up to a multiple."""
    return -(-number // multiple) * multiple
