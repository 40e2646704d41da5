"""YAML as settings need it: plain values and mappings, no aliases that grow without end, no key given twice."""

from collections.abc import Hashable
from typing import Any

import yaml


class _StrictLoader(yaml.SafeLoader):
    """Refuses aliases and repeated keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            raise ValueError(f"line {event.start_mark.line + 1}: aliases are not accepted; write the value")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            name = key.value
            if isinstance(name, Hashable) and name in seen:
                raise ValueError(f"line {key.start_mark.line + 1}: {str(name)[:60]!r} is given twice; leave one out")
            seen.add(name) if isinstance(name, Hashable) else None
        return super().construct_mapping(node, deep)


def load(text: str) -> Any:
    """Returns what a YAML text holds.

    Raises:
        ValueError: it is not valid YAML, has aliases or a repeated key, or a value that cannot be read.
    """
    try:
        return yaml.load(text, _StrictLoader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
