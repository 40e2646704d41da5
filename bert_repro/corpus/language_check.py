"""Finds a corpus that does not look like its `--language`, because the language decides how sentences are found."""

from dataclasses import dataclass, field
from typing import Any

from bert_repro.errors import flag

COMMON_WORDS = {
    "ca": "de la i a el que en per un les",
    "da": "i og at er en til af på det der",
    "de": "der die und in von den das mit ist zu",
    "en": "the of and to in a is that was for",
    "es": "de la que el en y a los del se",
    "fr": "de la le et les des en un à du",
    "hi": "के में की है और से का को पर ने",
    "it": "di e che la il in un a per è",
    "nl": "de van het een en in is op te dat",
    "pl": "i w na z się nie do to że jest",
    "pt": "de a e o que do da em um os",
    "ru": "и в не на с что по он как к",
    "uk": "і в на не з що у до та за",
}
"""The ten commonest words of languages; in running text they are 15 to 30% of all words."""
FEWEST_COMMON_WORDS = 0.07
WORDS_TO_JUDGE = 1000
LONG_SENTENCE_TOKENS = 100
"""Running text has 15 to 40 tokens per sentence on average."""


@dataclass
class LanguageSigns:
    """Words that were counted in a sample of the text.

    Args:
        words: language -> words that were looked at.
        common_words: language -> those that are in `COMMON_WORDS`.
    """

    words: dict[str, int] = field(default_factory=dict)
    common_words: dict[str, int] = field(default_factory=dict)

    def count(self, language: str, text: str) -> None:
        """Counts the words of a text. Languages without a list are left out."""
        common = COMMON_WORDS.get(language)
        if common is None:
            return
        words = text.lower().split()
        known = frozenset(common.split())
        self.words[language] = self.words.get(language, 0) + len(words)
        num_common = sum(word in known for word in words)
        self.common_words[language] = self.common_words.get(language, 0) + num_common

    def add(self, other: "LanguageSigns") -> None:
        """Adds the counts of another sample."""
        for language, count in other.words.items():
            self.words[language] = self.words.get(language, 0) + count
            self.common_words[language] = self.common_words.get(language, 0) + other.common_words[language]

    def messages(self, counts: dict[str, Any]) -> list[str]:
        """Returns warnings.

        Args:
            counts: tokens and sentences of the corpus, from its manifest.
        """
        messages = []
        # Each language by itself: a corpus of several may be wrong in one.
        for language, num_words in self.words.items():
            share = self.common_words[language] / max(1, num_words)
            if num_words >= WORDS_TO_JUDGE and share < FEWEST_COMMON_WORDS:
                messages.append(
                    f"The text may not be in {flag('language', language)}: only {100 * share:.1f}% of its words are "
                    f"among the ten commonest of that language. The language decides how sentences are found; set "
                    f"{flag('language')} to the language of the text."
                )
        # A splitter that does not know the script finds hardly any sentence ends.
        tokens_per_sentence = counts["tokens"] / max(1, counts["sentences"])
        if tokens_per_sentence > LONG_SENTENCE_TOKENS:
            messages.append(
                f"Sentences have {tokens_per_sentence:.0f} tokens on average, so most sentence ends were not found. "
                f"Check {flag('language')}, which decides how sentences are found."
            )
        return messages
