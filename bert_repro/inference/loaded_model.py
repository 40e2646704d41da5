"""A pre-trained model with its tokenizer, ready to read texts; shared by `features` and `scoring`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bert_repro.errors import UserError, flag
from bert_repro.models.loading import load_pretrained, load_tokenizer, require_vocabulary
from bert_repro.tasks.columns import require_columns, texts
from bert_repro.tasks.data import TABLES, read_file
from bert_repro.training.batches import Batch, collate_features, on_device
from bert_repro.utils.readers import format_of, numbered_lines
from bert_repro.utils.text_encodings import UTF_8

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode with its tokenizer.

    Args:
        model: one of our models, on its device.
        tokenizer: its tokenizer.
        mixed_precision: `bf16` or `no`.
    """

    model: Any
    tokenizer: "PreTrainedTokenizerBase"
    mixed_precision: str

    @classmethod
    def load(
        cls, model_class: Any, name: str, *, mixed_precision: str, missing_remedy: str, **options: Any
    ) -> "LoadedModel":
        """Loads a checkpoint and puts it on the GPU, if there is one.

        Args:
            model_class: one of our model classes.
            name: a folder, or an id of the Hub.
            mixed_precision: `bf16` or `no`.
            missing_remedy: a sentence that says what to do if the checkpoint lacks weights of the class.
            options: further arguments of `from_pretrained`.

        Raises:
            UserError: the checkpoint cannot be read, lacks weights, or does not fit its tokenizer.
        """
        model, info = load_pretrained(model_class, name, **options)
        if info["missing_keys"]:
            raise UserError(
                f"{flag('model_name_or_path', name)} lacks the weights {min(info['missing_keys'])}. {missing_remedy}",
                setting="model_name_or_path",
            )
        tokenizer = load_tokenizer(name)
        require_vocabulary(name, model, tokenizer)
        model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
        return cls(model, tokenizer, mixed_precision)

    def packed(self, features: Sequence[Mapping[str, Any]]) -> Batch:
        """Returns a batch without padding, on the model's device; see `collate_features`."""
        pad_token_id = int(self.tokenizer.pad_token_id)  # type: ignore[arg-type]
        return on_device(collate_features(features, pad_token_id=pad_token_id, packing=True), self.model.device)

    def autocast(self) -> AbstractContextManager[Any]:
        """Returns a context in which the model computes in the precision that was set."""
        return torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.mixed_precision == "bf16")


def read_texts(path: Path, column: str, encoding: str = UTF_8) -> Iterator[str]:
    """Yields the texts of a file: a column of a table or of JSON lines, else each line, even an empty one.

    Args:
        path: the file.
        column: the column.
        encoding: encoding of a file of text.

    Raises:
        UserError: the file has another encoding, or has no such column of texts.
    """
    if format_of(path) not in TABLES:
        for _, line in numbered_lines(path, encoding):
            yield line
        return
    rows = read_file(path, encoding=encoding)
    require_columns(rows, [column], str(path), f"name the column of text with {flag('text_column')}")
    yield from texts(rows, column, str(path), missing="")
