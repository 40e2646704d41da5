"""What JSON can spell and UTF-8 cannot hold."""


def half_surrogate(text: str) -> int | None:
    """Where a text has half a surrogate pair, which JSON can spell, no UTF-8 file can hold and no tokenizer accepts.

    Returns:
        The character's number from 1; None: the text is whole.
    """
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as error:
        return error.start + 1
    return None
