"""Text that comes from somebody else."""


def harmless(text: str) -> str:
    """Spells out what does not print, so that it does nothing to a terminal and forges no line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
