"""Tokenised splits on disk, beside what `datasets` keeps there: the same data in the same form is tokenised once.

`datasets` finds again only what it read from its own files; official files and one's own are read into memory.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import datasets

FOLDER = "bert_repro"


def cached_as(dataset: "datasets.Dataset", settings: Sequence[Any]) -> dict[str, str]:
    """Arguments of `Dataset.map` that write its result to a file of its own, or read it from there.

    Args:
        dataset: what is mapped; its content is part of the file's name, as this package's code is.
        settings: all else that decides the result; ready for `datasets`' hashing.

    Returns:
        `cache_file_name` and `new_fingerprint`; nothing where caching is off (`datasets.disable_caching()`).
    """
    import datasets
    from datasets.fingerprint import Hasher

    if not datasets.is_caching_enabled():
        return {}
    digest: str = Hasher.hash([dataset._fingerprint, _code(), *settings])
    folder = Path(datasets.config.HF_DATASETS_CACHE) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    return {"cache_file_name": str(folder / f"{digest}.arrow"), "new_fingerprint": digest}


@lru_cache(maxsize=1)
def _code() -> str:
    """A digest of the code that tokenises, so that no later version takes an earlier one's features."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
