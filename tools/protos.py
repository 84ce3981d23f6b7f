"""Generates the stubs of protos/ into the package muster_protos, or checks that they are up to date.

protoc writes absolute imports (`from muster.v1 import …`) that the client's package `muster` would
shadow; they are rewritten to `muster_protos.muster.v1`.
"""

import argparse
import re
import sys
import tempfile
from pathlib import Path

from grpc_tools import _protoc_compiler, protoc  # type: ignore[import-untyped]  # there are no stubs

ROOT = Path(__file__).resolve().parent.parent / "protos"
PACKAGE = ROOT / "src" / "muster_protos"
IMPORT = re.compile(r"^(\s*)(from|import) (muster(?:\.\w+)*)\b", re.MULTILINE)

# mypy-protobuf names what it imports by the full path of the module
FULL_PATH = re.compile(r"(?<![\w./\"'])muster\.((?:internal\.|log\.)?v1\.\w+_pb2)")


def generate(target: Path) -> None:
    """Writes all stubs below `target`."""
    sources = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "muster").rglob("*.proto"))
    well_known = Path(protoc.__file__).parent / "_proto"
    arguments = [
        "protoc",
        f"-I{ROOT}",
        f"-I{well_known}",
        *(f"--{kind}_out={target}" for kind in ("python", "grpc_python")),
        f"--plugin=protoc-gen-mypy={Path(sys.executable).parent / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={Path(sys.executable).parent / 'protoc-gen-mypy_grpc'}",
        f"--mypy_out=quiet:{target}",
        f"--mypy_grpc_out=quiet:{target}",
        *sources,
    ]
    if _protoc_compiler.run_main([part.encode() for part in arguments]) != 0:
        sys.exit("protos: protoc failed")
    for path in sorted(target.rglob("*.py*")):
        path.write_text(_rewritten(path.read_text()))
    for folder in {path.parent for path in target.rglob("*_pb2.py")} | {target / "muster"}:
        for level in (folder, *folder.parents):
            if level == target:
                break
            (level / "__init__.py").touch()


def _rewritten(text: str) -> str:
    """Points imports of `muster…` and their uses at `muster_protos.muster…`."""
    text = IMPORT.sub(r"\1\2 muster_protos.\3", text)
    return FULL_PATH.sub(r"muster_protos.muster.\1", text)


def main() -> None:
    """Entry point of `./x protos` and of the check."""
    parser = argparse.ArgumentParser(prog="./x protos", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if it would change")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        generate(fresh)
        new = {path.relative_to(fresh): path.read_bytes() for path in fresh.rglob("*") if path.is_file()}
        have = PACKAGE / "muster"
        old = {
            p.relative_to(PACKAGE): p.read_bytes()
            for p in have.rglob("*")
            if p.is_file() and p.suffix in {".py", ".pyi"}
        }
        if options.check:
            stale = sorted(str(path) for path in new.keys() | old.keys() if new.get(path) != old.get(path))
            if stale:
                sys.exit("protos: stubs are not up to date, run ./x protos: " + ", ".join(stale))
            print("protos: stubs are up to date")
            return
        for path in old.keys() - new.keys():
            (PACKAGE / path).unlink()
        for path, content in new.items():
            (PACKAGE / path).parent.mkdir(parents=True, exist_ok=True)
            (PACKAGE / path).write_bytes(content)
        print(f"protos: {len(new)} files written")


if __name__ == "__main__":
    main()
