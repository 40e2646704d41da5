"""Finds the files of a checkpoint to convert: in a folder, by its prefix, or in an archive, unpacked safely.

Of an archive only the files that a conversion reads are unpacked. Links, devices and names that lead out of its folder
are refused, and so is what unpacks to more than a limit, by what the archive says and by what comes out of it.
"""

import bz2
import gzip
import re
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from bert_repro.errors import UserError
from bert_repro.utils.files import disk_errors
from bert_repro.utils.readers import listed, shown

TORCH_WEIGHTS = "pytorch_model.bin"
TORCH_INDEX = "pytorch_model.bin.index.json"
_WANTED = re.compile(
    r".+\.(index|data-\d{5}-of-\d{5})|vocab\.txt|checkpoint|(bert_)?config\.json|tokenizer(_config)?\.json"
    r"|special_tokens_map\.json|pytorch_model(-\d{5}-of-\d{5})?\.bin|pytorch_model\.bin\.index\.json"
)
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2")
_MOST_MEMBERS = 10_000
_LONGEST_NAME = 500
_AT_ONCE = 1 << 20
_LARGEST_HEADER = 1 << 20  # of a tar's member, which tarfile reads in one piece


@dataclass(frozen=True)
class CheckpointFiles:
    """The files of a checkpoint.

    Args:
        folder: where they lie.
        weights: the prefix of a TensorFlow checkpoint, or the file or index of PyTorch's.
        is_torch: which of the two.
        called: names of it, of its folder and archive, which may say "cased" or "uncased".
    """

    folder: Path
    weights: Path
    is_torch: bool
    called: str


@contextmanager
def open_source(named: str, work_dir: Path, max_unpacked_bytes: int) -> Iterator[CheckpointFiles]:
    """Yields the checkpoint that `--checkpoint` names; what is unpacked for it is removed at the end.

    Args:
        named: a folder, an archive, a pytorch_model.bin, or the prefix of a TensorFlow checkpoint or one of its files.
        work_dir: where to unpack; made if need be.
        max_unpacked_bytes: most bytes that the files of an archive may have together.

    Raises:
        UserError: there is no checkpoint or more than one, or the archive is damaged or hostile.
    """
    path = Path(named)
    if not path.is_file() or not path.name.lower().endswith(_ARCHIVES):
        names = [path.resolve().name] if path.is_dir() else [path.name, path.resolve().parent.name]
        yield _find(path, named, " ".join(names))
        return
    with disk_errors(work_dir):
        work_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=work_dir) as folder:
            try:
                _unpack(path, Path(folder), max_unpacked_bytes)
                found = _find_below(Path(folder))
            except UserError as error:
                raise UserError(f"--checkpoint {named}: {error}") from error
            yield _find(found, named, f"{path.name} {found.name}")


# ------------------------------------------------------------------------------------------------------------- finding


def _find(path: Path, named: str, called: str) -> CheckpointFiles:
    try:
        return _in_folder(path, called) if path.is_dir() else _beside(path, called)
    except UserError as error:
        raise UserError(f"--checkpoint {shown(named)[1:-1]}: {error}") from error
    except OSError as error:  # too long a name
        raise UserError(
            f"--checkpoint {shown(named)[1:-1]}: cannot be read ({error.strerror}); name another"
        ) from error


def _beside(path: Path, called: str) -> CheckpointFiles:
    if path.is_file() and path.name in (TORCH_WEIGHTS, TORCH_INDEX):
        return CheckpointFiles(path.parent, path, True, called)
    prefix = path.with_name(re.sub(r"\.(index|meta|data-\d{5}-of-\d{5})$", "", path.name))
    if prefix.with_name(f"{prefix.name}.index").is_file():
        return CheckpointFiles(path.parent, prefix, False, called)
    if path.is_file():
        raise UserError(
            f"is no checkpoint; name its folder, an archive ({', '.join(_ARCHIVES)}), the prefix "
            f"of bert_model.ckpt.index, or a {TORCH_WEIGHTS}"
        )
    raise UserError("no such file or folder; name an original checkpoint")


def _in_folder(folder: Path, called: str) -> CheckpointFiles:
    prefixes = sorted(path.with_suffix("") for path in folder.glob("*.index") if path.is_file())
    torch_files = [folder / name for name in (TORCH_WEIGHTS, TORCH_INDEX) if (folder / name).is_file()]
    if len(prefixes) > 1 and (newest := _newest(folder)) in prefixes:
        prefixes = [newest]
    if len(prefixes) > 1:
        raise UserError(f"holds several checkpoints: {listed(path.name for path in prefixes)}; name one by its prefix")
    if prefixes and torch_files:
        raise UserError(f"holds {prefixes[0].name} and {torch_files[0].name}; name one of them")
    if prefixes:
        return CheckpointFiles(folder, prefixes[0], False, called)
    if torch_files:
        return CheckpointFiles(folder, torch_files[0], True, called)
    raise UserError(f"holds no checkpoint: neither a .index of TensorFlow's nor {TORCH_WEIGHTS}")


