"""Tag schemes: the ways in which programs write entities as one tag per word, and their common form, BIO.

The tag of an entity consists of a letter, for the position of the word in the entity, and usually of the entity's type.
Programs differ in the letters and in how letter and type are joined:

    scheme   an entity of three words      an entity of one word
    BIO      B-PER I-PER I-PER             B-PER
    IOB1     I-PER I-PER I-PER             I-PER   (B- only if an entity of the same type comes directly before)
    IOE2     I-PER I-PER E-PER             E-PER
    BIOES    B-PER I-PER E-PER             S-PER
    BILOU    B-PER I-PER L-PER             U-PER
    BMES     B-PER M-PER E-PER             S-PER
    BMEW     B-PER M-PER E-PER             W-PER

All other words have the tag O. The letters have the same meaning in all schemes, so tags are translated one by one. How
letter and type are joined (`B-PER`, `B_PER`, `PER-B`, `b-per`, or `B` alone) is the notation, which is found by looking
at all tags of a split (`find_notation`).
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

UNNAMED_TYPE = "ENTITY"
"""Type of the entities whose tags have none (`B`, `I` and `O` alone)."""

# The position that each letter means: the first word of an entity (B), inside it (I), its last (E) or only word (S).
_ROLES = {"B": "B", "I": "I", "M": "I", "E": "E", "L": "E", "S": "S", "U": "S", "W": "S"}
_SCHEMES = {"BIO": "BI", "BIOES": "BIES", "BILOU": "BILU", "BMES": "BMES", "BMEW": "BMEW"}
_BIOES_TAG = re.compile("[BIES]-.+")
_OUTSIDE = frozenset({"o", "", "0", "_", "-", "*", "out", "outside", "other", "none"})
_NUMBER = re.compile(r"[-+]?[0-9]*[.]?[0-9]+")


@dataclass(frozen=True)
class TagNotation:
    """How the tags of entities are written.

    Args:
        separator: the character between letter and type; empty if tags have no type.
        is_suffix: whether the letter comes after the type (`PER-B`).
    """

    separator: str = "-"
    is_suffix: bool = False

    def split(self, tag: str) -> tuple[str, str] | None:
        """Returns the letter (upper case) and the type of an entity's tag, or None if the tag is not written so."""
        if not self.separator:
            letter, kind = tag, UNNAMED_TYPE
        elif self.is_suffix:
            kind, _, letter = tag.rpartition(self.separator)
        else:
            letter, _, kind = tag.partition(self.separator)
        if letter.upper() not in _ROLES or not kind:
            return None
        return letter.upper(), kind


PREFIX_AND_HYPHEN = TagNotation()
"""The usual notation, `B-PER`."""
# Letters before types are more usual than letters after them, so they are tried first.
_NOTATIONS = (
    *[TagNotation(separator) for separator in "-_:|./"],
    *[TagNotation(separator, is_suffix=True) for separator in "-_:|./"],
    TagNotation(separator=""),
)


def is_outside(tag: str) -> bool:
    """Returns whether a tag is one that marks words outside all entities: O, or what some programs write for it."""
    return tag.casefold() in _OUTSIDE


def is_bioes(tags: Collection[str]) -> bool:
    """Returns whether all tags are O, or one of the letters B, I, E and S, a hyphen and a type."""
    return all(tag == "O" or _BIOES_TAG.fullmatch(tag) for tag in tags)


def find_notation(tags: Collection[str], *, are_entities: bool = False) -> TagNotation | None:
    """Finds out how the tags of a split mark entities.

    Args:
        tags: the different tags.
        are_entities: whether the tags are known to mark entities, for example because the model's labels do.

    Returns:
        The notation, or None if the tags do not mark entities (parts of speech, for example), or not all of them do.
    """
    entity_tags = [tag for tag in tags if not is_outside(tag)]
    if not entity_tags:
        return None
    # This notation is so usual that no further evidence is needed.
    if all(_BIOES_TAG.fullmatch(tag) for tag in entity_tags):
        return PREFIX_AND_HYPHEN

    for notation in _NOTATIONS:
        letters = _letters(entity_tags, notation)
        if scheme_of(letters) is None:
            continue
        # Parts of speech can look like entities (`NN-S`, `s-adj`). Entities begin somewhere, and there are words
        # outside of them. Only letters without types may cover all words, as in the segmentation of Chinese into words.
        has_outside = len(entity_tags) < len(tags)
        is_usual = notation == PREFIX_AND_HYPHEN or bool(letters & {"B", "I", "M"})
        covers_all = not notation.separator and len(letters) > 1
        if are_entities or (is_usual and (has_outside or covers_all)):
            return notation
    return None


def _letters(entity_tags: Collection[str], notation: TagNotation) -> set[str]:
    """Returns the letters of the tags; nothing if one of them is not written in this notation."""
    letters = set()
    for tag in entity_tags:
        parts = notation.split(tag)
        if parts is None:
            return set()
        letters.add(parts[0])
    return letters


def scheme_of(letters: Collection[str]) -> str | None:
    """Returns the name of the first scheme that has all of these letters, or None."""
    if not letters:
        return None
    for name, scheme_letters in _SCHEMES.items():
        if set(letters) <= set(scheme_letters):
            return name
    return None


def describe_scheme(tags: Collection[str], notation: TagNotation) -> str:
    """Returns the scheme of tags with an example, for the log: "BILOU, for example U-PER"."""
    entity_tags = sorted(tag for tag in tags if not is_outside(tag))
    scheme = scheme_of(_letters(entity_tags, notation)) or "mixed"
    return f"{scheme}, for example {entity_tags[-1]}"


def why_perhaps_entities(tags: Collection[str]) -> str | None:
    """Returns why tags that are not scored as entities may be entities after all, or None.

    Args:
        tags: the different tags of a split for which `find_notation` returned None.
    """
    if len(tags) > 1 and all(_NUMBER.fullmatch(tag) for tag in tags):
        return "the tags are numbers and not names"
    # Tags that are neither O nor an entity's. If there is O, they are probably entities in another form.
    unknown_tags = sorted(tag for tag in tags if not is_outside(tag) and not _BIOES_TAG.fullmatch(tag))
    has_entity_tags = any(_BIOES_TAG.fullmatch(tag) for tag in tags)
    has_outside = any(is_outside(tag) for tag in tags) if has_entity_tags else "O" in tags
    if has_outside and unknown_tags:
        return f"there are words outside (O), but {unknown_tags[0]} is not a tag of a known scheme"
    return None


def to_bio(tags: Sequence[str], notation: TagNotation = PREFIX_AND_HYPHEN) -> list[str]:
    """Rewrites the tags of one sentence as BIO, in which B- opens every entity.

    Args:
        tags: tags of any scheme; IOB1 is CoNLL-2003's own. BIO is left as it is.
        notation: how the tags are written.

    Returns:
        O, or B- or I- and the type. A tag that is not written in this notation is returned unchanged.
    """
    converted = []
    # The role and type of the word before; no word, or a word outside, has none.
    previous: tuple[str, str] | None = None
    for tag in tags:
        # A word outside ends an entity.
        parts = notation.split(tag)
        if parts is None:
            converted.append("O" if is_outside(tag) else tag)
            previous = None
            continue
        letter, kind = parts
        # A word continues the entity before it if that has the same type and has not ended.
        role = _ROLES[letter]
        continues = previous is not None and previous[0] in "BI" and previous[1] == kind and role in "IE"
        converted.append(f"{'I' if continues else 'B'}-{kind}")
        previous = (role, kind)
    return converted
