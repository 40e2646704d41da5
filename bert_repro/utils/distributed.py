"""Which of a launch's processes this is, before and after there is a process group."""

import os
from typing import TypeVar

T = TypeVar("T")


def rank() -> int:
    """Returns the number of this process, as its launcher gave it; 0 where there is one process."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Returns how many processes the launcher started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Returns whether this is the process that writes files and speaks."""
    return rank() == 0


def is_local_main_process() -> bool:
    """Returns whether this is the process that does what is done once on each machine."""
    return int(os.environ.get("LOCAL_RANK", "0")) == 0


def broadcast(value: T) -> T:
    """Returns what the main process gives; every process must call this together. Values are pickled among them."""
    from accelerate.utils import broadcast_object_list

    agreed: T = broadcast_object_list([value])[0]
    return agreed
