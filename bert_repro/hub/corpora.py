"""Uploads a prepared corpus to the Hub as a dataset, and fetches it where `--corpus org/name` asks for it.

What is sent is what the manifest lists, the manifest and a card. Of the paths of source files only their last part is
sent; the manifest's own digest is made again for that, those of the files stay.
"""

import json
import re
import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from bert_repro.configs import CorpusPushConfig, looks_like_a_folder
from bert_repro.corpus.prepared_corpus import MANIFEST, PreparedCorpus, manifest_digest
from bert_repro.errors import UserError
from bert_repro.hub.metadata import license_error
from bert_repro.hub.push import check_repo_id, prepare_repository, send
from bert_repro.utils.files import CARD
from bert_repro.utils.redaction import without_machine_paths

TEMPLATE = "corpus_card.md.jinja"
CORPUS_FILES = ("*.arrow", "*.npy", "dataset_info.json", "state.json", MANIFEST, "tokenizer/*", CARD)
"""What of a dataset's repository is ours, as patterns of paths."""
_FLAG = "--hub_dataset_id"
_HUB_ID = re.compile(r"[\w-]+/[\w.-]+")


def corpus_folder(name: str | Path) -> Path:
    """Returns the folder of a prepared corpus; one of the Hub, named `org/name`, is fetched into its cache first.

    Args:
        name: a folder, or the id of a dataset that `push_corpus` made.

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
    folder = Path(config.corpus)
    check_repo_id(config.hub_dataset_id, _FLAG)
    if error := license_error(config.license):
        raise UserError(f"--license {config.license}: {error}")
    manifest = without_machine_paths(PreparedCorpus.load(folder).manifest)
    if "sha256" not in manifest:
        raise UserError(f"{folder}: an earlier version prepared it, without digests; prepare the corpus again")
    manifest["manifest_sha256"] = manifest_digest(manifest)
    contents: dict[str, bytes | Path] = {name: folder / name for name in sorted(manifest["files"])}
    contents[MANIFEST] = (json.dumps(manifest, indent=2) + "\n").encode()
    contents[CARD] = corpus_card(manifest, config).encode()
    if config.dry_run:
        sizes = {name: size_of(content) for name, content in sorted(contents.items())}
        lines = [f"{size:>15,}  {name}" for name, size in sizes.items()]
        total = f"{sum(sizes.values()):>15,}  bytes in {len(sizes)} files to the dataset {config.hub_dataset_id}"
        sys.stdout.write("\n".join([*lines, total]) + "\n")
        return None
    repository = prepare_repository(
        config.hub_dataset_id, private=config.hub_private_repo, repo_type="dataset", flag=_FLAG
    )
    return send(repository, contents, folder, CORPUS_FILES)


def size_of(content: bytes | Path) -> int:
    """Returns the size in bytes."""
    return content.stat().st_size if isinstance(content, Path) else len(content)


def corpus_card(manifest: Mapping[str, Any], config: CorpusPushConfig) -> str:
    """Returns the text of a dataset's README.md, metadata block included.

    Args:
        manifest: of the corpus, without paths of this machine.
        config: the id, the license, the language and what is said of the texts.
    """
    import jinja2
    from huggingface_hub import DatasetCardData

    metadata = DatasetCardData(
        license=config.license,
        language=config.language,
        size_categories=size_category(manifest["counts"]["documents"]),
        task_categories=["fill-mask"],
        tags=["bert", "bert-repro", "pre-training", "tokenized"],
        pretty_name=config.hub_dataset_id.rpartition("/")[2],
        configs=[{"config_name": "default", "data_files": "*.arrow"}],
    )
    settings = manifest["settings"]
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    template = environment.from_string(resources.files("bert_repro.hub").joinpath(TEMPLATE).read_text("utf-8"))
    return template.render(
        metadata=metadata.to_yaml(),
        config=config,
        manifest=manifest,
        sources=[one_line(source) for source in settings["sources"]],
        settings={name: value for name, value in settings.items() if name != "sources" and value is not None},
    )


def one_line(source: list[Any]) -> str:
    """Returns a source as the card lists it: name, revision or size, digest."""
    name, size, revision, *digest = source
    known = [f"revision {revision}"] if revision else [f"{size:,} bytes"] if size is not None else []
    known += [f"SHA-256 {digest[0]}"] if digest and digest[0] else []
    return " ".join(f"`{name}`".split()) + (f" ({', '.join(known)})" if known else "")


def size_category(rows: int) -> str:
    """Returns the Hub's name for a number of rows."""
    names = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M")
    return next((name for power, name in enumerate(names, start=3) if rows < 10**power), "100M<n<1B")
