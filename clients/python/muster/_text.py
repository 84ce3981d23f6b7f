"""Text from outside, made safe to print."""


def harmless(text: str) -> str:
    """Escapes unprintable characters, so that they do nothing to a terminal and forge no line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
