"""Prepares a corpus for pre-training: raw text in, a folder of token ids with sentence and document boundaries out.

The order of events:

1. The sources are found, the tokenizer is loaded, and everything that decides the result is collected as settings.
2. If the output folder contains a corpus with the same settings, nothing is done. Anything else there is refused.
3. A claim gives the preparation to this process alone, also if several machines share the folder.
4. The work folder is opened. If it has the same settings, an interrupted preparation continues.
5. The sources are scanned and a plan is made: which documents are in which part (`plan.py`).
6. The parts are made, each from the documents that the plan names (`part_files.py`), in several processes.
7. The sources are compared with what they were at the start. Parts of two versions must not be mixed.
8. Every part is checked against the plan, and the parts are joined; the manifest is written last (`joining.py`).
9. The work folder becomes the output folder, unless another run has finished there in the meantime.

The work folder is `<output_dir>.preparing`, on the disk of the output folder:

    settings.json             the settings
    plan.json  scan/          the plan
    part-00000.arrow ...      finished parts, each with its counts in part-00000.json and part-00000.npy
"""

import importlib.metadata
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_repro.configs import CorpusConfig, TextSource
from bert_repro.corpus import plan as planning
from bert_repro.corpus.cleaning import RULES_VERSION
from bert_repro.corpus.documents import Source, find_sources, source_identities
from bert_repro.corpus.duplicates import DuplicateFilter
from bert_repro.corpus.joining import corpus_features, join_parts, planned_parts
from bert_repro.corpus.language_check import LanguageSigns
from bert_repro.corpus.part_files import FinishedPart, PartMaker, finished_part
from bert_repro.corpus.plan import PLAN_FILE, Plan, prepare_plan
from bert_repro.corpus.prepared_corpus import FORMAT_VERSION, MANIFEST, PreparedCorpus, read_manifest, token_dtype
from bert_repro.corpus.scanning import SCAN_FOLDER
from bert_repro.corpus.sentences import TokenizeSettings, sentence_splitter
from bert_repro.errors import UserError, flag
from bert_repro.models.loading import load_tokenizer, tokenizer_fingerprint
from bert_repro.utils import process
from bert_repro.utils.claims import describe_claim, exclusive_claim, holds_claim
from bert_repro.utils.files import UNFINISHED, followed, lock, replace_folder, scratch_path, unlock, write_json
from bert_repro.utils.parts import Engine, make_parts
from bert_repro.utils.readers import quoted, read_json_object
from bert_repro.utils.text_encodings import is_utf8
from bert_repro.utils.tokenizer_losses import TokenizerLosses

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

logger = logging.getLogger("bert_repro")

SETTINGS_FILE = "settings.json"
FEW_SENTENCES = 3  # in a document
FEW_DOCUMENTS = 100  # in a corpus

_DECIDING_SETTINGS = (
    "text_column", "title_column", "hub_config", "hub_split", "language", "sampling_exponent", "deduplicate",
    "text_passages_only", "max_documents",
)  # fmt: skip


def prepare_corpus(config: CorpusConfig, texts: Sequence[str] | None = None) -> dict[str, Any]:
    """Prepares a corpus in `config.output_dir`, or returns the one that is already there with the same settings.

    If it is called again with the same settings after an interruption, it continues.

    Args:
        config: all settings.
        texts: documents in memory, instead of `input_files`.

    Returns:
        The manifest of the corpus: settings, sources, counts (documents, sentences, tokens, words, bytes, lines dropped
        by each rule), versions.

    Raises:
        UserError: bad input, no text, or an output folder that contains something else.
        ProcessKilledError: a worker process was killed repeatedly.

    Source: paper 3.1 (text passages only, document-level corpus); the steps in between are ours.
    """
    # Everything that can be wrong with the settings is found before any work.
    sources = find_sources(config, texts)
    for language in {source.options.language for source in sources}:
        sentence_splitter(config.sentence_splitter, language)
    DuplicateFilter(config.deduplicate)
    tokenizer = _load_tokenizer(config.tokenizer)
    settings = _settings(config, sources, tokenizer)

    # If the output folder is a link, the work folder must be on the disk that it points to.
    output_dir = followed(Path(config.output_dir))
    manifest = _finished_corpus(output_dir, settings, config.overwrite_output_dir)
    if manifest is not None:
        logger.info("Corpus %s is already prepared with these settings: nothing to do.", output_dir)
        return manifest

    claim = scratch_path(output_dir, "claim")
    with exclusive_claim(claim, str(config.output_dir), setting="output_dir"):
        # Another process may have finished before this one got the claim.
        manifest = _finished_corpus(output_dir, settings, config.overwrite_output_dir)
        if manifest is not None:
            return manifest
        present = _state_of(output_dir)
        preparation = _Preparation(config, tuple(sources), tokenizer, settings, scratch_path(output_dir, "preparing"))
        parts = preparation.run()
        _require_unchanged(output_dir, present, claim)
        replace_folder(preparation.folder, output_dir, last=(MANIFEST,))

    # Say what was kept, and what may be wrong with it.
    manifest = read_manifest(output_dir)
    _report(manifest, output_dir)
    _report_losses(parts, manifest, config.tokenizer)
    return manifest


