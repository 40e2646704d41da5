"""Uploads published folders to the Hub: as one commit or not at all, only what changed, checked afterwards.

Only files that belong to a published model leave the machine (`PUBLISHED`): no optimizer state of checkpoints, and no
predictions, which can repeat data that may not be passed on. Files of an earlier push that are no longer there are
removed from the repository by the same commit; what others put beside them stays.

An upload that broke off continues when it is pushed again: the Hub keeps the large files that arrived complete, and
knows the pieces of the others. Credentials come from the Hub's own login or environment only.
"""

import hashlib
import json
import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from bert_repro.utils.readers import read_json_object, read_utf8
from bert_repro.utils.redaction import redacted, without_machine_paths

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, HfApi

logger = logging.getLogger("bert_repro")

MAIN = "main"
PUBLISHED = (
    "config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json",
    "adapter_config.json", "adapter_model.safetensors", "adapter/*.json", "adapter/*.safetensors",
    "onnx/model.onnx", "onnx/model_fp16.onnx", "onnx/model_quantized.onnx", "onnx/report.json",
    "tokenizer*.json", "special_tokens_map.json", "vocab.txt", "*_bert_repro.py",
    POOLING_MODULES, POOLING_TEXT, f"{POOLING}/config.json",
    CARD, RESULTS, ".eval_results/*.yaml", TRAIN_LOG, TRAINING_PLOT, SCORES_PLOT, CONVERSION,
)  # fmt: skip
"""What of a folder is uploaded, as patterns of paths in it."""
_WEIGHTS = ("model*.safetensors", "adapter_model.safetensors")
_WITH_PATHS = (RESULTS, "adapter_config.json", "adapter/adapter_config.json")
_NOT_LOGGED_IN = 401


@dataclass(frozen=True)
class Repository:
    """A repository, ready to take a commit.

    Args:
        repo_id: its id.
        revision: the branch.
        sha: newest commit of the branch.
        repo_type: `model` or `dataset`.
        flag: the setting that named it, for messages.
    """

    repo_id: str
    revision: str
    sha: str | None
    repo_type: str = "model"
    flag: str = "--hub_model_id"


def published_files(folder: Path) -> list[Path]:
    """Returns the files of a folder that a push uploads, relative to it, sorted.

    Raises:
        UserError: there is no model in the folder that loads, the run in it has not ended, or a file is a link.
    """
    state = _state(folder)
    if state.get("code") != 0 and "code" in state and not (folder / RESULTS).exists():
        raise UserError(
            f"{folder}: its run has not ended ({state.get('reason')}) and published no model; continue it with "
            "--resume_from_checkpoint latest, or push one of its checkpoints"
        )
    found = sorted({path.relative_to(folder) for pattern in PUBLISHED for path in folder.glob(pattern)})
    for path in found:
        if (folder / path).resolve() != folder.resolve() / path or not (folder / path).is_file():
            raise UserError(f"{folder / path}: is a link or no file, which a push does not follow; put the file there")
    if not any(fnmatch(path.as_posix(), pattern) for path in found for pattern in _WEIGHTS):
        raise UserError(
            f"{folder} holds no published model (no model.safetensors); name the output folder of a finished run, or "
            "one of its checkpoints"
        )
    if any(fnmatch(path.as_posix(), _WEIGHTS[0]) for path in found):
        check_folder(folder)
    return found


def push_folder(
    folder: Path, repo_id: str, *, private: bool | None = None, revision: str = MAIN, card: str | None = None
) -> str:
    """Creates the repository and the branch where needed and uploads a published folder as one commit.

    Pushed again, an unchanged folder makes no commit.

    Args:
        folder: a run's output folder, or a checkpoint.
        repo_id: for example `org/bert-repro-base`.
        private: see `prepare_repository`.
        revision: branch to upload to.
        card: text of README.md; default: the folder's own, in which the repository's id takes its model's name.

    Returns:
        Address of the commit that holds the folder.

    Raises:
        UserError: not logged in, no right or no room to write there, a broken connection, or a file that arrived
            otherwise than it was sent.
    """
    files = published_files(folder)
    check_card(folder, card)
    repository = prepare_repository(repo_id, private=private, revision=revision)
    made = contents_for_others(folder, repo_id, card)
    names = sorted({*map(Path.as_posix, files), *made})
    contents = {name: made.get(name, folder / name) for name in names}
    return send(repository, contents, folder, PUBLISHED)


