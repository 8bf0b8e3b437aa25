"""Print lines and tables of results."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gumbeltree.answers import ResultTable

NARROWEST = 72
"""Minimum console width at which all figures fit."""


def console_width() -> int:
    """Return the width of results in characters."""
    return max(Console().width, NARROWEST)


def print_results(results: Iterable[str | ResultTable]) -> None:
    """Print lines of text, and tables of figures with their titles."""
    console = Console()
    console.width = console_width()

    def print_line(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    for result in results:
        if isinstance(result, str):
            print_line(result)
            continue
        if result.title:
            print_line(f"\n{result.title}")
        grid = Table()
        grid.add_column(Text(result.header[0]), overflow="fold", min_width=8)
        for name in result.header[1:]:
            grid.add_column(Text(name), justify="right", overflow="fold", min_width=5)
        for row in result.rows:
            grid.add_row(*map(Text, row))
        console.print(grid)


def print_list(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table of text without borders."""
    table = Table(*header, box=None)
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)
