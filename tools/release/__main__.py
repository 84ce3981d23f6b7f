"""`./x release --dry-run`: makes all of a release, checks it, and says what would be published."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from tools.release import checks, images, parts
from tools.release.provenance import statement

ROOT = Path(__file__).resolve().parents[2]
UV = str(Path(sys.executable).with_name("uv"))


def main() -> int:
    """Exit code 1: something is wrong, and what it is was printed; 2: not called as it must be."""
    parser = argparse.ArgumentParser(prog="./x release", description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="publish nothing; there is no other way yet")
    parser.add_argument(
        "--no-images", action="store_true", help="distributions alone; needs no Docker engine"
    )
    asked = parser.parse_args()
    if not asked.dry_run:
        parser.error("publishing is done by hand: --dry-run makes everything and prints the commands")
    problems = [f"{name}: {wrong}" for name, check in checks.BEFORE.items() for wrong in check(ROOT)]
    if problems:
        return _failed(problems)
    print(f"checked: {', '.join(checks.BEFORE)}")
    if not asked.no_images and not images.can_be_built():
        return _failed(["no Docker engine answers: images cannot be built; --no-images makes the rest"])
    started = datetime.now(UTC)
    version = checks.version_of(ROOT)
    folder = ROOT / "build" / "release" / version
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _distributions(folder)
    for lock, (project, _) in checks.LOCKED.items():
        name = str(checks.project_of((ROOT / project).parent)["name"])
        parts.of_lock(ROOT / lock, ROOT / project, folder / f"{name}-{version}.cdx.json")
    made: Mapping[str, images.Image] = {}
    if not asked.no_images:
        made = {target: images.build(ROOT, target, f"muster-{target}:{version}") for target in images.TARGETS}
    for target, image in made.items():
        _describe(image, target, version, folder)
        problems += images.problems(image, target)
    artefacts = {file.name: checks.digest(file) for file in folder.iterdir()}
    artefacts |= {image.tag: image.digest for image in made.values()}
    provenance = json.dumps(statement(ROOT, artefacts, started), indent=2)
    (folder / "provenance.intoto.json").write_text(provenance + "\n", "utf-8")
    files = sorted(folder.iterdir())
    (folder / "SHA256SUMS").write_text(
        "".join(f"{checks.digest(file)}  {file.name}\n" for file in files), "utf-8"
    )
    problems += [f"digests: {wrong}" for wrong in checks.sums(folder)]
    if problems:
        return _failed(problems)
    _say_what_would_be_published(folder, version, made)
    return 0


def _distributions(folder: Path) -> None:
    """Builds wheels and sources; the same commit gives the same bytes."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(checks.commit_time(ROOT))}
    for source in checks.DISTRIBUTIONS:
        command = [UV, "build", "--quiet", "--no-build-isolation", "--python", sys.executable]
        subprocess.run([*command, "--out-dir", str(folder), str(ROOT / source)], check=True, env=environment)
    (folder / ".gitignore").unlink(missing_ok=True)


def _describe(image: images.Image, target: str, version: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as copy:
        with images.copy_of(image.tag, "/opt/muster/lib") as library:
            library.extractall(copy, filter="tar")
        with images.copy_of(image.tag, "/var/lib/dpkg/status") as status:
            (member,) = status.getmembers()
            opened = status.extractfile(member)
            assert opened is not None
            installed = opened.read().decode()
        (packages,) = Path(copy).glob("lib/python3*/site-packages")
        name = f"muster-{target}"
        count = parts.of_image(
            name, version, packages, installed, folder / f"{name}-image-{version}.cdx.json"
        )
    print(f"{image.tag}: {image.added_bytes / 1e6:.1f} MB above its base, {count} parts, user {image.user}")


def _say_what_would_be_published(folder: Path, version: str, made: Mapping[str, images.Image]) -> None:
    print(f"\n{folder.relative_to(ROOT)}:")
    for file in sorted(folder.iterdir()):
        print(f"  {file.stat().st_size:>9,}  {file.name}")
    print("\nnothing was published; a release would be:")
    print(f"  git tag -s v{version} {checks.commit(ROOT)} && git push origin v{version}")
    print(f"  uv publish {folder.relative_to(ROOT)}/*.whl {folder.relative_to(ROOT)}/*.tar.gz")
    for image in made.values():
        print(f"  docker push {image.tag}    # sha256:{image.digest}")
    print("  and beside them: SHA256SUMS, provenance.intoto.json (to be signed), *.cdx.json")


def _failed(problems: list[str]) -> int:
    for problem in problems:
        print(f"release: {problem}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