def send(repository: Repository, contents: Mapping[str, bytes | Path], folder: Path, patterns: Collection[str]) -> str:
    """Uploads files as one commit, checked afterwards; without a commit where all of them are there already.

    Args:
        repository: where to.
        contents: path in the repository -> content, or file.
        folder: where they come from, for messages.
        patterns: what of the repository is ours, as patterns of paths; such files that are not sent are removed.

    Returns:
        Address of the commit that holds the files.

    Raises:
        UserError: no right or no room to write there, a broken connection, or a file that arrived otherwise than sent.
    """
    repo_id = repository.repo_id
    state = f"{folder} is complete; the same push again sends only what has not arrived"
    with _hub_errors(repo_id, state, repository.flag):
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

        api = HfApi()
        additions = [CommitOperationAdd(name, content) for name, content in contents.items()]
        stale = [name for name in _remote_files(api, repository) if _matches(name, patterns) and name not in contents]
        commit = api.create_commit(
            repo_id,
            [*additions, *map(CommitOperationDelete, stale)],
            commit_message=f"Upload {folder.resolve().name}",
            repo_type=repository.repo_type,
            revision=repository.revision,
            parent_commit=repository.sha,
        )
        _compare(api, repository, additions)
    outcome = "holds this folder already" if commit.oid == repository.sha else "uploaded"
    logger.info("%s (%s): %s, %s", repo_id, repository.revision, outcome, commit.commit_url)
    return str(commit.commit_url)


def prepare_repository(
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str = MAIN,
    repo_type: str = "model",
    flag: str = "--hub_model_id",
) -> Repository:
    """Makes sure that a folder can be pushed: the repository and its branch exist and this login may write there.

    Args:
        repo_id: its id.
        private: of a new repository; None: public, unless its organization decides otherwise.
        revision: the branch.
        repo_type: `model` or `dataset`.
        flag: the setting that named it, for messages.

    Raises:
        UserError: this login cannot do that, or the repository is public and should be private.
    """
    check_repo_id(repo_id, flag)
    with _hub_errors(repo_id, "nothing was uploaded", flag):
        from huggingface_hub import HfApi

        api = HfApi()
        api.create_repo(repo_id, repo_type=repo_type, private=private, exist_ok=True)
        if private and not api.repo_info(repo_id, repo_type=repo_type).private:
            raise UserError(
                f"{flag} {repo_id} is public; make it private in its settings first, or leave out --hub_private_repo"
            )
        if revision != MAIN:
            api.create_branch(repo_id, branch=revision, repo_type=repo_type, exist_ok=True)
        sha = api.repo_info(repo_id, revision=revision, repo_type=repo_type).sha
        return Repository(repo_id, revision, sha, repo_type, flag)


def check_repo_id(repo_id: str, flag: str = "--hub_model_id") -> None:
    """Checks that a name can be that of a repository, without asking the Hub.

    Args:
        repo_id: the name.
        flag: the setting that named it, for messages.

    Raises:
        UserError: it cannot.
    """
    with _hub_errors(repo_id, "nothing was uploaded", flag):
        from huggingface_hub.utils import validate_repo_id

        validate_repo_id(repo_id)


def check_card(folder: Path, card: str | None = None) -> None:
    """Checks the metadata of a card, if there is one, without asking the Hub.

    Args:
        folder: published folder.
        card: text of the card; default: its README.md.

    Raises:
        UserError: a field is not as the Hub wants it.
    """
    from bert_repro.hub.metadata import find_card_errors

    path = folder / CARD
    if card is None and path.exists():
        card = read_utf8(path)
    errors = find_card_errors(card) if card else []
    if errors:
        raise UserError(f"{path}: {errors[0]}; fix the metadata block at its top")


