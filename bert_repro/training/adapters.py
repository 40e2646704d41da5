"""Adapters through the `peft` library: a few added weights are trained, the checkpoint's own stay as they are.

What trains is the adapter, the task's head and what else the checkpoint lacks (a pooler); all of it is saved together:

    adapter/adapter_config.json        the kind of adapter and the checkpoint it belongs to
            adapter_model.safetensors  the trained weights alone
            config.json ...            labels, tokenizer

After training the adapter is written and merged, and everything that follows (scores, predictions, the published
folder) is about the merged model, an ordinary one. So the run's folder loads as any other, and `adapter/` in peft.
"""

import importlib.metadata
import json
import logging
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import safetensors.torch

from bert_repro.errors import UserError
from bert_repro.models.configuration_bert_repro import AUTO_CLASSES, UPSTREAM_MODEL_TYPE
from bert_repro.models.loading import save_tokenizer
from bert_repro.results import AdapterResults, TrainResults
from bert_repro.utils.files import ADAPTER, CARD, atomic_folder, write_json

logger = logging.getLogger("bert_repro")

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_TASK_TYPES = {"BertForSequenceClassification": "SEQ_CLS", "BertForTokenClassification": "TOKEN_CLS"}
"""What peft calls the heads that it has classes for, by the class of transformers. Not question answering: that class
of peft (0.21) drops segments and positions, while its general one, which takes a head without a type, passes all on."""
_TOKEN_PREDICTOR = "cls.predictions"


def is_adapted(model: Any) -> bool:
    """Returns whether a model carries an adapter that is not merged."""
    return hasattr(model, "peft_config")


def add_adapter(model: Any, config: Any, new_weights: Iterable[str]) -> Any:
    """Puts an adapter on a model and freezes everything but the adapter, the head and new weights.

    Args:
        model: one of our models, as loaded.
        config: its `peft`, `lora_*` and `model_name_or_path`.
        new_weights: names of the weights that the checkpoint lacked.

    Returns:
        A `peft.PeftModel`.

    Raises:
        UserError: the checkpoint lacks the head that predicts tokens.
    """
    import peft

    lacking = next((name for name in new_weights if name.startswith(_TOKEN_PREDICTOR)), None)
    if lacking:
        raise UserError(
            f"--model_name_or_path {config.model_name_or_path}: lacks {lacking}, which an adapter cannot replace; "
            "leave out --peft, or name a checkpoint with its masked-language head"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks newer transformers by older names
        return peft.get_peft_model(model, _peft_config(model, config, new_weights))


def save(model: Any, folder: Path) -> None:
    """Writes adapter_config.json and adapter_model.safetensors.

    Args:
        model: an adapted model.
        folder: an existing folder.
    """
    # "auto" would look the vocabulary up on the Hub; the embeddings are never resized here.
    model.save_pretrained(folder, save_embedding_layers=False)
    (folder / CARD).unlink()  # peft's blank form; the run's card says what is known
    path = folder / CONFIG
    written = json.loads(path.read_text(encoding="utf-8"))
    for name in ("target_modules", "modules_to_save"):  # sets and repetitions, in another order every time
        written[name] = sorted(set(written[name] or ())) or None
    adapted = model.get_base_model()
    base = type(adapted)
    head = next(head for head in AUTO_CLASSES.values() if head.ours == base.__name__)
    # What a plain `AutoPeftModel` builds: the class of transformers with equal outputs, if there is one, else ours.
    upstream = head.upstream if adapted.config.has_upstream_counterpart([head]) else None
    built = {"base_model_class": upstream or base.__name__, "parent_library": base.__module__}
    built |= {"parent_library": "transformers"} if upstream else {}
    written["task_type"] = _TASK_TYPES.get(upstream or "")
    written["auto_mapping"] = None if written["task_type"] else built
    write_json(path, dict(sorted(written.items())))


def load(model: Any, folder: Path) -> tuple[list[str], list[str]]:
    """Puts saved weights into a model that carries the same kind of adapter.

    Args:
        model: an adapted model.
        folder: where `save` wrote.

    Returns:
        Names that the model has and the folder lacks, and the other way round.
    """
    import peft

    weights = safetensors.torch.load_file(folder / WEIGHTS)
    own = set(peft.get_peft_model_state_dict(model, save_embedding_layers=False))
    if own == set(weights):
        peft.set_peft_model_state_dict(model, weights)
    return sorted(own - set(weights)), sorted(set(weights) - own)


def merge_and_save(model: Any, tokenizer: Any, output_dir: Path, *, write: bool) -> tuple[Any, TrainResults]:
    """Merges the trained adapter of a run after writing it; a model without one stays as it is.

    Args:
        model: the unwrapped model after training.
        tokenizer: saved with the adapter.
        output_dir: the run's folder.
        write: whether this process writes.

    Returns:
        The merged model, of the class it had before, and its part of the results.
    """
    if not is_adapted(model):
        return model, {}
    trained, total = model.get_nb_trainable_parameters()
    method = model.peft_config["default"]
    facts: AdapterResults = {
        "kind": "dora" if getattr(method, "use_dora", False) else method.peft_type.value.lower(),
        "target_modules": sorted(method.target_modules),
        "trained_parameters": trained,
        "trained_share": trained / total,
        "peft": importlib.metadata.version("peft"),
    }
    logger.info("adapter: %s of %s weights trained (%.2f%%)", f"{trained:,}", f"{total:,}", 100 * trained / total)
    if write:
        with atomic_folder(output_dir / ADAPTER) as folder:
            save(model, folder)
            save_tokenizer(tokenizer, folder)
    return model.merge_and_unload(), {"adapter": facts}


def _peft_config(model: Any, config: Any, new_weights: Iterable[str]) -> Any:
    import peft

    return peft.LoraConfig(
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        use_dora=config.peft == "dora",
        target_modules=list(
            peft.utils.constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING[UPSTREAM_MODEL_TYPE]
        ),
        modules_to_save=_trained_modules(model, new_weights) or None,
    )


def _trained_modules(model: Any, new_weights: Iterable[str]) -> list[str]:
    """Returns the task's head, and the modules that hold weights of their own that the checkpoint lacked.

    The heads of pre-training (`cls`) stay frozen where the checkpoint has them.
    """
    heads = {
        name
        for name, child in model.named_children()
        if name not in (model.base_model_prefix, "cls") and any(True for _ in child.parameters())
    }
    new = {name.rpartition(".")[0] for name in new_weights}
    return sorted(heads | {name for name in new if name.partition(".")[0] not in heads})
