"""The reader and writer of TensorFlow's checkpoint format, against a checkpoint that TensorFlow wrote."""

import random
from pathlib import Path

import numpy as np
import pytest

from bert_repro.conversion.crc32c import checksum_bytes, crc32c, masked
from bert_repro.conversion.tensor_bundle import TensorBundle, write_bundle
from bert_repro.errors import UserError

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "tensorflow"
INDEX, DATA = "bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"


def opened(folder: Path) -> dict[str, np.ndarray]:
    bundle = TensorBundle(folder / "bert_model.ckpt")
    return {name: bundle.read(name) for name in bundle.entries}


def copy(folder: Path, index: bytes | None = None, data: bytes | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / INDEX).write_bytes((GOLDEN / INDEX).read_bytes() if index is None else index)
    (folder / DATA).write_bytes((GOLDEN / DATA).read_bytes() if data is None else data)
    return folder


def test_the_checksum_is_that_of_the_standard():
    # The values of RFC 3720, B.4, and of LevelDB's own test of the mask.
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert masked(crc32c(b"foo")) != crc32c(b"foo")


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 100_003])
def test_the_checksum_of_parts_is_that_of_all(size):
    data = random.Random(size).randbytes(size)
    bytewise = 0xFFFFFFFF
    for byte in data:
        bytewise ^= byte
        for _ in range(8):
            bytewise = (bytewise >> 1) ^ (0x82F63B78 if bytewise & 1 else 0)
    assert crc32c(data) == bytewise ^ 0xFFFFFFFF
    assert crc32c(data[size // 3 :], crc32c(data[: size // 3])) == crc32c(data)


def test_a_checkpoint_of_tensorflow_is_read_and_written_to_the_byte(tmp_path):
    tensors = opened(GOLDEN)
    assert len(tensors) == 91 and tensors["global_step"] == 2
    assert tensors["bert/embeddings/word_embeddings"].shape == (102, 8)
    slots = [name for name in tensors if name.endswith(("adam_m", "adam_v"))]
    assert len(slots) == 60 and all(tensors[name].dtype == np.float32 for name in slots)
    write_bundle(tmp_path / "bert_model.ckpt", tensors)
    assert (tmp_path / DATA).read_bytes() == (GOLDEN / DATA).read_bytes()


def test_what_is_written_is_read(tmp_path):
    generator = np.random.default_rng(0)
    tensors = {
        f"layer_{n}/some/long/name/kernel": generator.standard_normal((n % 5, 3)).astype("f4") for n in range(300)
    }
    tensors |= {"step": np.int64(-7), "empty": np.zeros((0, 4), "f4"), "numbers": np.arange(9, dtype="i4")}
    tensors |= {"wide": np.asfortranarray(generator.standard_normal((4, 5)))}
    write_bundle(tmp_path / "x.ckpt", tensors)
    bundle = TensorBundle(tmp_path / "x.ckpt")
    assert list(bundle.entries) == sorted(tensors)
    for name, values in tensors.items():
        read = bundle.read(name)
        assert read.dtype == values.dtype and read.shape == np.shape(values) and np.array_equal(read, values)
    assert (tmp_path / "x.ckpt.index").stat().st_size > 8192, "the table must have several blocks"


@pytest.mark.parametrize("mutations", [150, pytest.param(5000, marks=pytest.mark.slow)])
def test_every_damage_of_an_index_is_noticed(tmp_path, mutations):
    right, tensors, draw = (GOLDEN / INDEX).read_bytes(), opened(GOLDEN), random.Random(0)
    for number in range(mutations):
        damaged = bytearray(right)
        if number % 3:
            for _ in range(number % 3):
                damaged[draw.randrange(len(right))] ^= 1 << draw.randrange(8)
        else:
            damaged = damaged[: draw.randrange(len(right))]
        try:
            read = opened(copy(tmp_path, index=bytes(damaged)))
        except UserError as error:
            assert "\n" not in str(error) and len(str(error)) < 500
        else:  # the footer's padding and the block of metadata hold nothing
            assert read.keys() == tensors.keys() and all(np.array_equal(read[name], tensors[name]) for name in read)


@pytest.mark.parametrize("mutations", [150, pytest.param(5000, marks=pytest.mark.slow)])
def test_an_index_whose_checksums_were_made_to_fit_is_noticed(tmp_path, mutations):
    """What somebody writes on purpose: entries with other bytes, under right checksums of their blocks."""
    right, draw = (GOLDEN / INDEX).read_bytes(), random.Random(1)
    places = range(2000, len(right))
    end = next(at for at in places if right[at : at + 5] == b"\0" + checksum_bytes(right[: at + 1]))  # of the entries
    for _ in range(mutations):
        block = bytearray(right[:end])
        for _ in range(draw.randrange(1, 4)):
            block[draw.randrange(len(block))] = draw.randrange(256)
        trailer = b"\0" + checksum_bytes(bytes(block) + b"\0")
        try:
            read = opened(copy(tmp_path, index=bytes(block) + trailer + right[end + 5 :]))
        except UserError as error:
            assert "\n" not in str(error) and len(str(error)) < 500
        else:
            assert all(values.size < 10_000 for values in read.values())


def test_every_damage_of_the_data_is_noticed(tmp_path):
    right, draw = (GOLDEN / DATA).read_bytes(), random.Random(0)
    for number in range(30):
        damaged = bytearray(right)
        damaged[draw.randrange(len(right))] ^= 1 << draw.randrange(8)
        damaged = damaged[: draw.randrange(len(right))] if number % 3 == 0 else damaged
        with pytest.raises(
            UserError, match=r"its checksum is wrong|ends beyond the end of the file|are larger than the"
        ):
            opened(copy(tmp_path, data=bytes(damaged)))


def test_missing_files_are_named(tmp_path):
    with pytest.raises(UserError, match=r"bert_model\.ckpt\.index: cannot be read"):
        opened(tmp_path)
    (copy(tmp_path) / DATA).unlink()
    with pytest.raises(UserError, match=r"data-00000-of-00001: no such file, and bert_model\.ckpt\.index needs it"):
        opened(tmp_path)
