"""recipes/push_to_hub.py: uploads a folder, or shows what would be uploaded."""

import sys
from pathlib import Path

from bert_repro.configs import PushConfig
from bert_repro.errors import UserError
from bert_repro.hub.push import check_card, check_repo_id, contents_for_others, published_files, push_folder
from bert_repro.hub.revisions import checkpoint_card, checkpoints_of, record_of_checkpoint, revision_of, step_of


def push_to_hub(config: PushConfig) -> list[str]:
    """Uploads a folder and, where asked, its run's checkpoints; or lists what would be uploaded.

    Returns:
        Addresses of the commits.

    Raises:
        UserError: see `bert_repro.hub.push.push_folder`; a dry run finds all of it that is not up to the Hub.
    """
    folder = Path(config.folder).resolve()  # a checkpoint is known by its name, which "." hides
    if not folder.is_dir():
        raise UserError(f"--folder {folder}: no such folder; name the output folder of a finished run")
    check_repo_id(config.hub_model_id)
    folders = [*(checkpoints_of(folder) if config.checkpoints else []), folder]
    commits = []
    for path in folders:
        revision = revision_of(path) if path != folder or config.hub_revision is None else config.hub_revision
        card = None
        if step_of(path) is not None:
            card = checkpoint_card(path, record_of_checkpoint(path), config.hub_model_id)
        if config.dry_run:
            _show(path, config.hub_model_id, revision, card)
        else:
            commits.append(
                push_folder(path, config.hub_model_id, private=config.hub_private_repo, revision=revision, card=card)
            )
    return commits


def _show(folder: Path, repo_id: str, revision: str, card: str | None) -> None:
    """Writes the files that a push would send, with their sizes, and the rest, which stays."""
    files = published_files(folder)
    check_card(folder, card)
    sizes = {path.as_posix(): (folder / path).stat().st_size for path in files}
    sizes |= {name: len(content) for name, content in contents_for_others(folder, repo_id, card).items()}
    lines = [f"{size:>15,}  {name}" for name, size in sorted(sizes.items())]
    left = sorted(path.name for path in folder.iterdir() if path.name not in {name.split("/")[0] for name in sizes})
    lines += [f"{sum(sizes.values()):>15,}  bytes in {len(sizes)} files to {repo_id} ({revision})"]
    lines += [f"stays in {folder}: {', '.join(left)}"] if left else []
    sys.stdout.write("\n".join(lines) + "\n")
