"""Hidden states of a frozen encoder, computed once and kept on disk (paper 5.3, Table 7).

A head on top of a frozen encoder reads the same states in every epoch, and all rows of Table 7 read the same ones. So
they are written once:

    CACHE/DIGEST/states.npy    float32 [L + 1, T, H]: the output of the embeddings, then that of every layer

The digest covers everything that decides the states: the weights and the configuration of the encoder, the token ids
and the precision. A changed model, tokenizer, length or context therefore never finds old states. float32, so that
training sees what the published model computes. CoNLL-2003 with BERT-base takes about 16 GB.

    L layers of the encoder     K of them that a head reads     H hidden size     N rows of a split     T its tokens
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
from bert_repro.finetuning.data import content_digest, rows_of
from bert_repro.models.modeling_bert_repro import BertReproTokenFeatures
from bert_repro.training.batches import Batch, collate_features
from bert_repro.utils.arrays import Int64Array, row_starts
from bert_repro.utils.files import atomic_path, create_array, json_digest

if TYPE_CHECKING:
    import datasets

logger = logging.getLogger("bert_repro")

STATES = "states.npy"

_REPLACED_INPUTS = ("input_ids", "token_type_ids", "position_ids")
_COMPUTING_SETTINGS = ("num_attention_heads", "hidden_act", "layer_norm_eps", "is_decoder", "_attn_implementation")
"""Settings of the configuration that change the states of equal weights."""


class States(NamedTuple):
    """The hidden states of a split.

    Args:
        values: float32 [L + 1, T, H], memory-mapped.
        starts: the first token of each row, int64 [N + 1].
    """

    values: npt.NDArray[np.float32]
    starts: Int64Array


class FeatureCache:
    """The hidden states of one frozen encoder, on disk.

    Args:
        config: the folder of the cache, batch size and precision.
        encoder: the `BertReproModel` of a model with `token_features`. It is never trained.
        device: the device that computes the states.
    """

    def __init__(self, config: NerConfig, encoder: Any, device: torch.device) -> None:
        self.config = config
        self.encoder = encoder
        self.device = device
        self.folder = Path(config.feature_cache_dir)
        self._encoder_digest = _digest_of_encoder(encoder)
        self._layers = BertReproTokenFeatures.LAYERS[encoder.config.token_features]
        # By `id` of the split. The split is stored too, because the id of a deleted object may be used again.
        self._loaded: dict[int, tuple[datasets.Dataset, States]] = {}

    def batch(self, features: "datasets.Dataset", rows: list[int], inputs: Batch) -> Batch:
        """Replaces the tokens of a batch by their hidden states.

        Args:
            features: the tokenized split.
            rows: the numbers of the batch's rows in it.
            inputs: the packed batch from `Task.collate`.

        Returns:
            Inputs of a tagging head, with `encoder_states`, float32 [1, T, K, H]: the layers that the head reads.
        """
        states, starts = self.load(features)
        parts = [states[self._layers, starts[row] : starts[row + 1]] for row in rows]
        batch = {name: value for name, value in inputs.items() if name not in _REPLACED_INPUTS}
        # [K, T, H] -> [1, T, K, H]
        batch["encoder_states"] = torch.from_numpy(np.concatenate(parts, axis=1)).transpose(0, 1).unsqueeze(0)
        return batch

    def load(self, features: "datasets.Dataset") -> States:
        """Returns the states of a split. They are computed if they are not on disk.

        Raises:
            UserError: the disk is full or not writable.
        """
        if id(features) in self._loaded:
            return self._loaded[id(features)][1]

        starts = row_starts(np.array(features["length"][:], dtype=np.int64))
        key = [self._encoder_digest, self.config.mixed_precision, content_digest(features)]
        path = self.folder / json_digest(key)[:24] / STATES
        if not path.is_file():
            # The file gets its name when it is complete, so a killed process leaves no half of it.
            with atomic_path(path) as unfinished:
                self._write(features, starts, unfinished)
            logger.info("The frozen encoder has computed %d tokens. Later runs read them from disk.", starts[-1])
        states = States(np.load(path, mmap_mode="r"), starts)
        self._loaded[id(features)] = features, states
        return states

    def _write(self, features: "datasets.Dataset", starts: Int64Array, path: Path) -> None:
        num_states = self.encoder.config.num_hidden_layers + 1
        states = create_array(path, np.float32, num_states, int(starts[-1]), self.encoder.config.hidden_size)
        batch_size = self.config.per_device_eval_batch_size
        was_training = self.encoder.training
        self.encoder.eval()
        for first in range(0, len(features), batch_size):
            last = min(first + batch_size, len(features))
            states[:, starts[first] : starts[last]] = self._states_of_rows(features, first, last)
        self.encoder.train(was_training)
        states.flush()

    @torch.no_grad()
    def _states_of_rows(self, features: "datasets.Dataset", first: int, last: int) -> npt.NDArray[np.float32]:
        """Returns the states of the rows from `first` to before `last`, float32 [L + 1, T, H]."""
        rows = rows_of(features, np.arange(first, last))
        batch = send_to_device(collate_features(rows, pad_token_id=0, packing=True), self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.mixed_precision == "bf16"):
            states = self.encoder(**batch, output_hidden_states=True).hidden_states
        return torch.stack([state[0].float() for state in states]).cpu().numpy()


def _digest_of_encoder(encoder: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for name in _COMPUTING_SETTINGS:
        digest.update(f"{name}={getattr(encoder.config, name)} ".encode())
    for name, parameter in sorted(encoder.named_parameters()):
        digest.update(name.encode() + parameter.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
