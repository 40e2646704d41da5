"""The feature-based approach (paper 5.3, Table 7): a tagger on top of a frozen encoder's hidden states.

The states are computed once and kept on disk. Their folder is named by a digest of all that decides them: the encoder's
weights, the very token ids, and the precision. So a changed model, tokenizer, length or context never meets stale
states, and every row of Table 7 reads the same ones.

    CACHE/DIGEST/states.npy    (L + 1, T, H) float32: the embeddings' output, then every layer's; read through a map
"""

import hashlib
import logging
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from bert_repro.configs import NerConfig
from bert_repro.data.collators import collate_features
from bert_repro.presets import FEATURE_BILSTM_LAYERS, FEATURE_BILSTM_SIZE
from bert_repro.training.batches import to_device

if TYPE_CHECKING:
    import datasets

logger = logging.getLogger("bert_repro")

STATES = "states.npy"
_FIELDS = ("input_ids", "token_type_ids")
_REPLACED = ("input_ids", "token_type_ids", "position_ids")


def model_changes(config: Any) -> dict[str, Any]:
    """Settings of the model's configuration that a fine-tuning run's flags ask for, for `from_pretrained`.

    Args:
        config: any fine-tuning configuration.
    """
    row = getattr(config, "feature_based", None)
    if row is None:
        return {} if config.bilstm_size is None else {"bilstm_size": config.bilstm_size}
    return {
        "token_features": row,
        "bilstm_size": config.bilstm_size or FEATURE_BILSTM_SIZE,
        "bilstm_layers": FEATURE_BILSTM_LAYERS,
        "normalize_feature_weights": config.feature_weights == "softmax",
    }


class FeatureCache:
    """Hidden states of one frozen encoder, on disk.

    Args:
        config: the cache's folder, batch size and precision.
        encoder: a `BertReproModel`; put into evaluation mode here and never trained.
        device: where it computes.
    """

    def __init__(self, config: NerConfig, encoder: Any, device: torch.device) -> None:
        self.config, self.encoder, self.device = config, encoder, device
        self.folder = Path(config.feature_cache_dir)
        self.seconds = 0.0  # that the encoder has computed for this run
        self._weights = _weights_digest(encoder)
        self._loaded: dict[str, tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]] = {}

    def batch(self, features: "datasets.Dataset", rows: list[int], inputs: dict[str, Any]) -> dict[str, Any]:
        """Puts the states of some features in the place of their tokens.

        Args:
            features: the tokenised split that the rows belong to.
            rows: which of its rows.
            inputs: what the task collated them to, packed.

        Returns:
            The inputs of a tagging head, with `encoder_states`, float32 (1, T, L + 1, H).
        """
        states, starts = self.load(features)
        parts = [states[:, starts[row] : starts[row + 1]] for row in rows]
        batch = {name: value for name, value in inputs.items() if name not in _REPLACED}
        batch["encoder_states"] = torch.from_numpy(np.concatenate(parts, axis=1)).transpose(0, 1).unsqueeze(0)
        return batch

    def load(self, features: "datasets.Dataset") -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """The states of a split, computed unless they are on disk.

        Args:
            features: the tokenised split.

        Returns:
            All states, float32 (L + 1, T, H), memory-mapped; and where each text begins, int64 (N + 1).
        """
        name = features._fingerprint
        if name not in self._loaded:
            folder = self.folder / self._digest(features)
            if not (folder / STATES).exists():
                self._compute(features, folder)
            starts = np.concatenate([[0], np.cumsum(features["length"][:])]).astype(np.int64)
            self._loaded[name] = np.load(folder / STATES, mmap_mode="r"), starts
        return self._loaded[name]

    def _digest(self, features: "datasets.Dataset") -> str:
        digest = hashlib.sha256(f"{self._weights} {self.config.mixed_precision}".encode())
        for start in range(0, len(features), 1000):
            columns = features[start : start + 1000]
            for row in (row for name in _FIELDS for row in columns[name]):
                digest.update(np.asarray(row, dtype=np.int32).tobytes() + b"|")
        return digest.hexdigest()[:24]

    def _compute(self, features: "datasets.Dataset", folder: Path) -> None:
        """Computes the states into a folder of its own and moves it in, so that a half one is never taken for whole."""
        began = time.perf_counter()
        stage = folder.with_name(f".{folder.name}.{os.getpid()}")
        shutil.rmtree(stage, ignore_errors=True)
        stage.mkdir(parents=True)
        lengths = np.asarray(features["length"][:])
        shape = (self.encoder.config.num_hidden_layers + 1, int(lengths.sum()), self.encoder.config.hidden_size)
        states = np.lib.format.open_memmap(stage / STATES, mode="w+", dtype=np.float32, shape=shape)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        size = self.config.per_device_eval_batch_size
        for first in range(0, len(lengths), size):
            last = min(first + size, len(lengths))
            states[:, starts[first] : starts[last]] = self._encode(features, first, last)
        states.flush()
        try:
            os.replace(stage, folder)
        except OSError:  # another process was first
            shutil.rmtree(stage)
        self.seconds += time.perf_counter() - began
        logger.info(
            "features of %d texts, %d tokens: %.1f s of the frozen encoder", len(lengths), shape[1], self.seconds
        )

    @torch.no_grad()
    def _encode(self, features: "datasets.Dataset", first: int, last: int) -> npt.NDArray[np.float32]:
        columns = features[first:last]
        rows = [
            dict(zip(_FIELDS, values, strict=True)) for values in zip(*(columns[name] for name in _FIELDS), strict=True)
        ]
        batch = to_device(collate_features(rows, pad_token_id=0, packing=True), self.device)
        self.encoder.eval()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.mixed_precision == "bf16"):
            states = self.encoder(**batch, output_hidden_states=True).hidden_states
        array: npt.NDArray[np.float32] = torch.stack([state[0].float() for state in states]).cpu().numpy()
        return array


def _weights_digest(encoder: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for name, parameter in sorted(encoder.named_parameters()):
        digest.update(name.encode() + parameter.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
