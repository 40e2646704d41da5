"""Loads configurations, models and tokenizers for the recipes: every checkpoint that a recipe reads is loaded here.

Only safetensors are read, no code of a checkpoint is run, and any damage to its files ends in one line.
"""

import hashlib
import json
import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bert_repro.errors import UserError, flag
from bert_repro.models.configuration_bert_repro import BertReproConfig
from bert_repro.models.metadata import check_tokenizer_files, checked_config, require_enough_weights
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
from bert_repro.utils.readers import first_line, quoted, read_json_object, read_utf8
from bert_repro.utils.schema import LARGEST_VOCABULARY

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

logger = logging.getLogger("bert_repro")

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_INPUT_CHARS_PER_WORD = 100  # as in transformers, and in the original implementation at first
MODEL_MAX_LENGTH = 512
_ADAPTER_CONFIG = "adapter_config.json"
_PICKLE = "pytorch_model.bin"
_CONVERT = "Convert it: bert-repro convert_checkpoint --checkpoint FOLDER --output_dir NEW_FOLDER"
_GET_AGAIN = "Download or write the model again."
_ENCODER = re.compile(r"(^|\.)(embeddings|encoder)\.")


# --- Models ---------------------------------------------------------------------------------------------------------


def quiet_transformers() -> None:
    """Silences transformers' warnings and progress bars."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


def load_config(name: str, setting: str = "model_name_or_path") -> BertReproConfig:
    """Reads the configuration of a checkpoint without its weights.

    Args:
        name: folder, or id on the Hub.
        setting: the setting that named it, for messages.

    Raises:
        UserError: there is none, it is not that of a BERT model, or the folder is a damaged checkpoint of a run.
    """
    try:
        return read_model_config(config_file(name).parent)
    except UserError as error:
        raise UserError(f"{flag(setting, name)}: {error}", setting=setting) from error


def read_model_config(folder: Path) -> BertReproConfig:
    """Reads the config.json of a folder.

    Raises:
        UserError: it is missing or damaged, of another model type, or contains an impossible value.
    """
    path = folder / CONFIG
    if not path.exists():
        is_tensorflow = any(folder.glob("*.ckpt*.index"))
        if is_tensorflow:
            raise UserError(f"the folder is a checkpoint of TensorFlow. {_CONVERT}")
        raise UserError(f"the folder has no {CONFIG}. Pass a folder with a finished model, or an id of the Hub.")
    content = checked_config(read_json_object(path, damaged=_GET_AGAIN), CONFIG)

    # The first checkpoints of BERT do not name a model type.
    model_type = content.get("model_type", "bert")
    if model_type not in ("bert", "bert_repro"):
        raise UserError(f"{CONFIG} has the model_type {quoted(model_type)}. Pass a model of type bert.")
    position_type = content.get("position_embedding_type", "absolute")
    if position_type != "absolute":
        raise UserError(
            f"{CONFIG} has the position_embedding_type {quoted(position_type)}, but BERT has absolute positions only."
        )
    try:
        config: BertReproConfig = BertReproConfig.from_dict({**content, "model_type": "bert_repro"})
        config.check()
    except Exception as error:
        # The library's own checks raise exceptions of many kinds.
        raise UserError(f"{CONFIG}: {first_line(error)}. {_GET_AGAIN}") from error
    return config


def load_pretrained(
    model_class: Any, name: str, *, setting: str = "model_name_or_path", **options: Any
) -> tuple[Any, dict[str, Any]]:
    """Loads a checkpoint in float32, whatever precision it was saved in; autocast decides the precision of a run.

    Args:
        model_class: one of our model classes.
        name: folder, or id on the Hub.
        setting: the setting that named it, for messages.
        options: further arguments of `from_pretrained`.

    Returns:
        The model, and transformers' report about loading it: `missing_keys`, `mismatched_keys` ...

    Raises:
        UserError: there is no such checkpoint, it cannot be read, or its weights are not those of its configuration.
    """
    import torch

    # transformers' report of missing and unused weights is replaced by one line of ours.
    quiet_transformers()
    shape = load_config(name, setting)
    _require_safetensors(name, setting)
    try:
        require_enough_weights(shape, Path(name), CONFIG)
    except UserError as error:
        raise UserError(f"{flag(setting, name)}: {error}", setting=setting) from error
    options |= {"dtype": torch.float32, "output_loading_info": True, "use_safetensors": True}
    # Asked or not, no code of a checkpoint runs.
    options["trust_remote_code"] = False
    try:
        model, info = model_class.from_pretrained(name, **options)
    except Exception as error:
        # Whatever the library raises about a file, the file is damaged.
        raise UserError(f"{flag(setting, name)}: {first_line(error)}", setting=setting) from error

    fault = _fault_of_weights(model, info)
    if fault:
        raise UserError(f"{flag(setting, name)}: {fault}", setting=setting)
    return model, info


def _require_safetensors(name: str, setting: str) -> None:
    """Refuses a local folder without weights in safetensors, and one whose weights would come from elsewhere."""
    folder = Path(name)
    if (folder / _ADAPTER_CONFIG).exists():
        # transformers would load the model that this file names, whatever it is, in place of the folder's own.
        raise UserError(
            f"{flag(setting, name)}: the folder is an adapter ({_ADAPTER_CONFIG}) for another model. Pass the folder "
            "of the finished run, in which the adapter is merged.",
            setting=setting,
        )
    if not folder.is_dir() or any(folder.glob("*.safetensors*")):
        return
    if (folder / _PICKLE).exists():
        reason = f"the weights are a pickle ({_PICKLE}), and only safetensors are read. {_CONVERT}"
    else:
        reason = "the folder has no weights. Pass the folder of a finished run, or that of a sweep."
    raise UserError(f"{flag(setting, name)}: {reason}", setting=setting)


def _fault_of_weights(model: Any, info: dict[str, Any]) -> str | None:
    """Returns what is wrong with loaded weights, or None.

    Heads may be missing or have another size, because fine-tuning makes new ones. The encoder must be complete.
    """
    for key, saved_shape, expected_shape in sorted(info["mismatched_keys"]):
        if _ENCODER.search(key):
            return (
                f"{key} has the shape {list(saved_shape)}, but its configuration asks for {list(expected_shape)}. "
                f"{_GET_AGAIN}"
            )
    for name, keys in (("missing", info["missing_keys"]), ("not part of such a BERT", info["unexpected_keys"])):
        encoder_keys = sorted(key for key in keys if _ENCODER.search(key))
        if encoder_keys:
            return f"the weights {encoder_keys[0]} are {name}. {_GET_AGAIN}"
    for key, value in model.named_parameters():
        if key not in info["missing_keys"] and not bool(value.detach().isfinite().all()):
            return (
                f"{key} contains values that are not finite (NaN or infinity). Pass an earlier checkpoint. {_GET_AGAIN}"
            )
    return None


def check_folder(folder: Path) -> None:
    """Checks that a folder can be published: its encoder and its tokenizer load, all weights and adapters are finite.

    Raises:
        UserError: they do not.
    """
    from safetensors.torch import load_file

    from bert_repro.models.modeling_bert_repro import BertReproModel

    load_pretrained(BertReproModel, str(folder), setting="folder")
    for path in (*folder.glob("*.safetensors"), *folder.glob("adapter/*.safetensors")):
        for name, values in load_file(path).items():
            if not values.isfinite().all():
                raise UserError(
                    f"{flag('folder', folder)}: {name} in {path.name} is not finite. Make the run again.",
                    setting="folder",
                )
    if any((folder / name).exists() for name in ("tokenizer.json", "vocab.txt")):
        load_tokenizer(folder)


def require_undamaged(folder: Path) -> None:
    """Refuses a checkpoint of a run that is unfinished or differs from its manifest. Other folders are accepted.

    Raises:
        UserError: the checkpoint is unfinished or damaged.
    """
    # "." has no name of its own. Links are not followed.
    folder = Path(os.path.abspath(folder))
    if folder.name.startswith(UNFINISHED):
        raise UserError("the folder is an unfinished checkpoint. Pass one of the step-N folders next to it.")
    is_step_of_run = step_of(folder) is not None and folder.parent.name == CHECKPOINTS
    is_checkpoint = is_step_of_run or (folder / TRAINER_STATE).is_dir()
    if not is_checkpoint:
        return
    damage = find_damage(folder)
    if damage:
        raise UserError(f"{damage}. Pass another checkpoint.")


def config_file(name: str) -> Path:
    """Returns the path of a checkpoint's config.json. For an id on the Hub it is downloaded into the cache first."""
    if Path(name).is_dir():
        require_undamaged(Path(name))
        return Path(name) / CONFIG
    from transformers.utils import cached_file

    try:
        return Path(str(cached_file(name, CONFIG)))
    except Exception as error:
        # The Hub's library raises exceptions of many kinds: no such id, no network ...
        raise UserError(f"there is no such folder here. On the Hub: {first_line(error)}") from error


