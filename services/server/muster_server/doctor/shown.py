"""Words of others on a terminal."""


def shown(text: str) -> str:
    """What a member or a caller said, harmless on a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
