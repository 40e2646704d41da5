"""Loads configurations, models and tokenizers for the recipes: every checkpoint that a recipe reads comes through here.

Only safetensors are read, no code of a checkpoint runs, and whatever is wrong with its files ends in one line.
"""

import hashlib
import json
import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_repro.configs.base import require
from bert_repro.errors import UserError
from bert_repro.models.configuration_bert_repro import BertReproConfig
from bert_repro.utils.files import (
    CHECKPOINTS,
    TRAINER_STATE,
    UNFINISHED,
    atomic_files,
    find_damage,
    step_of,
    write_json,
    write_text,
)
from bert_repro.utils.readers import first_line, read_json_object, read_utf8, shown

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

logger = logging.getLogger("bert_repro")

CONFIG, WEIGHTS = "config.json", "model.safetensors"
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_INPUT_CHARS_PER_WORD = 100  # as the original implementation at first, and transformers
MODEL_MAX_LENGTH = 512
_PICKLE = "pytorch_model.bin"
_CONVERT = "convert it: bert-repro convert_checkpoint --checkpoint FOLDER --output_dir NEW_FOLDER"
_GET_AGAIN = "get the model again"
_ENCODER = re.compile(r"(^|\.)(embeddings|encoder)\.")


# --- Models ---------------------------------------------------------------------------------------------------------


