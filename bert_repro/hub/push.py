"""Uploads published folders and prepared corpora to the Hub, each as one commit or not at all.

Only files that belong to a published model leave the machine (`PUBLISHED`): no optimizer state of checkpoints, and no
predictions, which can repeat data that may not be passed on. Files of an earlier push that are no longer there are
removed from the repository by the same commit; what others put there stays. huggingface_hub sends again only what did
not arrive, and makes no commit where nothing changed. Credentials come from its own login or environment only.
"""

import json
import logging
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from importlib import resources
from pathlib import Path

from bert_repro.configs import CorpusPushConfig, PushConfig, looks_like_a_folder, require
from bert_repro.corpus.prepared_corpus import MANIFEST, PreparedCorpus, manifest_digest
from bert_repro.errors import UserError
from bert_repro.hub.card import renamed
from bert_repro.models.loading import CONFIG, check_folder
from bert_repro.utils.files import (
    CARD,
    CONVERSION,
    POOLING,
    POOLING_MODULES,
    POOLING_TEXT,
    RESULTS,
    SCORES_PLOT,
    STATUS,
    TRAIN_LOG,
    TRAINING_PLOT,
)
from bert_repro.utils.readers import first_line, read_json_object, read_utf8, redacted, without_machine_paths

logger = logging.getLogger("bert_repro")

PUBLISHED = (
    CONFIG, "generation_config.json", "model*.safetensors", "model.safetensors.index.json",
    "adapter_config.json", "adapter_model.safetensors", "adapter/*.json", "adapter/*.safetensors",
    "onnx/model.onnx", "onnx/model_fp16.onnx", "onnx/model_quantized.onnx",
    "tokenizer*.json", "special_tokens_map.json", "vocab.txt", "*_bert_repro.py",
    POOLING_MODULES, POOLING_TEXT, f"{POOLING}/config.json",
    CARD, RESULTS, TRAIN_LOG, TRAINING_PLOT, SCORES_PLOT, CONVERSION,
)  # fmt: skip
"""What of a folder is uploaded, as patterns of paths in it."""
CORPUS_FILES = ("*.arrow", "*.npy", "dataset_info.json", "state.json", MANIFEST, "tokenizer/*", CARD)
"""What of a dataset's repository is ours, as patterns of paths."""
_HUB_ID = re.compile(r"[\w-]+/[\w.-]+")
_WITH_PATHS = (RESULTS, "adapter_config.json", "adapter/adapter_config.json")
_NOT_LOGGED_IN = 401


def push_to_hub(config: PushConfig) -> str | None:
    """Uploads a folder; or lists what would be uploaded.

    Returns:
        Address of the commit; None of a dry run.

    Raises:
        UserError: see `push_folder`.
    """
    from huggingface_hub.utils import validate_repo_id

    folder = Path(config.folder).resolve()  # a checkpoint is known by its name, which "." hides
    with _hub_errors(config.hub_model_id):
        validate_repo_id(config.hub_model_id)
    if config.dry_run:
        contents = _contents(folder, config.hub_model_id)
        show_contents(contents, config.hub_model_id)
        left = sorted({path.name for path in folder.iterdir()} - {name.split("/")[0] for name in contents})
        sys.stdout.write(f"stays in {folder}: {', '.join(left)}\n" if left else "")
        return None
    return push_folder(folder, config.hub_model_id, private=config.hub_private_repo)


def published_files(folder: Path) -> list[Path]:
    """Returns the files of a folder that a push uploads, relative to it, sorted.

    Raises:
        UserError: there is no model in the folder that loads, or the run in it has not ended.
    """
    status = read_json_object(folder / STATUS) if (folder / STATUS).exists() else {}
    if status.get("code", 0) != 0 and not (folder / RESULTS).exists():
        raise UserError(
            f"{folder}: its run has not ended ({status.get('reason')}) and published no model; continue it with "
            "--resume_from_checkpoint latest, or push one of its checkpoints"
        )
    found = sorted({path.relative_to(folder) for pattern in PUBLISHED for path in folder.glob(pattern)})
    if links := [path for path in found if (folder / path).resolve() != folder.resolve() / path]:
        raise UserError(f"{folder / links[0]}: is a link, which a push does not follow; put the file there")
    has_weights = any(path.match("model*.safetensors") for path in found)
    fault = f"{folder} holds no published model (no model.safetensors); name the folder of a finished run or checkpoint"
    require(has_weights or any(path.name == "adapter_model.safetensors" for path in found), fault)
    if has_weights:
        check_folder(folder)
    return found