def _load_tokenizer(name: str) -> "PreTrainedTokenizerFast":
    """Loads the tokenizer and refuses one whose tokens would match inside other words."""
    tokenizer = load_tokenizer(name)
    num_added = len(tokenizer) - tokenizer.backend_tokenizer.get_vocab_size(with_added_tokens=False)
    if num_added > 0:
        raise UserError(
            f"{flag('tokenizer', name)}: {num_added} tokens were added with add_tokens, so they match inside other "
            f"words. Extend its vocabulary with train_tokenizer {flag('extend', name)} instead.",
            setting="tokenizer",
        )
    return tokenizer


# --- Settings and the output folder -----------------------------------------------------------------------------------


def _settings(config: CorpusConfig, sources: list[Source], tokenizer: "PreTrainedTokenizerFast") -> dict[str, Any]:
    """Returns everything that decides what the parts contain; equal settings make equal parts."""
    languages = {source.options.language for source in sources}
    splitter = config.sentence_splitter
    if splitter == "auto" and languages == {"en"}:
        splitter = "nupunkt"
    # Another version of a splitter may find other sentences.
    splitter_version = None
    if splitter != "lines":
        splitter_version = importlib.metadata.version("nupunkt" if splitter == "nupunkt" else "sentencex")
    return {
        "format_version": FORMAT_VERSION,
        "sources": source_identities(sources),
        "sources_with": [_options_of(options) for options in config.sources] or None,
        "tokenizer_fingerprint": tokenizer_fingerprint(tokenizer),
        **{name: getattr(config, name) for name in _DECIDING_SETTINGS},
        **_encoding_of(config),
        "rules_version": RULES_VERSION,
        "sentence_splitter": splitter,
        "sentence_splitter_version": splitter_version,
        "part_characters": planning.PART_CHARACTERS,
    }


def _options_of(source: TextSource) -> dict[str, Any]:
    options = {name: value for name, value in vars(source).items() if name != "encoding"}
    return {**options, **_encoding_of(source)}


def _encoding_of(settings: TextSource | CorpusConfig) -> dict[str, str]:
    """Returns the encoding as a setting, if it is not UTF-8. Corpora that were prepared earlier do not name it."""
    return {} if is_utf8(settings.encoding) else {"encoding": settings.encoding}


def _finished_corpus(output_dir: Path, settings: dict[str, Any], overwrite: bool) -> dict[str, Any] | None:
    """Returns the manifest of a corpus that is already there, or None if one must be prepared."""
    if process.is_free_folder(output_dir):
        return None
    if not (output_dir / MANIFEST).is_file():
        raise UserError(
            f"{flag('output_dir', output_dir)} exists and is not a prepared corpus. Choose another folder.",
            setting="output_dir",
        )
    if overwrite:
        return None
    _require_equal(settings, read_manifest(output_dir)["settings"], output_dir)
    return PreparedCorpus.load(output_dir).manifest


