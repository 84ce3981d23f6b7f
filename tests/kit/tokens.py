"""Files of tokens: of those that processes of a cluster present to each other, and of a client's."""

import secrets
from pathlib import Path


def token_settings(folder: Path) -> dict[str, str]:
    """Writes a new token into a folder; settings of processes that read it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "internal-tokens"
    file.touch(mode=0o600)
    file.write_text(secrets.token_urlsafe(32))
    return {"MUSTER_INTERNAL_TOKEN_FILE": str(file)}


def write_token(file: Path, token: str) -> None:
    """Puts a token into a file in one step, as whoever renews it does."""
    beside = file.with_name(file.name + ".new")
    beside.write_text(token + "\n")
    beside.rename(file)
