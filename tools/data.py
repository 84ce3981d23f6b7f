"""Writes the tables of docs/data.md from the code."""

import inspect
from pathlib import Path

from muster_audit.lake.reading import DAY_DOC
from muster_audit.lake.row import Row, columns
from muster_audit.lake.tables import ALL

PAGE = Path(__file__).resolve().parent.parent / "docs" / "data.md"
BEGIN, END = "<!-- Tables, written by `./x data` from the code. -->\n", "<!-- End of the tables. -->\n"


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


def page(stored: str) -> str:
    """The page with its tables as the code has them."""
    head, _, rest = stored.partition(BEGIN)
    _, _, foot = rest.partition(END)
    return f"{head}{BEGIN}\n{chr(10).join(map(table, ALL.values()))}\n{END}{foot}"


def main() -> None:
    """Entry point of `./x data`."""
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
    print(f"data: {len(ALL)} tables written to {PAGE.name}")


if __name__ == "__main__":
    main()
