"""Writes the tables and views of docs/data.md from the code."""

import argparse
import inspect
from pathlib import Path

from muster_audit.lake.insights import views
from muster_audit.lake.reading import DAY_DOC
from muster_audit.lake.row import Row, columns
from muster_audit.lake.tables import ALL

PAGE = Path(__file__).resolve().parent.parent / "docs" / "data.md"
BEGIN, END = "<!-- Written by `./x data` from the code. -->\n", "<!-- End of what is written. -->\n"


def table(row: type[Row]) -> str:
    """A table: what a row is, and its columns."""
    lines = [
        f"### `{row.table}`\n",
        (inspect.getdoc(row) or "") + "\n",
        "| column | type | |",
        "|---|---|---|",
    ]
    lines += [f"| `{one.name}` | {one.type} | {one.doc} |" for one in columns(row)]
    return "\n".join([*lines, f"| `day` | string | {DAY_DOC} |\n"])


def view(name: str, text: str) -> str:
    """A view: its name and what its file says first."""
    said = [line.removeprefix("--").strip() for line in text.splitlines() if line.startswith("--")]
    return f"| `{name}` | {' '.join(said)} |"


def page(stored: str) -> str:
    """The page with its tables as the code has them."""
    head, _, rest = stored.partition(BEGIN)
    _, _, foot = rest.partition(END)
    tables = "\n".join(map(table, ALL.values()))
    listed = "\n".join(view(name, text) for name, text in views().items())
    return f"{head}{BEGIN}\n{tables}\n## Views\n\n| view | |\n|---|---|\n{listed}\n\n{END}{foot}"


def main() -> None:
    """Entry point of `./x data`."""
    argparse.ArgumentParser(prog="./x data", description=(__doc__ or "").partition("\n")[0]).parse_args()
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
    print(f"data: {len(ALL)} tables written to {PAGE.name}")


if __name__ == "__main__":
    main()
