"""Uploads a finished folder to the Hub."""

import logging
from pathlib import Path

from bert_repro.errors import UserError

logger = logging.getLogger("bert_repro")

_STAYS_LOCAL = ["checkpoints/**", "plans/**", "status.json", ".*"]


def push_folder(folder: Path, repo_id: str, *, private: bool = False) -> str:
    """Creates the repository where needed and uploads the published folder, without checkpoints.

    Args:
        folder: a run's output folder.
        repo_id: for example `org/bert-repro-base`.
        private: make a new repository private.

    Returns:
        Address of the commit.

    Raises:
        UserError: not logged in, no right to write there, or no connection. Credentials come only from the Hub's own
            login or environment.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    api = HfApi()
    try:
        api.create_repo(repo_id, private=private, exist_ok=True)
        commit = api.upload_folder(repo_id=repo_id, folder_path=folder, ignore_patterns=_STAYS_LOCAL)
    except LocalTokenNotFoundError as error:
        raise UserError(f"--hub_model_id {repo_id}: not logged in to the Hub; run `hf auth login` first") from error
    except (HfHubHTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"--hub_model_id {repo_id}: the upload failed ({reason}); {folder} is complete") from error
    logger.info("uploaded to %s", commit.commit_url)
    return str(commit.commit_url)