def push_folder(folder: Path, repo_id: str, *, private: bool | None = None) -> str:
    """Creates the repository where needed and uploads a run's output folder to its main branch, as one commit.

    Args:
        folder: the folder.
        repo_id: for example `org/bert-repro-base`; in the card it takes the place of the model's name.
        private: see `prepare_repository`.

    Returns:
        Address of the commit that holds the folder.

    Raises:
        UserError: not logged in, no right or no room to write there, or a broken connection.
    """
    contents = _contents(folder, repo_id)
    prepare_repository(repo_id, private=private)
    return send(repo_id, contents, folder, PUBLISHED)


def prepare_repository(repo_id: str, *, private: bool | None = None, repo_type: str = "model") -> None:
    """Makes sure that a folder can be pushed: the repository exists and this login may write there.

    Args:
        repo_id: its id.
        private: of a new repository; None: public, unless its organization decides otherwise.
        repo_type: `model` or `dataset`.

    Raises:
        UserError: this login cannot do that, or the repository is public and should be private.
    """
    with _hub_errors(repo_id, repo_type=repo_type):
        from huggingface_hub import HfApi

        api = HfApi()
        api.create_repo(repo_id, repo_type=repo_type, private=private, exist_ok=True)
        if private and not api.repo_info(repo_id, repo_type=repo_type).private:
            raise UserError(f"{repo_id} is public; make it private in its settings, or leave out --hub_private_repo")


def send(
    repo_id: str,
    contents: Mapping[str, bytes | Path],
    folder: Path,
    patterns: Collection[str],
    *,
    repo_type: str = "model",
) -> str:
    """Uploads files as one commit; without a commit where all of them are there already.

    Args:
        repo_id: where to.
        contents: path in the repository -> content, or file.
        folder: where they come from, for messages.
        patterns: what of the repository is ours, as patterns of paths; such files that are not sent are removed.
        repo_type: `model` or `dataset`.

    Returns:
        Address of the commit that holds the files.

    Raises:
        UserError: no right or no room to write there, or a broken connection.
    """
    state = f"{folder} is complete; the same push again sends only what has not arrived"
    with _hub_errors(repo_id, state, repo_type):
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

        api = HfApi()
        stale = [
            name
            for name in api.list_repo_files(repo_id, repo_type=repo_type)
            if name not in contents
            and any(fnmatch(name, pattern) and name.count("/") == pattern.count("/") for pattern in patterns)
        ]
        commit = api.create_commit(
            repo_id,
            [*(CommitOperationAdd(*item) for item in contents.items()), *map(CommitOperationDelete, stale)],
            commit_message=f"Upload {folder.resolve().name}",
            repo_type=repo_type,
        )
    logger.info("%s: uploaded, %s", repo_id, commit.commit_url)
    return str(commit.commit_url)


def show_contents(contents: Mapping[str, bytes | Path], place: str) -> None:
    """Writes the files that a push would send, with their sizes."""
    sizes = {
        name: content.stat().st_size if isinstance(content, Path) else len(content)
        for name, content in sorted(contents.items())
    }
    lines = [f"{size:>15,}  {name}" for name, size in sizes.items()]
    sys.stdout.write("\n".join([*lines, f"{sum(sizes.values()):>15,}  bytes in {len(sizes)} files to {place}\n"]))


