"""Uploads a prepared corpus to the Hub as a dataset, and fetches it where `--corpus org/name` asks for it."""

import json
import re
from importlib import resources
from pathlib import Path

from bert_repro.configs import CorpusPushConfig, looks_like_a_folder
from bert_repro.corpus.prepared_corpus import MANIFEST, PreparedCorpus, manifest_digest
from bert_repro.errors import UserError
from bert_repro.hub.push import prepare_repository, send, show_contents
from bert_repro.utils.files import CARD
from bert_repro.utils.redaction import redacted

TEMPLATE = "corpus_card.md.jinja"
CORPUS_FILES = ("*.arrow", "*.npy", "dataset_info.json", "state.json", MANIFEST, "tokenizer/*", CARD)
"""What of a dataset's repository is ours, as patterns of paths."""
_HUB_ID = re.compile(r"[\w-]+/[\w.-]+")


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
        reason = " ".join(str(error).split()[:40])
        raise UserError(
            f"--corpus {name}: no such folder, and no dataset of the Hub within reach ({reason}); run "
            "prepare_corpus first, or name a dataset that push_corpus made"
        ) from error


def push_corpus(config: CorpusPushConfig) -> str | None:
    """Uploads a prepared corpus, checked first, with a card; or lists what would be uploaded.

    Returns:
        Address of the commit; None of a dry run.

    Raises:
        UserError: it is no undamaged prepared corpus, or see `bert_repro.hub.push.send`.
    """
    import jinja2
    from huggingface_hub import DatasetCardData

    folder, repo_id = Path(config.corpus), config.hub_dataset_id
    manifest = redacted(PreparedCorpus.load(folder).manifest)
    sources = manifest["settings"]["sources"]
    manifest["settings"]["sources"] = [
        [name.rpartition("/")[2] if looks_like_a_folder(name) else name, *rest] for name, *rest in sources
    ]
    manifest["manifest_sha256"] = manifest_digest(manifest)
    metadata = DatasetCardData(
        license=config.license,
        language=config.language,
        task_categories=["fill-mask"],
        tags=["bert", "bert-repro", "pre-training", "tokenized"],
        pretty_name=repo_id.rpartition("/")[2],
        configs=[{"config_name": "default", "data_files": "*.arrow"}],
    )
    template = resources.files("bert_repro.hub").joinpath(TEMPLATE).read_text("utf-8")
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    card = environment.from_string(template).render(metadata=metadata.to_yaml(), config=config, manifest=manifest)
    contents: dict[str, bytes | Path] = {name: folder / name for name in sorted(manifest["files"])}
    contents |= {MANIFEST: (json.dumps(manifest, indent=2) + "\n").encode(), CARD: card.encode()}
    if config.dry_run:
        show_contents(contents, f"the dataset {repo_id}")
        return None
    prepare_repository(repo_id, private=config.hub_private_repo, repo_type="dataset")
    return send(repo_id, contents, folder, CORPUS_FILES, repo_type="dataset")