def _require_equal(settings: dict[str, Any], earlier: dict[str, Any], folder: Path) -> None:
    """Refuses to continue a preparation that was started with other settings."""
    # An earlier version of this package may have had other settings, so both sets of names are compared.
    for name in {**settings, **earlier}:
        value, earlier_value = settings.get(name), earlier.get(name)
        if earlier_value == value:
            continue
        if name in ("sources", "sources_with"):
            difference = "from other input"
        else:
            difference = f"with {name} {quoted(earlier_value)}, not {quoted(value)}"
        raise UserError(
            f"{folder} was prepared {difference}. Choose another {flag('output_dir')}, or add "
            f"{flag('overwrite_output_dir')}.",
            setting="output_dir",
        )


def _state_of(output_dir: Path) -> str | None:
    """Returns what identifies the corpus in the output folder, which may be replaced at the end; None if it is free."""
    if process.is_free_folder(output_dir):
        return None
    return str(read_json_object(output_dir / MANIFEST).get("manifest_sha256"))


def _require_unchanged(output_dir: Path, present: str | None, claim: Path) -> None:
    """Refuses to replace a corpus that another run has finished in the meantime."""
    if not holds_claim(claim):
        raise UserError(
            f"Another process has taken over the preparation of {output_dir}. {describe_claim(claim)}",
            setting="output_dir",
        )
    if process.is_free_folder(output_dir):
        return
    if not (output_dir / MANIFEST).is_file() or _state_of(output_dir) != present:
        raise UserError(
            f"Another run has written to {flag('output_dir', output_dir)} in the meantime. Its files are kept. "
            "Choose another folder.",
            setting="output_dir",
        )


