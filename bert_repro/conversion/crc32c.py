"""CRC-32C (Castagnoli), the checksum of TensorFlow's checkpoints, fast enough for gigabytes with numpy alone.

The bytes are laid out as the rows of a table whose checksums are computed side by side, a word of each row at a time.
Two neighbors are then joined: the checksum of `left + right` is that of `left` moved past as many zero bytes as
`right` has, XOR that of `right`. Moving past zeros is linear over bits, so it is a matrix, and its powers are squared.
"""

import struct

import numpy as np
import numpy.typing as npt

UInt32Array = npt.NDArray[np.uint32]

_POLYNOMIAL = 0x82F63B78  # reflected
_ONES = 0xFFFFFFFF
_MASK = 0xA282EAD8
_ROWS = 4096
_BYTES_AT_ONCE = 1 << 24
_SMALL = 1 << 12  # below it a plain loop is quicker


def _byte_table() -> UInt32Array:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> np.uint32(1)) ^ np.uint32(_POLYNOMIAL), table >> np.uint32(1))
    return table


def _half_word_tables() -> tuple[UInt32Array, UInt32Array]:
    """Returns what the low and the high half of a little-endian word add to the checksum after its four bytes."""
    tables = [_byte_table()]
    for _ in range(3):
        last = tables[-1]
        tables.append((last >> np.uint32(8)) ^ tables[0][last & np.uint32(255)])
    low, high = np.arange(1 << 16) & 255, np.arange(1 << 16) >> 8
    return tables[3][low] ^ tables[2][high], tables[1][low] ^ tables[0][high]


_LOW, _HIGH = _half_word_tables()
_BYTE_TABLE: list[int] = _byte_table().tolist()


def crc32c(data: bytes | memoryview, crc: int = 0) -> int:
    """Returns the CRC-32C of some bytes.

    Args:
        data: the bytes.
        crc: that of the bytes before them.
    """
    register = crc ^ _ONES
    view = memoryview(data).cast("B")
    for start in range(0, len(view), _BYTES_AT_ONCE):
        part = view[start : start + _BYTES_AT_ONCE]
        register = _update_small(register, part) if len(part) < _SMALL else _update(register, part)
    return register ^ _ONES


def masked(crc: int) -> int:
    """Returns the form in which TensorFlow stores a checksum, so that a checksum of checksums stays useful."""
    rotated = ((crc >> 15) | (crc << 17)) & _ONES
    return (rotated + _MASK) & _ONES


def _update_small(register: int, data: memoryview) -> int:
    for byte in data:
        register = (register >> 8) ^ _BYTE_TABLE[(register ^ byte) & 255]
    return register


def _update(register: int, data: memoryview) -> int:
    # Zero bytes in front change nothing while the register is zero, so the rows may begin with some.
    width = -(-len(data) // (4 * _ROWS)) * 4
    padded = np.zeros(_ROWS * width, np.uint8)
    padded[len(padded) - len(data) :] = np.frombuffer(data, np.uint8)
    columns = np.ascontiguousarray(padded.view("<u4").reshape(_ROWS, -1).T)
    sums = np.zeros(_ROWS, np.uint32)
    for column in columns:
        sums ^= column
        sums = _LOW[sums & np.uint32(0xFFFF)] ^ _HIGH[sums >> np.uint32(16)]
    matrix = _past_zeros(width)
    while len(sums) > 1:
        sums = _times(matrix, sums[0::2]) ^ sums[1::2]
        matrix = _times(matrix, matrix)
    start = _times(_past_zeros(len(data)), np.array([register], np.uint32))
    return int(start[0] ^ sums[0])


def _past_zeros(count: int) -> UInt32Array:
    """Returns the matrix, a column for each bit, that moves a checksum past `count` zero bytes."""
    power = np.array([(1 << bit) >> 8 ^ _BYTE_TABLE[(1 << bit) & 255] for bit in range(32)], np.uint32)
    result = np.array([1 << bit for bit in range(32)], np.uint32)
    while count:
        if count & 1:
            result = _times(power, result)
        power = _times(power, power)
        count >>= 1
    return result


def _times(matrix: UInt32Array, vectors: UInt32Array) -> UInt32Array:
    result = np.zeros_like(vectors)
    for bit in range(32):
        result ^= np.where((vectors >> np.uint32(bit)) & np.uint32(1), matrix[bit], np.uint32(0)).astype(np.uint32)
    return result


def checksum_bytes(data: bytes) -> bytes:
    """Returns the masked checksum of some bytes as it is stored, little-endian."""
    return struct.pack("<I", masked(crc32c(data)))
