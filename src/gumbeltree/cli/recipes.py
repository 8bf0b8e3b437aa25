"""The command `recipes`: list what can be trained."""

from gumbeltree.cli.app import app


@app.command()
def recipes() -> None:
    """List the recipes, both for the models of the paper and for your own data.

    Example: gumbeltree recipes
    """
    from gumbeltree.cli.tables import print_list
    from gumbeltree.config import load_recipe, recipe_names

    rows = [(name, load_recipe(name).description) for name in recipe_names()]
    print_list(("recipe", "description"), rows)
