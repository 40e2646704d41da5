"""Fonts for names in any script: matplotlib's own font has no Chinese, Japanese, Korean or emoji, for example.

    fonts = fonts_for([title, *label_names])
    with fonts.used():
        axis.set_title(fonts.shown(title))

Characters that no installed font has are replaced, so matplotlib never draws boxes and never warns.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_PLACEHOLDER = "?"
# This font has a box for every character, which shows nothing.
_WITHOUT_GLYPHS = "Last Resort"


@dataclass(frozen=True)
class Fonts:
    """The fonts for some texts.

    Args:
        families: names of font families, in the order in which a character is looked up.
        missing: the characters of the texts that none of them has.
    """

    families: tuple[str, ...]
    missing: frozenset[str]

    def can_show(self, text: str) -> bool:
        """Returns whether every character of a text has a glyph."""
        return self.missing.isdisjoint(text)

    def shown(self, text: str) -> str:
        """Returns a text with a question mark for each character without a glyph."""
        return "".join(_PLACEHOLDER if character in self.missing else character for character in text)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Makes matplotlib use these fonts inside the block."""
        from matplotlib import rc_context

        with rc_context({"font.family": list(self.families)}):
            yield


def fonts_for(texts: Iterable[str]) -> Fonts:
    """Returns matplotlib's own font and, for the characters that it lacks, other installed fonts."""
    from matplotlib import font_manager

    standard = font_manager.FontProperties().get_name()
    families = [standard]
    missing = set("".join(texts)) - {" ", "\n"}
    missing -= _characters_of(font_manager.findfont(standard))
    for font in font_manager.fontManager.ttflist:
        if not missing:
            break
        if font.style != "normal" or _WITHOUT_GLYPHS in font.name:
            continue
        present = missing & _characters_of(font.fname)
        if present:
            families.append(font.name)
            missing -= present
    return Fonts(tuple(families), frozenset(missing))


def _characters_of(path: str) -> set[str]:
    """Returns the characters that a font file has; none if the file cannot be read."""
    from matplotlib import font_manager

    try:
        return {chr(code) for code in font_manager.get_font(path).get_charmap()}
    except (OSError, RuntimeError):
        return set()
