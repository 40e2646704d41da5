"""Compares what a conversion wrote with what it read: every tensor, outputs for sample sentences, the tokenizer.

The outputs of the checkpoint itself come from `original_forward`; those of the published folder from our classes and
from upstream transformers', both loaded from disk.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bert_repro.conversion.original_forward import original_outputs
from bert_repro.conversion.original_names import HEAD_NAMES, TensorPair
from bert_repro.models.configuration_bert_repro import AUTO_CLASSES, BertReproConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Array = npt.NDArray[Any]

TOLERANCE = 1e-5
"""Largest difference of outputs, as a share of the largest output where that is above 1."""
SENTENCES = (
    ("The committee published its findings in 1984, two years late.", "Nobody had read the first report."),
    ("Señor Müller's café isn't open; naïve façades (see p. 12) cost $3,000.50!", None),
    ("北京 is the capital of 中国, and Tōkyō that of Japan.", "Где находится Москва?"),
    ("unbelievably antidisestablishmentarianism supercalifragilistic", None),
    ("McDonald's CEO, Dr. J. O'Neil-Smith, e-mailed foo@example.com at 5:30pm.", "What??? No... #winning"),
)
"""Pairs of sentences (the second may be missing) on which outputs and tokens are compared."""
_SHOWN = 5


class DifferenceError(RuntimeError):
    """What was written differs from what was read; nothing was published."""


def check_tensors(written: Mapping[str, Array], original: Mapping[str, Array], pairs: Sequence[TensorPair]) -> None:
    """Checks that every tensor was written bit by bit.

    Args:
        written: by our names.
        original: by original names, with the original axes.
        pairs: what was converted.

    Raises:
        DifferenceError: one differs, or more or others were written.
    """
    names = {pair.name for pair in pairs}
    if set(written) != names:
        raise DifferenceError(f"tensors that should not be there, or are missing: {sorted(set(written) ^ names)}")
    for pair in pairs:
        if not np.array_equal(pair.as_original(written[pair.name]), original[pair.original]):
            raise DifferenceError(f"{pair.name} differs from {pair.original}")


def sample_inputs(tokenizer: "PreTrainedTokenizerBase", config: BertReproConfig) -> dict[str, Array]:
    """Returns the sample sentences as ids, mask and segments, int64 [B, S] each."""
    first, second = zip(*SENTENCES, strict=True)
    length = min(64, config.max_position_embeddings)
    rows = [
        tokenizer(a, b, truncation=True, max_length=length, padding="max_length")
        for a, b in zip(first, second, strict=True)
    ]
    used = max(sum(row["attention_mask"]) for row in rows)
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = {name: np.array([row[name][:used] for row in rows], dtype=np.int64) for name in names}
    inputs["token_type_ids"] = np.minimum(inputs["token_type_ids"], config.type_vocab_size - 1)
    return inputs


def compare_outputs(
    models: Mapping[str, "PreTrainedModel"], tensors: Mapping[str, Array], head: str, inputs: Mapping[str, Array]
) -> dict[str, dict[str, float]]:
    """Compares the outputs of loaded models with those of the checkpoint's tensors, at tokens that are not padding.

    Args:
        models: name of a way to load -> model.
        tensors: by original name, with the original axes.
        head: a key of `HEAD_NAMES`.
        inputs: of `sample_inputs`.

    Returns:
        Way to load -> output -> largest difference, as a share of the largest value where that is above 1.

    Raises:
        DifferenceError: one is above `TOLERANCE`.
    """
    config = next(iter(models.values())).config
    expected = original_outputs(tensors, config, head, inputs)
    found = {way: _differences(model, expected, head, inputs) for way, model in models.items()}
    for way, differences in found.items():
        for name, difference in differences.items():
            if not difference <= TOLERANCE:
                raise DifferenceError(f"{name} of {way} differs from the checkpoint's by {difference:.1e}")
    return found


def _differences(
    model: "PreTrainedModel", expected: Mapping[str, Array], head: str, inputs: Mapping[str, Array]
) -> dict[str, float]:
    import torch

    given = {name: torch.from_numpy(values) for name, values in inputs.items()}
    if head == "multiple_choice":
        given = {name: values[None] for name, values in given.items()}
    with torch.no_grad():
        outputs = model.eval()(**given)
    real = inputs["attention_mask"].astype(bool)
    found = {}
    for name, right in expected.items():
        values = outputs[name].double().numpy()
        if head == "multiple_choice":
            values = values.T
        if right.shape[:2] == real.shape:  # a value for every token
            values, right = values[real], right[real]
        found[name] = float(np.abs(values - right).max() / max(1.0, np.abs(right).max()))
    return found


def load_both_ways(folder: Path, head: str) -> dict[str, "PreTrainedModel"]:
    """Loads a published folder with our class and with upstream transformers', in float32."""
    import torch
    import transformers

    from bert_repro.models import modeling_bert_repro

    names = AUTO_CLASSES[HEAD_NAMES[head]]
    options = {"dtype": torch.float32, "trust_remote_code": False, "use_safetensors": True}
    ours = getattr(modeling_bert_repro, names.ours).from_pretrained(folder, **options)
    upstream = getattr(transformers, names.upstream).from_pretrained(folder, **options)
    return {"our class": ours, "upstream transformers": upstream}


def compare_tokenizers(
    folder: Path, vocabulary: Mapping[str, int], *, lowercase: bool, max_chars: int
) -> dict[str, Any]:
    """Compares the tokenizer of a published folder with the original algorithm on the same vocabulary.

    The original's Python code lives on in transformers as `BertTokenizerLegacy`. Rare characters are known to differ
    (docs/DEVIATIONS.md), so entries of the vocabulary that do are counted; the sample sentences must be equal.

    Args:
        folder: the published folder, with its vocab.txt.
        vocabulary: entry -> id, as the checkpoint's vocab.txt has them.
        lowercase: whether the model is uncased.
        max_chars: longer words are unknown.

    Returns:
        What was compared, ready for JSON.

    Raises:
        DifferenceError: ids of a vocabulary entry or tokens of a sample sentence differ.
    """
    from transformers import AutoTokenizer
    from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

    saved = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    legacy = BertTokenizerLegacy(str(folder / "vocab.txt"), do_lower_case=lowercase)
    legacy.wordpiece_tokenizer.max_input_chars_per_word = max_chars
    if not saved.get_vocab() == dict(legacy.vocab) == dict(vocabulary):
        raise DifferenceError("the saved tokenizer has other entries than vocab.txt")
    texts = [text for pair in SENTENCES for text in pair if text]
    for text in texts:
        if saved.tokenize(text) != legacy.tokenize(text):
            raise DifferenceError(f"tokens of {text!r}: {saved.tokenize(text)} in place of {legacy.tokenize(text)}")
    words = [entry for entry in legacy.vocab if entry not in legacy.all_special_tokens]
    different = [word for word in words if saved.tokenize(word) != legacy.tokenize(word)]
    return {
        "entries": len(words),
        "sentences_with_equal_tokens": len(texts),
        "entries_with_equal_tokens": len(words) - len(different),
        "entries_with_other_tokens": different[:_SHOWN],
    }
