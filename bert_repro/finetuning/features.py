"""The feature-based approach (paper 5.3, Table 7): a tagger on top of a frozen encoder's hidden states.

The states are computed once and kept on disk. Their folder is named by a digest of everything that decides them: the
encoder's weights and configuration, the token ids, and the precision. So a changed model, tokenizer, length or context
never finds stale states, and every row of Table 7 reads the same ones.

    CACHE/DIGEST/states.npy    (L + 1, T, H) float32: the embeddings' output, then every layer's; read through a map

All layers are stored, so that one pass of the encoder serves every row of the table; a row reads its own layers only.
float32, so that training sees what the published model computes. CoNLL-2003 with BERT-base takes about 16 GB, with
`--ner_context centred` far more. The file is renamed into place when it is complete.
"""

import hashlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from accelerate.utils import send_to_device

from bert_repro.configs import NerConfig
from bert_repro.configs.presets import FEATURE_BILSTM_LAYERS, FEATURE_BILSTM_SIZE
from bert_repro.finetuning.data import content_digest, rows_of
from bert_repro.models.modeling_bert_repro import BertReproTokenFeatures
from bert_repro.training.batches import collate_features
from bert_repro.utils.files import atomic_path, create_array, json_digest

if TYPE_CHECKING:
    import datasets

logger = logging.getLogger("bert_repro")

STATES = "states.npy"
_REPLACED = ("input_ids", "token_type_ids", "position_ids")
_COMPUTING = ("num_attention_heads", "hidden_act", "layer_norm_eps", "is_decoder", "_attn_implementation")
"""Settings that decide an encoder's states, its weights apart."""


class States(NamedTuple):
    """The hidden states of a split.

    Args:
        values: float32 (L + 1, T, H), memory-mapped.
        starts: where each text begins among the T tokens, int64 (N + 1).
    """

    values: npt.NDArray[np.float32]
    starts: npt.NDArray[np.int64]


def model_changes(config: Any) -> dict[str, Any]:
    """Returns the settings of the model's configuration that a fine-tuning run's flags ask for.

    Args:
        config: any fine-tuning configuration.
    """
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob", "bilstm_size")
    asked = {name: getattr(config, name) for name in names if getattr(config, name) is not None}
    row = getattr(config, "feature_based", None)
    if row is None:
        return asked
    return asked | {
        "token_features": row,
        "bilstm_size": config.bilstm_size or FEATURE_BILSTM_SIZE,
        "bilstm_layers": FEATURE_BILSTM_LAYERS,
        "normalize_feature_weights": config.feature_weights == "softmax",
    }


class FeatureCache:
    """Hidden states of one frozen encoder, on disk.

    Args:
        config: the cache's folder, batch size and precision.
        encoder: the `BertReproModel` of a model with `token_features`; never trained.
        device: where it computes.
    """

    def __init__(self, config: NerConfig, encoder: Any, device: torch.device) -> None:
        self.config, self.encoder, self.device = config, encoder, device
        self.folder = Path(config.feature_cache_dir)
        self._encoder_digest = _digest_encoder(encoder)
        self._layers = BertReproTokenFeatures.LAYERS[encoder.config.token_features]
        self._loaded: dict[int, tuple[datasets.Dataset, States]] = {}

    def batch(self, features: "datasets.Dataset", rows: list[int], inputs: dict[str, Any]) -> dict[str, Any]:
        """Replaces the tokens of some features by their hidden states.

        Args:
            features: the tokenized split that the rows belong to.
            rows: which of its rows.
            inputs: what the task collated them to, packed.

        Returns:
            The inputs of a tagging head, with `encoder_states`, float32 (1, T, K, H): the layers that its row reads.
        """
        states, starts = self.load(features)
        parts = [states[self._layers, starts[row] : starts[row + 1]] for row in rows]
        batch = {name: value for name, value in inputs.items() if name not in _REPLACED}
        batch["encoder_states"] = torch.from_numpy(np.concatenate(parts, axis=1)).transpose(0, 1).unsqueeze(0)
        return batch

    def load(self, features: "datasets.Dataset") -> States:
        """Returns the states of a split, computed unless they are on disk.

        Raises:
            UserError: the disk has too little room for them, or cannot be written.
        """
        if id(features) not in self._loaded:
            starts = np.concatenate([[0], np.cumsum(features["length"][:])]).astype(np.int64)
            key = [self._encoder_digest, self.config.mixed_precision, content_digest(features)]
            path = self.folder / json_digest(key)[:24] / STATES
            if not path.is_file():
                with atomic_path(path) as stage:
                    self._write(features, starts, stage)
                logger.info("the frozen encoder computed %d tokens; later runs read them from disk", starts[-1])
            states = States(np.load(path, mmap_mode="r"), starts)
            self._loaded[id(features)] = features, states  # the split is kept, so that its id stays its own
        return self._loaded[id(features)][1]

    def _write(self, features: "datasets.Dataset", starts: npt.NDArray[np.int64], stage: Path) -> None:
        shape = (self.encoder.config.num_hidden_layers + 1, int(starts[-1]), self.encoder.config.hidden_size)
        states = create_array(stage, np.float32, *shape)
        size, was_training = self.config.per_device_eval_batch_size, self.encoder.training
        self.encoder.eval()
        for first in range(0, len(features), size):
            last = min(first + size, len(features))
            states[:, starts[first] : starts[last]] = self._encode(features, first, last)
        self.encoder.train(was_training)
        states.flush()

    @torch.no_grad()
    def _encode(self, features: "datasets.Dataset", first: int, last: int) -> npt.NDArray[np.float32]:
        rows = rows_of(features, np.arange(first, last))
        batch = send_to_device(collate_features(rows, pad_token_id=0, packing=True), self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.mixed_precision == "bf16"):
            states = self.encoder(**batch, output_hidden_states=True).hidden_states
        array: npt.NDArray[np.float32] = torch.stack([state[0].float() for state in states]).cpu().numpy()
        return array


def _digest_encoder(encoder: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for name in _COMPUTING:
        digest.update(f"{name}={getattr(encoder.config, name)} ".encode())
    for name, parameter in sorted(encoder.named_parameters()):
        digest.update(name.encode() + parameter.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
