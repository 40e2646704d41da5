"""What the runs of a study learn from, named by its content: other data make other runs."""

import hashlib
import json
from pathlib import Path

from bert_repro.corpus.prepared_corpus import PreparedCorpus
from bert_repro.errors import UserError
from bert_repro.reproduction.size_presets import TASK_RECIPES
from bert_repro.tasks import get_task

DATA_DIRS = {"run_glue": "glue_dir", "run_squad": "squad_dir", "run_swag": "swag_dir", "run_ner": "conll_dir"}
"""Recipe -> the setting of a study that names the folder of its official files."""


def corpus_fingerprint(corpus: str) -> str:
    """Names a prepared corpus by its content: sources, counts and vocabulary.

    Raises:
        UserError: there is no prepared corpus.
    """
    manifest = PreparedCorpus.load(corpus).manifest
    known = [Path(source[0]).name for source in manifest["settings"]["sources"]], manifest["counts"]
    text = json.dumps([*known, manifest["tokenizer_fingerprint"]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def task_fingerprint(name: str, data_dir: str | None) -> str:
    """Names what a task is fine-tuned and scored on: the content of the files read, or the Hub's data set.

    Args:
        name: a key of `TASK_RECIPES`.
        data_dir: the folder of the official files; None: the Hub.

    Raises:
        UserError: the folder holds none of the task's files.
    """
    task = get_task("conll2003" if name == "features" else name)
    if data_dir is None:
        record = task.data_description()
        return f"Hub {record.get('dataset', '')} {record.get('config', task.name)}"
    paths = task.data_files(Path(data_dir))
    digest = hashlib.sha256()
    for path in filter(Path.is_file, paths):
        with path.open("rb") as file:
            digest.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()} ".encode())
    if not any(map(Path.is_file, paths)):
        flag, names = DATA_DIRS[TASK_RECIPES[name]], ", ".join(str(path) for path in paths)
        raise UserError(f"--{flag} {data_dir}: holds none of {names}; name the folder of {task.title}'s official files")
    return digest.hexdigest()[:16]
