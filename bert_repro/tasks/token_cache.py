"""Tokenized splits on disk, beside what `datasets` keeps there: the same data in the same form is tokenized once.

`datasets` itself finds again only what it read from its own files; official files and custom data are read into memory.
A split is found by a digest of its rows, of the settings and of the code that turns them into features.
"""

import hashlib
import inspect
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import datasets

FOLDER = "bert_repro"
_ROWS_AT_ONCE = 1000


def cached_as(dataset: "datasets.Dataset", settings: Sequence[Any], code: Sequence[Any]) -> dict[str, str]:
    """Returns arguments of `Dataset.map` that write its result to a file of its own, or read it from there.

    Args:
        dataset: what is mapped.
        settings: all else that decides the result, ready for JSON.
        code: the functions and modules that compute it, so that no later version takes an earlier one's features.

    Returns:
        `cache_file_name` and `new_fingerprint`; nothing where caching is off (`datasets.disable_caching()`).
    """
    import datasets

    if not datasets.is_caching_enabled():
        return {}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for part in code:
        digest.update(_source(part))
    for rows in dataset.iter(batch_size=_ROWS_AT_ONCE):
        digest.update(json.dumps(rows, default=str).encode())
    folder = Path(datasets.config.HF_DATASETS_CACHE) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    name = digest.hexdigest()
    return {"cache_file_name": str(folder / f"{name}.arrow"), "new_fingerprint": name}


@cache
def _source(part: Any) -> bytes:
    return inspect.getsource(part).encode()
