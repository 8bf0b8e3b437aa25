"""The command `recipes`: list what can be trained."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gumbeltree.cli.app import app


@app.command()
def recipes() -> None:
    """List the recipes: published models and starting points for your own data.

    Example: gumbeltree recipes
    """
    from gumbeltree.config import load_recipe, recipe_names

    table = Table(box=None)
    table.add_column("recipe")
    table.add_column("description")
    for name in recipe_names():
        table.add_row(name, Text(load_recipe(name).description))
    Console().print(table)
