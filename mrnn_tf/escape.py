"""Text of others, made safe to print: no terminal escapes, no forged lines."""

_JOINERS = "\u200c\u200d"  # invisible, but parts of words in some scripts


def printable(text: str) -> str:
    r"""The text with everything that is not a visible character or a space as its escape.

    >>> printable("a dog\n\x1b[31m runs")
    'a dog\\n\\x1b[31m runs'
    """
    if text.isprintable():
        return text
    return "".join(each if is_visible(each) else _escape(each) for each in text)


def is_visible(character: str) -> bool:
    return character.isprintable() or character in _JOINERS


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()
