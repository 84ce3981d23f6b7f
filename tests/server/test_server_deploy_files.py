"""Settings that docker-compose.yml and the Dockerfile name exist, and pages of the docs name no other."""

import re
from pathlib import Path

from muster_runtime.settings import TOOL_VARIABLES
from muster_server.roles import settings_classes

ROOT = Path(__file__).parents[2]
OWN = set(re.findall(r"\$\{(MUSTER_\w+)", (ROOT / "docker-compose.yml").read_text()))
"""Read by the compose file itself."""

FILES = (ROOT / "docker-compose.yml", ROOT / "Dockerfile", ROOT / "README.md", *ROOT.glob("docs/*.md"))


def test_named_settings_exist() -> None:
    known = {name for one in settings_classes() for name in one.variables()} | TOOL_VARIABLES | OWN
    for file in FILES:
        named = set(re.findall(r"\bMUSTER_[A-Z0-9_]*[A-Z0-9]\b(?![_*…])", file.read_text()))
        assert named <= known, (file.name, sorted(named - known))