def quiet_transformers() -> None:
    """Silences transformers' warnings and progress bars."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


def load_config(name: str, flag: str = "--model_name_or_path") -> BertReproConfig:
    """Reads the configuration of a checkpoint alone.

    Args:
        name: folder, or id on the Hub.
        flag: the setting that named it, for messages.

    Raises:
        UserError: there is none, it is not that of a BERT model, or the folder is a damaged checkpoint of a run.
    """
    try:
        return read_model_config(config_file(name).parent)
    except UserError as error:
        raise UserError(f"{flag} {name}: {error}") from error


def read_model_config(folder: Path) -> BertReproConfig:
    """Reads the config.json of a folder.

    Raises:
        UserError: it is missing or damaged, of another model type, or a value is not possible.
    """
    path = folder / CONFIG
    require(path.exists() or not any(folder.glob("*.ckpt*.index")), f"is a checkpoint of TensorFlow's; {_CONVERT}")
    require(path.exists(), f"holds no {CONFIG}; name a folder with a finished model, or an id of the Hub")
    content = read_json_object(path, damaged=_GET_AGAIN)
    model_type = content.get("model_type", "bert")  # the first checkpoints name none
    if model_type not in ("bert", "bert_repro"):
        raise UserError(f"{CONFIG} says model_type {shown(model_type)}; name a model of type bert")
    if (places := content.get("position_embedding_type", "absolute")) != "absolute":
        raise UserError(f"{CONFIG} says position_embedding_type {shown(places)}; only absolute positions are BERT's")
    try:
        config: BertReproConfig = BertReproConfig.from_dict({**content, "model_type": "bert_repro"})
        config.check()
    except Exception as error:  # the library's own checks raise many kinds
        raise UserError(f"{CONFIG}: {first_line(error)}; {_GET_AGAIN}") from error
    return config


def load_pretrained(
    model_class: Any, name: str, *, flag: str = "--model_name_or_path", **options: Any
) -> tuple[Any, dict[str, Any]]:
    """Loads a checkpoint in float32, whatever precision it was saved in; autocast decides the precision of a run.

    Args:
        model_class: one of our model classes.
        name: folder, or id on the Hub.
        flag: the setting that named it, for messages.
        options: what else `from_pretrained` takes.

    Returns:
        The model, and what transformers says of its loading: `missing_keys`, `mismatched_keys` ...

    Raises:
        UserError: there is no such checkpoint, it cannot be read, or its weights are not those of its configuration.
    """
    import torch

    quiet_transformers()  # its report of missing and unused weights is replaced by one line of ours
    load_config(name, flag)
    if Path(name).is_dir() and not any(Path(name).glob("*.safetensors*")):
        pickle = f"its weights are {_PICKLE}, and only safetensors are read; {_CONVERT}"
        none = "has no weights; name the folder of a finished run, or that of the sweep"
        raise UserError(f"{flag} {name}: {pickle if (Path(name) / _PICKLE).exists() else none}")
    options |= {"dtype": torch.float32, "output_loading_info": True, "use_safetensors": True}
    try:
        model, info = model_class.from_pretrained(name, **options)
    except Exception as error:  # whatever the library raises about a file, it is the file that is wrong
        raise UserError(f"{flag} {name}: {first_line(error)}") from error
    for key, saved, wanted in sorted(info["mismatched_keys"]):
        if _ENCODER.search(key):
            raise UserError(
                f"{flag} {name}: {key} has the shape {list(saved)}, where its configuration asks for {list(wanted)}; "
                f"{_GET_AGAIN}"
            )
    for what, keys in (("lack", info["missing_keys"]), ("hold what no such BERT has:", info["unexpected_keys"])):
        foreign = sorted(key for key in keys if _ENCODER.search(key))
        if foreign:
            raise UserError(f"{flag} {name}: its weights {what} {foreign[0]}; {_GET_AGAIN}")
    for key, value in model.named_parameters():
        if key not in info["missing_keys"] and not bool(torch.isfinite(value.detach()).all()):
            raise UserError(
                f"{flag} {name}: {key} holds values that are not finite (NaN or infinity); name an earlier checkpoint, "
                f"or {_GET_AGAIN}"
            )
    return model, info


def check_folder(folder: Path) -> None:
    """Checks that a folder can be published: its encoder and its tokenizer load, all weights and adapters are finite.

    Raises:
        UserError: they do not.
    """
    from safetensors.torch import load_file

    from bert_repro.models.modeling_bert_repro import BertReproModel

    load_pretrained(BertReproModel, str(folder), flag="--folder")
    for path in (*folder.glob("*.safetensors"), *folder.glob("adapter/*.safetensors")):
        for name, values in load_file(path).items():
            if not values.isfinite().all():
                raise UserError(f"--folder {folder}: {name} in {path.name} is not finite; make the run again")
    if any((folder / name).exists() for name in ("tokenizer.json", "vocab.txt")):
        load_tokenizer(folder)


def require_undamaged(folder: Path) -> None:
    """Refuses a checkpoint of a run that is unfinished or not as its manifest says; other folders pass.

    Raises:
        UserError: it is.
    """
    folder = Path(os.path.abspath(folder))  # the name of "." is that of the folder; links stay as they are
    if folder.name.startswith(UNFINISHED):
        raise UserError("is an unfinished checkpoint; name one of the step-N folders next to it")
    is_checkpoint = step_of(folder) is not None and folder.parent.name == CHECKPOINTS
    if (is_checkpoint or (folder / TRAINER_STATE).is_dir()) and (damage := find_damage(folder)):
        raise UserError(f"{damage}; name another checkpoint")


def config_file(name: str) -> Path:
    """Returns the path of a checkpoint's config.json; that of an id on the Hub is fetched first, into a folder that its
    commit names."""
    if Path(name).is_dir():
        require_undamaged(Path(name))
        return Path(name) / CONFIG
    from transformers.utils import cached_file

    try:
        return Path(str(cached_file(name, CONFIG)))
    except Exception as error:  # of the Hub's library: no such id, no network ...
        raise UserError(f"no such folder here; on the Hub: {first_line(error)}") from error


# --- Tokenizers -----------------------------------------------------------------------------------------------------


def load_tokenizer(path_or_id: str | Path, *, lowercase: bool | None = None) -> "PreTrainedTokenizerFast":
    """Loads a saved tokenizer, a plain `vocab.txt` (as the original implementation has it), or a tokenizer of the Hub.

    Args:
        path_or_id: a folder, a vocabulary file with one entry per line, or the id of a model on the Hub.
        lowercase: for a plain vocabulary, which says nothing itself: None takes it as cased when any entry has an
            upper-case letter, else as uncased. A saved tokenizer is taken as it is.

    Raises:
        UserError: nothing is there, or it is not a BERT vocabulary.
    """
    path = Path(path_or_id)
    saved = any((path / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json"))
    if path.is_file() or (not saved and (path / "vocab.txt").is_file()):
        vocab = _read_vocabulary(path if path.is_file() else path / "vocab.txt")
        if lowercase is None:
            lowercase = not any(token != token.lower() for token in vocab if not token.startswith("["))
        return build_tokenizer(vocab, lowercase)
    require(saved or not path.is_dir(), f"folder {path_or_id} holds no tokenizer; expected tokenizer.json or vocab.txt")
    return _load_saved(str(path_or_id))


def _read_vocabulary(path: Path) -> dict[str, int]:
    vocab: dict[str, int] = {}
    for line, token in enumerate(read_utf8(path).removesuffix("\n").split("\n"), start=1):
        if token in vocab:
            raise UserError(f"{path}, line {line}: {shown(token)} is already on line {vocab[token] + 1}; remove one")
        vocab[token] = line - 1
    missing = [token for token in SPECIAL_TOKENS if token not in vocab]
    if missing:
        raise UserError(f"{path}: no entry {', '.join(missing)}; this is not a BERT vocabulary with one entry per line")
    return vocab


def _load_saved(path_or_id: str) -> "PreTrainedTokenizerFast":
    from transformers import AutoTokenizer

    nowhere = f"tokenizer {path_or_id!r} is neither a local folder or file nor on the Hub"
    try:
        # With a configuration given, config.json, which may be anything, plays no part here.
        tokenizer = AutoTokenizer.from_pretrained(path_or_id, config=BertReproConfig(), trust_remote_code=False)
    except Exception as error:  # of a damaged file the tokenizers library raises nothing more exact
        reason = first_line(error)
        if Path(path_or_id).is_dir():
            raise UserError(f"tokenizer {path_or_id!r} cannot be read ({reason}); get its files again") from error
        raise UserError(f"{nowhere}: {reason}") from error
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):  # made up where transformers finds no file
        raise UserError(f"{nowhere}: no vocabulary was found")
    missing = [name for name in ("pad", "unk", "cls", "sep", "mask") if getattr(tokenizer, f"{name}_token") is None]
    is_wordpiece = (
        getattr(tokenizer, "is_fast", False)
        and json.loads(tokenizer.backend_tokenizer.to_str())["model"]["type"] == "WordPiece"
    )
    if missing or not is_wordpiece:
        raise UserError(f"tokenizer {path_or_id} is not a WordPiece tokenizer of BERT; name the one of a BERT model")
    return tokenizer  # type: ignore[no-any-return]


def build_tokenizer(
    vocab: dict[str, int], lowercase: bool, *, strip_accents: bool | None = None, handle_chinese_chars: bool = True
) -> "PreTrainedTokenizerFast":
    """Makes a BERT tokenizer of a vocabulary (piece -> id); the arguments are those of `train_wordpiece`."""
    from transformers import BertTokenizer

    tokenizer: PreTrainedTokenizerFast = BertTokenizer(
        vocab=vocab,
        do_lower_case=lowercase,
        strip_accents=strip_accents,
        tokenize_chinese_chars=handle_chinese_chars,
        model_max_length=MODEL_MAX_LENGTH,
    )
    return tokenizer


def save_tokenizer(tokenizer: "PreTrainedTokenizerBase", folder: Path) -> None:
    """Saves a tokenizer with tokenizer.json, and with vocab.txt for `BertTokenizer` of transformers before 5.

    Args:
        tokenizer: a WordPiece tokenizer.
        folder: made if need be.

    Raises:
        UserError: the disk is full or not writable.
    """
    words = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    with atomic_files(folder) as unfinished:
        tokenizer.save_pretrained(unfinished)
        _make_portable(unfinished / "tokenizer_config.json")
        if [index for _, index in words] == list(range(len(words))):  # the line is the id
            write_text(unfinished / "vocab.txt", "".join(f"{word}\n" for word, _ in words))


def _make_portable(path: Path) -> None:
    """Leaves nothing in tokenizer_config.json that only this machine or only transformers 5 understands.

    transformers writes down whether it found the tokenizer in a folder. It reads further special tokens under two
    names: from 4.46 on, transformers 4 fails at a list under the new one ("'list' object has no attribute 'keys'"), and
    older ones do not see it.
    """
    config = read_json_object(path)
    for name in ("is_local", "local_files_only"):
        config.pop(name, None)
    if isinstance(config.get("extra_special_tokens"), list):
        config["additional_special_tokens"] = config.pop("extra_special_tokens")
    write_json(path, config, ensure_ascii=False)


def longest_input(tokenizer: "PreTrainedTokenizerBase", positions: int) -> int:
    """Returns how many tokens a model reads at once: what its tokenizer truncates at, within its positions.

    Args:
        tokenizer: the model's; its `model_max_length` is the longest sequence that the model was trained with.
        positions: number of the model's position embeddings.
    """
    return int(min(tokenizer.model_max_length, positions))


def tokenizer_fingerprint(tokenizer: "PreTrainedTokenizerFast") -> str:
    """Returns the SHA-256 (hex) of all that decides tokens and ids: normalization, splitting, model, special tokens.

    Truncation, padding and the template around a sequence do not count.
    """
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    parts = {name: state[name] for name in ("normalizer", "pre_tokenizer", "model", "added_tokens")}
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    text = json.dumps([parts, special], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def require_vocabulary(name: str, model: Any, tokenizer: Any) -> None:
    """Raises `UserError` where a tokenizer has ids beyond the embeddings of the model called `name`."""
    if len(tokenizer) > model.config.vocab_size:
        raise UserError(
            f"--model_name_or_path {name}: its vocabulary of {model.config.vocab_size} is smaller than the tokenizer's "
            f"{len(tokenizer)} ids; name the tokenizer it was trained with"
        )
