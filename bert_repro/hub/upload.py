"""Uploads files to a repository of the Hub as one commit, and turns the Hub library's errors into one line.

huggingface_hub sends only what has not arrived yet, and makes no commit if nothing changed. Credentials come from its
own login or environment only.
"""

import logging
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from bert_repro.errors import UserError, flag
from bert_repro.utils.redaction import redacted

logger = logging.getLogger("bert_repro")

_NOT_LOGGED_IN = 401  # HTTP status


def prepare_repository(repo_id: str, *, private: bool | None = None, repo_type: str = "model") -> None:
    """Makes sure that a folder can be pushed: the repository exists and this login may write to it.

    Args:
        repo_id: its id.
        private: whether a new repository is private; None: public, unless its organization decides otherwise.
        repo_type: `model` or `dataset`.

    Raises:
        UserError: this login cannot do that, or the repository is public and should be private.
    """
    with hub_errors(repo_id, repo_type=repo_type):
        from huggingface_hub import HfApi

        api = HfApi()
        api.create_repo(repo_id, repo_type=repo_type, private=private, exist_ok=True)
        if private and not api.repo_info(repo_id, repo_type=repo_type).private:
            raise UserError(
                f"{repo_id} is public. Make it private in its settings, or leave out {flag('hub_private_repo')}.",
                setting="hub_private_repo",
            )


def send(
    repo_id: str,
    contents: Mapping[str, bytes | Path],
    folder: Path,
    patterns: Collection[str],
    *,
    repo_type: str = "model",
    revision: str = "main",
) -> str:
    """Uploads files as one commit; if the repository has all of them already, there is no commit.

    Args:
        repo_id: the repository.
        contents: path in the repository -> content, or file.
        folder: where the files come from, for messages.
        patterns: paths in the repository that belong to us. Files there that match and are not sent are deleted.
        repo_type: `model` or `dataset`.
        revision: the branch; one other than main is created if it does not exist.

    Returns:
        Address of the commit that contains the files.

    Raises:
        UserError: no right or no room to write there, or a broken connection.
    """
    state = f"{folder} is complete, and the same push again sends only what has not arrived"
    with hub_errors(repo_id, state, repo_type):
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

        api = HfApi()
        if revision != "main":
            api.create_branch(repo_id, branch=revision, repo_type=repo_type, exist_ok=True)
        present = api.list_repo_files(repo_id, repo_type=repo_type, revision=revision)
        stale = [name for name in present if name not in contents and _belongs_to_us(name, patterns)]
        additions = [CommitOperationAdd(name, content) for name, content in contents.items()]
        deletions = [CommitOperationDelete(name) for name in stale]
        commit = api.create_commit(
            repo_id,
            [*additions, *deletions],
            commit_message=f"Upload {folder.resolve().name}",
            repo_type=repo_type,
            revision=revision,
        )
    logger.info("%s: uploaded, %s", repo_id, commit.commit_url)
    return str(commit.commit_url)


def _belongs_to_us(name: str, patterns: Collection[str]) -> bool:
    """Returns whether a path matches a pattern of the same depth; `*` alone would match slashes too."""
    return any(fnmatch(name, pattern) and name.count("/") == pattern.count("/") for pattern in patterns)


def show_contents(contents: Mapping[str, bytes | Path], place: str) -> None:
    """Prints the files that a push would send, with their sizes in bytes."""
    total = 0
    for name, content in sorted(contents.items()):
        size = content.stat().st_size if isinstance(content, Path) else len(content)
        total += size
        sys.stdout.write(f"{size:>15,}  {name}\n")
    sys.stdout.write(f"{total:>15,}  bytes in {len(contents)} files to {place}\n")


@contextmanager
def hub_errors(repo_id: str, state: str = "nothing was uploaded", repo_type: str = "model") -> Iterator[None]:
    """Turns an error of the Hub's library into one line: what happened, what helps, and in which state things are."""
    from huggingface_hub.errors import HTTPError

    try:
        yield
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        # The library raises all of these for a refusal.
        if isinstance(error, UserError):
            raise
        reason, remedy = _reason_and_remedy(error)
        setting = f"hub_{repo_type}_id"
        raise UserError(f"{flag(setting, repo_id)}: {reason}{remedy}; {state}.", setting=setting) from error


def _reason_and_remedy(error: BaseException) -> tuple[str, str]:
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError, HTTPError

    reason, remedy = str(error), ""
    if isinstance(error, HfHubHTTPError):
        reason = error.server_message or reason
        if error.response.status_code == _NOT_LOGGED_IN:
            remedy = "; log in with `hf auth login`, or set HF_TOKEN"
    elif isinstance(error, HTTPError):
        # There was no answer at all.
        remedy = f"; check that {constants.ENDPOINT} can be reached"
    elif error.__cause__ is not None:
        reason += f": {getattr(error.__cause__, 'server_message', None) or error.__cause__}"
    return " ".join(str(redacted(reason)).split()), remedy