# --- Tokenizers -----------------------------------------------------------------------------------------------------


def load_tokenizer(path_or_id: str | Path, *, lowercase: bool | None = None) -> "PreTrainedTokenizerFast":
    """Loads a saved tokenizer, a plain `vocab.txt` (as the original implementation has it), or a tokenizer of the Hub.

    Args:
        path_or_id: a folder, a vocabulary file with one entry per line, or the id of a model on the Hub.
        lowercase: whether a plain vocabulary is uncased, which its file does not say. None treats it as cased if any
            entry has an upper-case letter. A saved tokenizer is used as it is.

    Raises:
        UserError: there is nothing of that name, or it is not a BERT vocabulary.
    """
    path = Path(path_or_id)
    is_saved = any((path / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json"))

    # A plain vocabulary, named by itself or by its folder.
    if path.is_file() or (not is_saved and (path / "vocab.txt").is_file()):
        vocab = _read_vocabulary(path if path.is_file() else path / "vocab.txt")
        if lowercase is None:
            words = [token for token in vocab if not token.startswith("[")]
            lowercase = all(word == word.lower() for word in words)
        return build_tokenizer(vocab, lowercase)

    if path.is_dir() and not is_saved:
        raise UserError(f"The folder {path_or_id} has no tokenizer, that is, no tokenizer.json and no vocab.txt.")
    return _load_saved(str(path_or_id))


def _read_vocabulary(path: Path) -> dict[str, int]:
    """Reads a vocabulary with one entry per line; the id of an entry is its line, counted from 0."""
    vocab: dict[str, int] = {}
    for line, token in enumerate(read_utf8(path).removesuffix("\n").split("\n"), start=1):
        if token in vocab:
            raise UserError(
                f"{path}, line {line}: {quoted(token)} is already on line {vocab[token] + 1}. Remove one of them."
            )
        vocab[token] = line - 1
    missing = [token for token in SPECIAL_TOKENS if token not in vocab]
    if missing:
        raise UserError(
            f"{path} has no entry {', '.join(missing)}, so it is not a BERT vocabulary with one entry per line."
        )
    return vocab


def _load_saved(path_or_id: str) -> "PreTrainedTokenizerFast":
    from transformers import AutoTokenizer

    if Path(path_or_id).is_dir():
        check_tokenizer_files(Path(path_or_id))
    try:
        # With a configuration passed, transformers does not read the folder's config.json, which may be anything.
        tokenizer = AutoTokenizer.from_pretrained(path_or_id, config=BertReproConfig(), trust_remote_code=False)
    except Exception as error:
        # The tokenizers library raises plain exceptions about damaged files.
        reason = first_line(error)
        if Path(path_or_id).is_dir():
            raise UserError(
                f"The tokenizer {path_or_id!r} cannot be read ({reason}). Download or write its files again."
            ) from error
        raise UserError(
            f"The tokenizer {path_or_id!r} is neither a local folder or file nor on the Hub: {reason}"
        ) from error

    # transformers makes a tokenizer of special tokens alone if it finds no file.
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise UserError(
            f"The tokenizer {path_or_id!r} is neither a local folder or file nor on the Hub: no vocabulary was found."
        )
    # A local folder was checked before. Arrays are as long as the largest id.
    if max(tokenizer.get_vocab().values()) > LARGEST_VOCABULARY:
        raise UserError(
            f"The tokenizer {path_or_id!r} has ids above {LARGEST_VOCABULARY:,}. Pass the one of a BERT model."
        )
    if not _is_bert_tokenizer(tokenizer):
        raise UserError(
            f"The tokenizer {path_or_id} is not a WordPiece tokenizer with BERT's special tokens. Pass the one of a "
            "BERT model."
        )
    return cast("PreTrainedTokenizerFast", tokenizer)


def _is_bert_tokenizer(tokenizer: Any) -> bool:
    for name in ("pad", "unk", "cls", "sep", "mask"):
        if getattr(tokenizer, f"{name}_token") is None:
            return False
    if not getattr(tokenizer, "is_fast", False):
        return False
    model_type = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["type"]
    return bool(model_type == "WordPiece")


def build_tokenizer(
    vocab: dict[str, int], lowercase: bool, *, strip_accents: bool | None = None, handle_chinese_chars: bool = True
) -> "PreTrainedTokenizerFast":
    """Returns a BERT tokenizer with a vocabulary (piece -> id); the other arguments are those of `train_wordpiece`."""
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
    """Saves a tokenizer as tokenizer.json, and as vocab.txt for `BertTokenizer` of transformers before 5.

    Args:
        tokenizer: a WordPiece tokenizer.
        folder: the folder; created if it does not exist.

    Raises:
        UserError: the disk is full or not writable.
    """
    words = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    with atomic_files(folder) as unfinished:
        tokenizer.save_pretrained(unfinished)
        _make_portable(unfinished / "tokenizer_config.json")
        # In vocab.txt the line is the id, so ids must have no gaps.
        has_no_gaps = [number for _, number in words] == list(range(len(words)))
        if has_no_gaps:
            write_text(unfinished / "vocab.txt", "".join(f"{word}\n" for word, _ in words))


def _make_portable(path: Path) -> None:
    """Removes entries of tokenizer_config.json that only this machine or only transformers 5 understands.

    transformers stores whether it found the tokenizer in a folder. It reads further special tokens under two names.
    From 4.46 on, transformers 4 fails at a list under the new name ("'list' object has no attribute 'keys'"), and older
    versions ignore it.
    """
    config = read_json_object(path)
    for name in ("is_local", "local_files_only"):
        config.pop(name, None)
    if isinstance(config.get("extra_special_tokens"), list):
        config["additional_special_tokens"] = config.pop("extra_special_tokens")
    write_json(path, config, ensure_ascii=False)


def longest_input(tokenizer: "PreTrainedTokenizerBase", positions: int) -> int:
    """Returns how many tokens a model reads at once: the length that its tokenizer truncates to, within its positions.

    Args:
        tokenizer: tokenizer of the model; its `model_max_length` is the longest sequence that the model was trained on.
        positions: number of the model's position embeddings.
    """
    return int(min(tokenizer.model_max_length, positions))


def tokenizer_fingerprint(tokenizer: "PreTrainedTokenizerFast") -> str:
    """Returns the SHA-256 (hex) of everything that decides tokens and ids (normalizer, model, special tokens).

    Truncation, padding and the template around a sequence are left out.
    """
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    parts = {name: state[name] for name in ("normalizer", "pre_tokenizer", "model", "added_tokens")}
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    text = json.dumps([parts, special], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def require_vocabulary(name: str, model: Any, tokenizer: Any) -> None:
    """Raises `UserError` if a tokenizer has ids beyond the embeddings of the model called `name`."""
    if len(tokenizer) > model.config.vocab_size:
        raise UserError(
            f"{flag('model_name_or_path', name)} has a vocabulary of {model.config.vocab_size}, but the tokenizer has "
            f"{len(tokenizer)} ids. Pass the tokenizer that the model was trained with.",
            setting="model_name_or_path",
        )
