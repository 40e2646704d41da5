"""Prepared corpora as datasets of the Hub: upload with a card, and download by id."""

import json
import re
from importlib import resources
from pathlib import Path

from bert_repro.configs import CorpusPushConfig, looks_like_a_folder
from bert_repro.corpus.prepared_corpus import MANIFEST, PreparedCorpus, manifest_digest
from bert_repro.errors import UserError, flag
from bert_repro.hub.upload import prepare_repository, send, show_contents
from bert_repro.utils.files import CARD
from bert_repro.utils.readers import first_line
from bert_repro.utils.redaction import redacted, without_machine_paths

CORPUS_FILES = ("*.arrow", "*.npy", "dataset_info.json", "state.json", MANIFEST, "tokenizer/*", CARD)
"""Paths in a dataset's repository that belong to us, as patterns."""

_HUB_ID = re.compile(r"[\w-]+/[\w.-]+")


def corpus_folder(name: str | Path) -> Path:
    """Returns the folder of a prepared corpus. One of the Hub, named `org/name`, is first downloaded into its cache.

    Raises:
        UserError: there is neither.
    """
    if Path(name).exists() or not _HUB_ID.fullmatch(str(name)) or looks_like_a_folder(str(name)):
        return Path(name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HTTPError

    try:
        return Path(snapshot_download(str(name), repo_type="dataset"))
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        # The library raises all of these.
        raise UserError(
            f"{flag('corpus', str(name))}: there is no such folder, and the Hub gives no dataset of this name "
            f"({first_line(error)}). Run prepare_corpus first, or name a dataset that push_corpus made.",
            setting="corpus",
        ) from error


def push_corpus(config: CorpusPushConfig) -> str | None:
    """Checks a prepared corpus and uploads it with a card; a dry run lists what would be uploaded.

    Returns:
        Address of the commit; None for a dry run.

    Raises:
        UserError: the folder is not an undamaged prepared corpus, or see `send`.
    """
    folder = Path(config.corpus)
    repo_id = config.hub_dataset_id
    # Loading verifies the digest of every file.
    manifest = without_machine_paths(redacted(PreparedCorpus.load(folder).manifest))
    manifest["manifest_sha256"] = manifest_digest(manifest)

    contents: dict[str, bytes | Path] = {name: folder / name for name in sorted(manifest["sha256"])}
    contents[MANIFEST] = (json.dumps(manifest, indent=2) + "\n").encode()
    contents[CARD] = _corpus_card(config, manifest).encode()
    if config.dry_run:
        show_contents(contents, f"the dataset {repo_id}")
        return None
    prepare_repository(repo_id, private=config.hub_private_repo, repo_type="dataset")
    return send(repo_id, contents, folder, CORPUS_FILES, repo_type="dataset")


def _corpus_card(config: CorpusPushConfig, manifest: object) -> str:
    import jinja2
    from huggingface_hub import DatasetCardData

    metadata = DatasetCardData(
        license=config.license,
        language=config.language,
        task_categories=["fill-mask"],
        tags=["bert", "bert-repro", "pre-training", "tokenized"],
        pretty_name=config.hub_dataset_id.rpartition("/")[2],
        configs=[{"config_name": "default", "data_files": "*.arrow"}],
    )
    template = resources.files("bert_repro.hub").joinpath("corpus_card.md.jinja").read_text("utf-8")
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    return environment.from_string(template).render(metadata=metadata.to_yaml(), config=config, manifest=manifest)
