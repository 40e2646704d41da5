"""Counts what a tokenizer loses of a text: words that become [UNK], and letters that lose accents or vowel signs.

An uncased BERT tokenizer removes every nonspacing mark (Unicode category Mn). For English that is harmless. German
"Änderungen" becomes "anderungen", Hindi loses most vowel signs, Japanese が becomes か. Characters outside the
vocabulary turn the whole word into [UNK].
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

NOTICEABLE_SHARE = 0.01
"""Losses above this share are shown to the user."""

_LETTERS = re.compile(r"[^\W\d_]")
_TEXTS_PER_BATCH = 1000


@dataclass
class TokenizerLosses:
    """Counts over a text; they can be added.

    Args:
        tokens: all tokens.
        unknown_tokens: those that are [UNK].
        letters: letters of the text, without their marks.
        lost_marks: accents and vowel signs that the tokenizer removes.
    """

    tokens: int = 0
    unknown_tokens: int = 0
    letters: int = 0
    lost_marks: int = 0

    def __iadd__(self, other: "TokenizerLosses") -> "TokenizerLosses":
        self.tokens += other.tokens
        self.unknown_tokens += other.unknown_tokens
        self.letters += other.letters
        self.lost_marks += other.lost_marks
        return self

    @property
    def unknown_share(self) -> float:
        """[UNK] among all tokens, from 0 to 1."""
        return self.unknown_tokens / max(1, self.tokens)

    @property
    def lost_marks_share(self) -> float:
        """Lost marks for each letter."""
        return self.lost_marks / max(1, self.letters)

    def messages(self, *, unknown_remedy: str, marks_remedy: str) -> list[str]:
        """Returns a sentence for each loss above `NOTICEABLE_SHARE`.

        Args:
            unknown_remedy: a sentence that says what to do against [UNK].
            marks_remedy: a sentence that says how to keep accents and vowel signs.
        """
        messages = []
        if self.unknown_share > NOTICEABLE_SHARE:
            messages.append(f"{100 * self.unknown_share:.1f}% of the tokens are [UNK]. {unknown_remedy}")
        if self.lost_marks_share > NOTICEABLE_SHARE:
            messages.append(
                f"The tokenizer removes accents or vowel signs from {100 * self.lost_marks_share:.1f}% of the letters. "
                f"{marks_remedy}"
            )
        return messages


def count_losses(texts: Iterable[str], tokenizer: Any) -> TokenizerLosses:
    """Tokenizes texts and counts what is lost.

    Args:
        texts: a sample is enough; a thousand texts take well below a second.
        tokenizer: a tokenizer of transformers with a `tokenizers` backend, or that backend.
    """
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    unknown = backend.token_to_id("[UNK]")
    removes_marks = strips_accents(backend.normalizer)
    losses = TokenizerLosses()
    batch: list[str] = []

    def count_batch() -> None:
        for encoding in backend.encode_batch_fast(batch, add_special_tokens=False):
            losses.tokens += len(encoding.ids)
            losses.unknown_tokens += encoding.ids.count(unknown)
        batch.clear()

    for text in texts:
        losses += count_marks(text, removes_marks)
        batch.append(text)
        if len(batch) == _TEXTS_PER_BATCH:
            count_batch()
    count_batch()
    return losses


def count_marks(text: str, removes_marks: bool) -> TokenizerLosses:
    """Counts the letters of a text and the marks that are lost.

    Args:
        text: the text, not normalized.
        removes_marks: whether the tokenizer removes them; see `strips_accents`.
    """
    letters = len(_LETTERS.findall(text))
    if not removes_marks or text.isascii():
        return TokenizerLosses(letters=letters)
    decomposed = unicodedata.normalize("NFD", text)
    marks = sum(unicodedata.category(character) == "Mn" for character in decomposed if not character.isascii())
    return TokenizerLosses(letters=letters, lost_marks=marks)


def strips_accents(normalizer: Any) -> bool:
    """Returns whether a normalizer of the `tokenizers` library removes accents; None is a tokenizer without one."""
    return normalizer is not None and normalizer.normalize_str("é") == "e"


def is_uncased(tokenizer: Any) -> bool:
    """Returns whether a tokenizer of transformers turns capital letters into small ones."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    return normalizer is not None and normalizer.normalize_str("A") == "a"