# --- Preparation ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Preparation:
    """One preparation in its work folder.

    Args:
        config: all settings.
        sources: from `find_sources`.
        tokenizer: makes the tokens.
        settings: what decides the result.
        folder: the work folder.
    """

    config: CorpusConfig
    sources: tuple[Source, ...]
    tokenizer: "PreTrainedTokenizerFast"
    settings: dict[str, Any]
    folder: Path

    def run(self) -> list[FinishedPart]:
        """Leaves a finished corpus in the work folder: steps 4 to 8 of the module's docstring.

        Returns:
            Its parts; empty if an earlier process had finished all of them.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        # The claim is enough. The lock also stops versions of this package that know only locks.
        if not lock(self.folder):
            raise UserError(
                f"Another process is preparing {self.folder}. Wait for it, or choose another {flag('output_dir')}.",
                setting="output_dir",
            )
        try:
            if self._is_joined():
                # A stop came after the manifest was written and before the corpus got its name.
                logger.info("Continuing %s.", self.folder)
                _remove_work_files(self.folder)
                return []
            self._open_folder()
            engine = Engine(self.config.engine, self.config.num_proc, self.config.ray_address)
            with engine.session():
                plan = prepare_plan(self.config, self.sources, self.folder, engine)
                self._make_parts(plan, engine)
            self._require_same_input()
            self._remove_foreign_parts(plan)
            finished = planned_parts(self.folder, plan)
            join_parts(self.config, self.folder, finished, plan, self.tokenizer, self.settings)
            _remove_work_files(self.folder)
            return finished
        finally:
            unlock(self.folder)

    def _is_joined(self) -> bool:
        """Returns whether the folder is a complete, undamaged corpus with these settings."""
        if not (self.folder / MANIFEST).is_file():
            return False
        try:
            corpus = PreparedCorpus.load(self.folder)
        except UserError:
            return False
        return bool(corpus.manifest["settings"] == self.settings)

    def _open_folder(self) -> None:
        """Accepts the folder of an interrupted preparation, or empties it for a new one."""
        settings_file = self.folder / SETTINGS_FILE
        if settings_file.is_file():
            earlier = read_json_object(settings_file)
            if earlier == self.settings:
                logger.info("Continuing %s.", self.folder)
                return
            if not self.config.overwrite_output_dir:
                _require_equal(self.settings, earlier, self.folder)
            # The user allowed to replace what is there, which includes unfinished work.
            for path in self.folder.iterdir():
                _remove(path)
        elif any(self.folder.iterdir()):
            raise UserError(
                f"{self.folder} is not a corpus in preparation. Remove it, or choose another {flag('output_dir')}.",
                setting="output_dir",
            )
        write_json(settings_file, self.settings)

    def _make_parts(self, plan: Plan, engine: Engine) -> None:
        # The tokenizer travels to the workers as JSON; they do not import transformers.
        settings = TokenizeSettings(
            self.tokenizer.backend_tokenizer.to_str(), self.config.text_passages_only, self.config.sentence_splitter
        )
        schema = corpus_features(token_dtype(len(self.tokenizer))).arrow_schema.serialize().to_pybytes()
        make_parts(
            plan.parts,
            PartMaker(self.folder.absolute(), plan.digest, plan.passes, self.sources, settings, schema),
            is_done=lambda part: finished_part(self.folder, part, plan.digest) is not None,
            engine=engine,
            weights=[part.characters for part in plan.parts],
            label="preparing",
        )

    def _require_same_input(self) -> None:
        if source_identities(list(self.sources)) != self.settings["sources"]:
            raise UserError(
                "An input file changed while the corpus was prepared, so parts of two versions would be mixed. "
                f"Start again with {flag('overwrite_output_dir')}.",
                setting="input_files",
            )

    def _remove_foreign_parts(self, plan: Plan) -> None:
        """Removes part files that are not in the plan, which another program may have left."""
        # A file that is in no plan would otherwise stay in the finished corpus.
        planned = {f"part-{part.number:05d}" for part in plan.parts}
        for path in self.folder.glob("part-*"):
            if path.stem not in planned:
                _remove(path)


def _remove_work_files(folder: Path) -> None:
    """Removes what is only needed while a corpus is prepared, so that a finished corpus never contains it."""
    work_files = [*folder.glob("part-*.json"), *folder.glob("part-*.npy")]
    work_files += [folder / SETTINGS_FILE, folder / PLAN_FILE, folder / SCAN_FOLDER]
    work_files += folder.glob(f"{UNFINISHED[0]}*")
    for path in work_files:
        _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# --- Report -----------------------------------------------------------------------------------------------------------


def _report(manifest: dict[str, Any], output_dir: Path) -> None:
    """Logs what was kept and dropped, and warns of a corpus that pre-training can do little with."""
    counts, dropped = manifest["counts"], manifest["dropped_lines"]
    rules = [f"{rule} {lines}" for rule, lines in dropped.items() if lines]
    # A corpus that lost most of its documents is a warning.
    report = logger.info if 2 * counts["documents"] >= counts["documents_read"] else logger.warning
    report(
        "Corpus %s: %d of %d documents, %d sentences, %d tokens, %d words; lines dropped (%s keeps all): %s.",
        output_dir,
        counts["documents"],
        counts["documents_read"],
        counts["sentences"],
        counts["tokens"],
        counts["words"],
        flag("text_passages_only", False),
        ", ".join(rules) or "none",
    )
    if counts["documents"] < FEW_DOCUMENTS:
        logger.warning(
            "Only %d documents, and pre-training holds some of them out. In .txt a blank line ends a document.",
            counts["documents"],
        )
    if counts["sentences"] < FEW_SENTENCES * counts["documents"]:
        logger.warning(
            "Documents have %.1f sentences on average, which is few for next sentence prediction. Use longer texts "
            "(in .txt a blank line ends a document), or keep all lines with %s.",
            counts["sentences"] / counts["documents"],
            flag("text_passages_only", False),
        )


def _report_losses(parts: Sequence[FinishedPart], manifest: dict[str, Any], tokenizer: str) -> None:
    """Warns if the tokenizer loses much of the text, or if the text does not look like its language."""
    losses, language = TokenizerLosses(), LanguageSigns()
    for part in parts:
        losses += TokenizerLosses(**part["losses"])
        language.add(LanguageSigns(**part["language"]))
    messages = losses.messages(
        unknown_remedy=f"Train a vocabulary on this text with train_tokenizer, with a higher {flag('limit_alphabet')} "
        f"for scripts with many characters, or choose another {flag('tokenizer')} than {tokenizer}.",
        marks_remedy=f"To keep them, train a vocabulary with train_tokenizer {flag('strip_accents', False)} or "
        f"{flag('lowercase', False)}.",
    )
    for message in [*messages, *language.messages(manifest["counts"])]:
        logger.warning(message)