def _newest(folder: Path) -> Path | None:
    """Returns what the file `checkpoint` calls the newest; its name is taken, not its path."""
    try:
        text = (folder / "checkpoint").read_text(encoding="utf-8")[:10_000]
    except (OSError, UnicodeDecodeError):
        return None
    found = re.search(r'^model_checkpoint_path:\s*"([^"\n]+)"', text, re.MULTILINE)
    return folder / PurePosixPath(found[1]).name if found else None


def _find_below(folder: Path) -> Path:
    """Returns the only folder of an unpacked archive that holds weights."""
    holders = {path.parent for path in folder.rglob("*") if path.suffix in (".index", ".bin")}
    if len(holders) != 1:
        names = listed(sorted(str(path.relative_to(folder)) for path in holders))
        raise UserError(f"holds several checkpoints, in {names}; unpack it and name one" if holders else
                        "holds no checkpoint of TensorFlow or PyTorch")  # fmt: skip
    return holders.pop()


# ----------------------------------------------------------------------------------------------------------- unpacking


def _unpack(path: Path, folder: Path, limit: int) -> None:
    try:
        if path.name.lower().endswith(".zip"):
            _unpack_zip(path, folder, limit)
        else:
            _unpack_tar(path, folder, limit)
    except OSError as error:
        if error.filename not in (None, str(path)):
            raise  # of the disk that is written
        raise UserError(f"cannot be read ({error.strerror or error}); get it again") from error
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, RuntimeError,
            NotImplementedError, UnicodeDecodeError) as error:  # fmt: skip
        raise UserError(f"is damaged, encrypted or no archive ({error}); get it again") from error


def _unpack_zip(path: Path, folder: Path, limit: int) -> None:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        _check_size(sum(member.file_size for member in members), len(members), limit)
        for member in members:
            mode = member.external_attr >> 16
            if mode and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) and stat.S_IFMT(mode):
                raise _link(member.filename)
            target = _target(folder, member.filename)
            if target is not None and not member.is_dir():
                with archive.open(member) as source:
                    limit -= _copy(source, target, limit)


def _unpack_tar(path: Path, folder: Path, limit: int) -> None:
    size = 0
    left = limit
    opened: Callable[..., IO[bytes]] = {".gz": gzip.open, ".tgz": gzip.open, ".bz2": bz2.open}.get(  # type: ignore[assignment]
        path.suffix.lower(), open
    )
    with opened(path, "rb") as file, tarfile.open(fileobj=_BoundedReads(file), mode="r:") as archive:  # type: ignore[call-overload]
        for count, member in enumerate(archive, start=1):
            if not (member.isreg() or member.isdir()):
                raise _link(member.name)
            size += max(member.size, 0)
            _check_size(size, count, limit)
            target = _target(folder, member.name)
            if target is not None and member.isreg() and (source := archive.extractfile(member)) is not None:
                left -= _copy(source, target, left)


class _BoundedReads:
    """A file of which nobody reads more at once than a member's header may have."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        if size > _LARGEST_HEADER:
            raise UserError(f"holds a header of {size:,} bytes; such archives are refused")
        return self._file.read(size)


def _link(name: str) -> UserError:
    return UserError(f"holds {shown(name)}, which is a link or device; such archives are refused")


def _check_size(size: int, members: int, limit: int) -> None:
    if members > _MOST_MEMBERS:
        raise UserError(f"holds more than {_MOST_MEMBERS:,} files; unpack it and name the folder")
    if size > limit:
        raise UserError(f"unpacks to {size:,} bytes or more; --max_unpacked_bytes allows {limit:,}")


def _target(folder: Path, name: str) -> Path | None:
    """Returns where a member goes; None for one that a conversion does not read."""
    parts = PurePosixPath(name).parts
    leads_out = name.startswith(("/", "~")) or ".." in parts or "\\" in name or ":" in name or "\0" in name
    if leads_out or len(name) > _LONGEST_NAME:
        raise UserError(f"holds the name {shown(name)}, which leads out of its folder; such archives are refused")
    return folder.joinpath(*parts) if parts and _WANTED.fullmatch(parts[-1]) else None


def _copy(source: IO[bytes], target: Path, limit: int) -> int:
    """Copies a member; returns its bytes."""
    if target.exists():
        raise UserError(f"holds {shown(target.name)} twice in one folder; such archives are refused")
    target.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with target.open("xb") as file:
        while data := source.read(_AT_ONCE):
            written += len(data)
            if written > limit:
                raise UserError(f"unpacks to more than it says; --max_unpacked_bytes allows {limit:,} bytes")
            file.write(data)
    return written