def contents_for_others(folder: Path, repo_id: str, card: str | None = None) -> dict[str, bytes]:
    """Returns the files that are not sent as they are in the folder: the card, config.json, and results with paths.

    The folder keeps this machine's paths, for whoever repeats the run here; elsewhere they mean nothing.

    Args:
        folder: published folder.
        repo_id: where it goes.
        card: text of the card; default: its README.md, if it has one.
    """
    if card is None and (folder / CARD).exists():
        card = renamed(read_utf8(folder / CARD), repo_id)
    made = {CARD: card.encode()} if card else {}
    if (folder / CONFIG).exists():
        made[CONFIG] = _config_for_others(folder / CONFIG, repo_id)
    for name in _WITH_PATHS:
        if (folder / name).exists():
            record = without_machine_paths(redacted(read_json_object(folder / name)))
            made[name] = (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode()
    return made


def _config_for_others(path: Path, repo_id: str) -> bytes:
    """Returns config.json whose `auto_map` names the repository, so that a model fine-tuned from it elsewhere, which is
    saved without the code, still finds it."""
    config = read_json_object(path)
    if isinstance(auto_map := config.get("auto_map"), dict):
        config["auto_map"] = {name: f"{repo_id}--{str(place).split('--')[-1]}" for name, place in auto_map.items()}
    return (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()


def _state(folder: Path) -> dict[str, Any]:
    """Returns what the run in a folder says of its end; nothing where there is none."""
    try:
        return read_json_object(folder / STATUS)
    except UserError:
        return {}


def _matches(name: str, patterns: Collection[str]) -> bool:
    return any(fnmatch(name, pattern) and name.count("/") == pattern.count("/") for pattern in patterns)


def _remote_files(api: "HfApi", repository: Repository) -> dict[str, Any]:
    from huggingface_hub.hf_api import RepoFile

    place = {"revision": repository.revision, "repo_type": repository.repo_type}
    tree = api.list_repo_tree(repository.repo_id, recursive=True, **place)
    return {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}


def _compare(api: "HfApi", repository: Repository, additions: "list[CommitOperationAdd]") -> None:
    """Refuses a repository whose files are not those that were sent."""
    remote = _remote_files(api, repository)
    for addition in additions:
        entry = remote.get(addition.path_in_repo)
        if entry is None:
            raise UserError(f"{repository.repo_id}: {addition.path_in_repo} is missing after the upload; push again")
        if entry.lfs:
            equal = entry.lfs.sha256 == addition.upload_info.sha256.hex()
        else:
            with addition.as_file() as file:
                equal = entry.blob_id == _git_blob(file.read())
        if not equal:
            raise UserError(
                f"{repository.repo_id}: the checksum of {addition.path_in_repo} is not that of the file that was sent; "
                "push again"
            )


def _git_blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@contextmanager
def _hub_errors(repo_id: str, state: str, flag: str) -> Iterator[None]:
    """Turns what the Hub's library raises into one line: what happened, and what state that leaves."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError, HTTPError

    try:
        yield
    except UserError:
        raise
    except (HTTPError, OSError, RuntimeError, ValueError) as error:  # the library raises all of them for a refusal
        fix = ""
        if isinstance(error, HfHubHTTPError):
            if error.response.status_code == _NOT_LOGGED_IN:
                fix = "; log in with `hf auth login`, or set HF_TOKEN"
        elif isinstance(error, HTTPError):  # nobody answered
            fix = f"; is {constants.ENDPOINT} within reach?"
        raise UserError(f"{flag} {repo_id}: {hub_reason(error)}{fix}; {state}") from error


def hub_reason(error: BaseException) -> str:
    """Returns on one line what went wrong, in the words of the Hub where it said something."""
    from huggingface_hub.errors import HfHubHTTPError

    reasons = []
    cause: BaseException | None = error
    while cause is not None:
        words = cause.server_message if isinstance(cause, HfHubHTTPError) else None
        reasons.append(" ".join(str(words or cause or type(cause).__name__).split()))
        cause = None if isinstance(cause, HfHubHTTPError) else cause.__cause__
    return str(redacted(": ".join(dict.fromkeys(reasons))))