def corpus_folder(name: str | Path) -> Path:
    """Returns the folder of a prepared corpus; one of the Hub, named `org/name`, is fetched into its cache first.

    Raises:
        UserError: there is neither.
    """
    if Path(name).exists() or not _HUB_ID.fullmatch(str(name)) or looks_like_a_folder(str(name)):
        return Path(name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HTTPError

    try:
        return Path(snapshot_download(str(name), repo_type="dataset"))
    except (HTTPError, OSError, RuntimeError, ValueError) as error:  # the library raises all of them
        raise UserError(
            f"--corpus {name}: no such folder, and no dataset of the Hub within reach ({first_line(error)}); run "
            "prepare_corpus first, or name a dataset that push_corpus made"
        ) from error


def push_corpus(config: CorpusPushConfig) -> str | None:
    """Uploads a prepared corpus, checked first, with a card; or lists what would be uploaded.

    Returns:
        Address of the commit; None of a dry run.

    Raises:
        UserError: it is no undamaged prepared corpus, or see `send`.
    """
    import jinja2
    from huggingface_hub import DatasetCardData

    folder, repo_id = Path(config.corpus), config.hub_dataset_id
    manifest = without_machine_paths(redacted(PreparedCorpus.load(folder).manifest))
    manifest["manifest_sha256"] = manifest_digest(manifest)
    metadata = DatasetCardData(
        license=config.license,
        language=config.language,
        task_categories=["fill-mask"],
        tags=["bert", "bert-repro", "pre-training", "tokenized"],
        pretty_name=repo_id.rpartition("/")[2],
        configs=[{"config_name": "default", "data_files": "*.arrow"}],
    )
    template = resources.files("bert_repro.hub").joinpath("corpus_card.md.jinja").read_text("utf-8")
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    card = environment.from_string(template).render(metadata=metadata.to_yaml(), config=config, manifest=manifest)
    contents: dict[str, bytes | Path] = {name: folder / name for name in sorted(manifest["sha256"])}
    contents |= {MANIFEST: (json.dumps(manifest, indent=2) + "\n").encode(), CARD: card.encode()}
    if config.dry_run:
        show_contents(contents, f"the dataset {repo_id}")
        return None
    prepare_repository(repo_id, private=config.hub_private_repo, repo_type="dataset")
    return send(repo_id, contents, folder, CORPUS_FILES, repo_type="dataset")


def _contents(folder: Path, repo_id: str) -> dict[str, bytes | Path]:
    """Returns what is sent of a folder: its files, but for those that name this machine or the folder.

    config.json's `auto_map` names the repository, so that a model that was fine-tuned from it elsewhere and saved
    without the code still finds it.
    """
    contents: dict[str, bytes | Path] = {path.as_posix(): folder / path for path in published_files(folder)}
    if CARD in contents:
        contents[CARD] = renamed(read_utf8(folder / CARD), repo_id).encode()
    for name in {CONFIG, *_WITH_PATHS} & contents.keys():
        record = without_machine_paths(redacted(read_json_object(folder / name)))
        if name == CONFIG and "auto_map" in record:
            places = record["auto_map"].items()
            record["auto_map"] = {auto: f"{repo_id}--{place.split('--')[-1]}" for auto, place in places}
        contents[name] = (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode()
    return contents


@contextmanager
def _hub_errors(repo_id: str, state: str = "nothing was uploaded", repo_type: str = "model") -> Iterator[None]:
    """Turns what the Hub's library raises into one line: what happened, and what state that leaves."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError, HTTPError

    try:
        yield
    except (HTTPError, OSError, RuntimeError, ValueError) as error:  # the library raises all of them for a refusal
        if isinstance(error, UserError):
            raise
        reason, fix = str(error), ""
        if isinstance(error, HfHubHTTPError):
            reason = error.server_message or reason
            if error.response.status_code == _NOT_LOGGED_IN:
                fix = "; log in with `hf auth login`, or set HF_TOKEN"
        elif isinstance(error, HTTPError):  # nobody answered
            fix = f"; is {constants.ENDPOINT} within reach?"
        elif error.__cause__ is not None:
            reason += f": {getattr(error.__cause__, 'server_message', None) or error.__cause__}"
        reason = " ".join(str(redacted(reason)).split())
        raise UserError(f"--hub_{repo_type}_id {repo_id}: {reason}{fix}; {state}") from error
