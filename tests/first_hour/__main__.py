"""`python -m tests.first_hour`: tries every finding and prints a table; exit status 1 if any would surprise a user."""

import sys

from rich.console import Console
from rich.table import Table

from tests.first_hour.findings import all_findings


def main() -> int:
    console = Console()
    table = Table("", "tried", "what happens now", title="The first hour")
    failed = 0
    for found in all_findings():
        try:
            now = found.try_it()
        except Exception as error:
            failed += 1
            now = f"[red]{type(error).__name__}: {error}[/]"
        table.add_row(found.number, found.tried, now)
    console.print(table)
    console.print(f"{table.row_count} findings, {failed} of them would surprise a user")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
