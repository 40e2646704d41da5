"""Loads checkpoints for the recipes: every model that a recipe reads comes through here.

Files are checked before anything is built (`bert_repro.hub.model_files`): safetensors only, no code of the checkpoint
runs, and whatever is wrong with them ends in one line.
"""

import logging
from typing import Any

import torch

from bert_repro.configs import RunConfig
from bert_repro.errors import UserError
from bert_repro.hub.model_files import check_model
from bert_repro.training import adapters
from bert_repro.utils.randomness import torch_seed

logger = logging.getLogger("bert_repro")

INITIALIZATION = 2  # what is drawn, in the names of `randomness.draw`; trainer.DROPOUT is 1


def load_model(model_class: Any, config: Any, *, may_add_weights: bool, **options: Any) -> Any:
    """Loads `--model_name_or_path` for a run, with its adapter where `--peft` asks for one.

    Args:
        model_class: one of our model classes.
        config: its `model_name_or_path`, `attn_implementation`, `seed` and `gradient_checkpointing`.
        may_add_weights: whether weights that the checkpoint lacks, or a head of another size, may be initialized.
        options: what else `from_pretrained` takes, for example `id2label`.

    Raises:
        UserError: there is no such checkpoint, it does not fit, or it lacks weights that may not be new.
    """
    name = config.model_name_or_path
    if adapters.is_adapter(name):
        raise UserError(
            f"--model_name_or_path {name}: is an adapter alone; name the run's folder above it, which holds the merged "
            "model, or the checkpoint the adapter belongs to"
        )
    torch.manual_seed(torch_seed(config.seed, INITIALIZATION))
    options["attn_implementation"] = config.attn_implementation
    model, info = load_pretrained(model_class, name, ignore_mismatched_sizes=True, **options)
    missing, mismatched = set(info["missing_keys"]), sorted(info["mismatched_keys"])
    for key, saved, wanted in mismatched:
        if not may_add_weights or key.startswith(f"{model.base_model_prefix}."):
            raise UserError(
                f"--model_name_or_path {name}: {key} has the shape {list(saved)}, where its configuration asks for "
                f"{list(wanted)}; get the model again"
            )
    if missing and not may_add_weights:
        raise UserError(f"--model_name_or_path {name}: lacks {min(missing)}; name a finished model, or add --do_train")
    new = sorted(missing | {key for key, *_ in mismatched})
    if new:
        modules = dict.fromkeys(key.rpartition(".")[0] for key in new)
        logger.info("new weights, not in %s: %s", name, ", ".join(modules))
    model = prepare_model(model, config)
    if config.peft:
        torch.manual_seed(torch_seed(config.seed, INITIALIZATION, 1))
        model = adapters.add_adapter(model, config, new)
    return model


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
        UserError: there is no such checkpoint, or it cannot be read.
    """
    quiet_transformers()  # its report of missing and unused weights is replaced by one line of ours
    check_model(name, flag)
    options |= {"dtype": torch.float32, "output_loading_info": True}
    options |= {"use_safetensors": True, "trust_remote_code": False}
    try:
        model, info = model_class.from_pretrained(name, **options)
    except Exception as error:  # whatever the library raises about a file, it is the file that is wrong
        raise UserError(f"{flag} {name}: {first_line(error)}") from error
    return model, info


def require_vocabulary(name: str, model: Any, tokenizer: Any) -> None:
    """Raises `UserError` where a tokenizer has ids beyond the embeddings of the model called `name`."""
    if len(tokenizer) > model.config.vocab_size:
        raise UserError(
            f"--model_name_or_path {name}: its vocabulary of {model.config.vocab_size} is smaller than the tokenizer's "
            f"{len(tokenizer)} ids; name the tokenizer it was trained with"
        )


def extend_longest_input(name: str, tokenizer: Any, length: int) -> None:
    """Lets the tokenizer that a training run saves truncate at `length` tokens, where the model `name` read fewer."""
    trained = tokenizer.model_max_length
    if length > trained:
        logger.warning(
            "%s: its tokenizer truncates at %d tokens, so positions from there to %d may be untrained",
            name,
            trained,
            length,
        )
        tokenizer.model_max_length = length


def prepare_model(model: Any, config: RunConfig) -> Any:
    """Applies the settings that every model takes, new or loaded."""
    if config.gradient_checkpointing:
        # The first name is the later one; transformers 5.17 has the second alone.
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable()
    return model


def quiet_transformers() -> None:
    """Silences transformers' warnings and progress bars."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text that says something, or its type."""
    return next((line.strip()[:300] for line in str(error).splitlines() if line.strip()), type(error).__name__)
