"""The task of the quickstart cannot be solved by the names of packages."""

import runpy
from pathlib import Path
from types import SimpleNamespace


def test_texts_of_the_task_do_not_name_their_package():
    text = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "recipes" / "quickstart_text.py")))
    long = "Draw {} with the given colours on a plot that is kept for all later calls and is shown at the end of it."
    modules = [(label, "file.py", [long.format(f"{label}.function")] * 9) for label in text.LABELS]
    rows, used = text.choose_texts(modules, 5)
    assert len(rows) == 5 * len(text.LABELS) and used == set(range(len(text.LABELS)))
    assert not any(label in row["text"] for row in rows for label in text.LABELS)
