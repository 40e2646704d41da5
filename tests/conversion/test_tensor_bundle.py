"""The reader of TensorFlow's checkpoint format, against a checkpoint that TensorFlow wrote."""

import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from bert_repro.conversion.tensor_bundle import TensorBundle, masked_crc32c
from bert_repro.errors import UserError

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "tensorflow"
INDEX, DATA = "bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"


def opened(folder: Path) -> dict[str, np.ndarray]:
    bundle = TensorBundle(folder / "bert_model.ckpt")
    return {name: bundle.read(name) for name in bundle.entries}


def test_the_checksum_is_that_of_the_standard():
    # CRC-32C of "123456789" is 0xE3069283 (RFC 3720, B.4), stored turned by 15 bits and moved by a constant.
    assert masked_crc32c(b"123456789") == (0xE3069283 >> 15 | (0xE3069283 << 17) & 0xFFFFFFFF) + 0xA282EAD8 & 0xFFFFFFFF


def test_a_checkpoint_of_tensorflow_is_read():
    tensors = opened(GOLDEN)
    assert len(tensors) == 91 and tensors["global_step"] == 2
    assert tensors["bert/embeddings/word_embeddings"].shape == (102, 8)
    slots = [name for name in tensors if name.endswith(("adam_m", "adam_v"))]
    assert len(slots) == 60 and all(tensors[name].dtype == np.float32 for name in slots)


def damaged(right: bytes, draw: random.Random, number: int) -> bytes:
    """Returns the bytes cut short, or with one or two bits flipped."""
    if number % 3 == 0:
        return right[: draw.randrange(len(right))]
    changed = bytearray(right)
    for _ in range(number % 3):
        changed[draw.randrange(len(right))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def test_every_damage_of_the_data_is_noticed(tmp_path):
    right, draw = (GOLDEN / DATA).read_bytes(), random.Random(0)
    shutil.copy(GOLDEN / INDEX, tmp_path)
    for number in range(20):
        (tmp_path / DATA).write_bytes(damaged(right, draw, number))
        with pytest.raises(UserError, match="is not as it was written"):
            opened(tmp_path)
    (tmp_path / DATA).unlink()
    with pytest.raises(UserError, match=r"data-00000-of-00001: no such file, and bert_model\.ckpt\.index needs it"):
        opened(tmp_path)
