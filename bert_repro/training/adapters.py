"""Adapters through the `peft` library: a few added weights are trained, the checkpoint's own stay as they are.

The adapter is trained, together with the task's head and other weights that the checkpoint does not have (a pooler).
All of them are saved together:

    adapter/adapter_config.json        the kind of adapter and the checkpoint it belongs to
            adapter_model.safetensors  the trained weights only
            config.json ...            labels, tokenizer

After training the adapter is written and merged. Scores, predictions and the published folder are those of the merged
model, which is an ordinary one. The run's folder therefore loads like any other, and `adapter/` loads in peft.
"""

import importlib.metadata
import json
import logging
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
from torch import nn

from bert_repro.configs import ModelSettings
from bert_repro.errors import UserError, flag
from bert_repro.models.configuration_bert_repro import AUTO_CLASSES, UPSTREAM_MODEL_TYPE
from bert_repro.models.loading import save_tokenizer
from bert_repro.results import AdapterResults, TrainResults
from bert_repro.utils.files import ADAPTER, CARD, atomic_folder, write_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger("bert_repro")

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"

_TASK_TYPES = {"BertForSequenceClassification": "SEQ_CLS", "BertForTokenClassification": "TOKEN_CLS"}
"""Class of transformers -> name of the task in peft, for the heads that peft has classes for.

Question answering is left out: peft's class for it (0.21) drops segments and positions, but its general class, for
heads
without a task, does not."""
_TOKEN_PREDICTOR = "cls.predictions"


def is_adapted(model: Any) -> bool:
    """Returns whether a model has an adapter that is not merged."""
    return hasattr(model, "peft_config")


def add_adapter(model: Any, config: ModelSettings, new_weights: Sequence[str]) -> Any:
    """Adds an adapter to a model and freezes everything but the adapter, the head and new weights.

    Args:
        model: one of our models, as loaded.
        config: its `peft`, `lora_*` and `model_name_or_path` are used.
        new_weights: names of the weights that the checkpoint does not have.

    Returns:
        A `peft.PeftModel`.

    Raises:
        UserError: the checkpoint does not have the head that predicts tokens.
    """
    import peft

    missing_head = [name for name in new_weights if name.startswith(_TOKEN_PREDICTOR)]
    if missing_head:
        raise UserError(
            f"{flag('model_name_or_path', config.model_name_or_path)} does not contain {missing_head[0]}, which an "
            f"adapter cannot replace. Leave out {flag('peft')}, or pass a checkpoint with its masked-language head.",
            setting="model_name_or_path",
        )
    with warnings.catch_warnings():
        # peft uses older names of transformers' functions.
        warnings.simplefilter("ignore", FutureWarning)
        return peft.get_peft_model(model, _peft_config(model, config, new_weights))


def save(model: Any, folder: Path) -> None:
    """Writes adapter_config.json and adapter_model.safetensors.

    Args:
        model: an adapted model.
        folder: an existing folder.
    """
    # With the default "auto", peft would look the vocabulary up on the Hub. The embeddings are never resized here.
    model.save_pretrained(folder, save_embedding_layers=False)
    # peft's card is a blank form.
    (folder / CARD).unlink()

    path = folder / CONFIG
    content = json.loads(path.read_text(encoding="utf-8"))
    # peft writes sets with repetitions, in another order every time.
    for name in ("target_modules", "modules_to_save"):
        content[name] = sorted(set(content[name] or ())) or None

    # The class that `AutoPeftModel` builds: that of transformers if its outputs are equal, else ours.
    base_model = model.get_base_model()
    base_class = type(base_model)
    head = next(head for head in AUTO_CLASSES.values() if head.ours == base_class.__name__)
    if base_model.config.has_upstream_counterpart([head]):
        task_type = _TASK_TYPES.get(head.upstream)
        auto_mapping = {"base_model_class": head.upstream, "parent_library": "transformers"}
    else:
        task_type = None
        auto_mapping = {"base_model_class": base_class.__name__, "parent_library": base_class.__module__}
    content["task_type"] = task_type
    content["auto_mapping"] = None if task_type else auto_mapping
    write_json(path, dict(sorted(content.items())))


def load(model: Any, folder: Path) -> tuple[list[str], list[str]]:
    """Loads saved weights into a model that has the same kind of adapter.

    Args:
        model: an adapted model.
        folder: folder that `save` wrote.

    Returns:
        Names that only the model has, and names that only the folder has.
    """
    import peft

    # Both sides use peft's names, without the name of the adapter.
    weights = safetensors.torch.load_file(folder / WEIGHTS)
    own = set(peft.get_peft_model_state_dict(model, save_embedding_layers=False))
    if own == set(weights):
        peft.set_peft_model_state_dict(model, weights)
    return sorted(own - set(weights)), sorted(set(weights) - own)


def merge_and_save(
    model: Any, tokenizer: "PreTrainedTokenizerBase", output_dir: Path, *, write: bool
) -> tuple[Any, TrainResults]:
    """Writes the trained adapter of a run and merges it. A model without an adapter stays as it is.

    Args:
        model: the unwrapped model after training.
        tokenizer: saved with the adapter.
        output_dir: the run's folder.
        write: whether this process writes.

    Returns:
        The merged model, of the class that it had before, and its part of the results.
    """
    if not is_adapted(model):
        return model, {}
    num_trained, num_parameters = model.get_nb_trainable_parameters()
    method = model.peft_config["default"]
    uses_dora = getattr(method, "use_dora", False)
    facts: AdapterResults = {
        "kind": "dora" if uses_dora else method.peft_type.value.lower(),
        "target_modules": sorted(method.target_modules),
        "trained_parameters": num_trained,
        "trained_share": num_trained / num_parameters,
        "peft": importlib.metadata.version("peft"),
    }
    logger.info(
        "Adapter: %s of %s weights were trained (%.2f%%).",
        f"{num_trained:,}",
        f"{num_parameters:,}",
        100 * num_trained / num_parameters,
    )
    # Written before it is merged: merging changes the weights that it was trained for.
    if write:
        with atomic_folder(output_dir / ADAPTER) as folder:
            save(model, folder)
            save_tokenizer(tokenizer, folder)
    return model.merge_and_unload(), {"adapter": facts}


def _peft_config(model: nn.Module, config: ModelSettings, new_weights: Iterable[str]) -> Any:
    import peft

    # The layers that peft adapts in a BERT by default.
    target_modules = peft.utils.constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING[UPSTREAM_MODEL_TYPE]
    return peft.LoraConfig(
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        use_dora=config.peft == "dora",
        target_modules=list(target_modules),
        modules_to_save=_trained_modules(model, new_weights) or None,
    )


def _trained_modules(model: Any, new_weights: Iterable[str]) -> list[str]:
    """Returns the modules that are trained as a whole: the task's head, and those with new weights.

    The heads of pre-training (`cls`) stay frozen if the checkpoint has them.
    """
    # A head is a child of the model that is neither the encoder nor a head of pre-training.
    heads: set[str] = set()
    for name, child in model.named_children():
        has_parameters = next(child.parameters(), None) is not None
        if has_parameters and name not in (model.base_model_prefix, "cls"):
            heads.add(name)
    modules_with_new_weights = {name.rpartition(".")[0] for name in new_weights}
    others = {name for name in modules_with_new_weights if name.partition(".")[0] not in heads}
    return sorted(heads | others)
