"""The command `push`: share a model on the Hugging Face Hub."""

from typing import Annotated

import typer

from gumbeltree.cli import completion, streams
from gumbeltree.cli.app import app


@app.command()
def push(
    model: Annotated[
        str,
        typer.Argument(
            help="A model folder, a run folder or a packaged model.",
            autocompletion=completion.models,
        ),
    ],
    name: Annotated[str, typer.Argument(help="ORG/NAME on the Hugging Face Hub.")],
    private: Annotated[
        bool, typer.Option("--private", help="Create a private repository.")
    ] = False,
    message: Annotated[str | None, typer.Option(help="Commit message.")] = None,
    license: Annotated[
        str | None, typer.Option(help="Licence of the weights, for example mit or cc-by-4.0.")
    ] = None,
    language: Annotated[
        str | None, typer.Option(help="Language of the texts, for example en.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the card and the files without uploading them.")
    ] = False,
    plugin: streams.Plugin = None,
) -> None:
    """Upload a model and its card to the Hugging Face Hub.

    A README.md of your own in the model folder is uploaded as the card; otherwise, a card is
    generated.

    Example: gumbeltree push demo/model ORG/NAME --license mit --dry-run
    """
    from gumbeltree.card import generated, model_card
    from gumbeltree.hub import CARD, check_id
    from gumbeltree.model import load
    from gumbeltree.store import CONFIG, TOKENIZER, WEIGHTS, find_model, has_half_embeddings

    check_id(name)
    folder = find_model(model)
    loaded = load(folder)
    card = model_card(loaded, name, license, language)
    readme = folder / CARD
    if readme.is_file() and not generated(own := readme.read_text(encoding="utf-8")):
        if license or language:
            raise ValueError(
                f"{readme} is your own card; set license and language in it, or remove it to "
                "generate a card"
            )
        card = own
    if dry_run:
        typer.echo(card)
        typer.echo(f"Would upload to {name}{', private' if private else ''}:")
        for file in (CONFIG, WEIGHTS, TOKENIZER):
            typer.echo(f"  {file}, {(folder / file).stat().st_size:,} bytes")
        typer.echo(f"  {CARD}, {len(card.encode()):,} bytes")
        return
    half = has_half_embeddings(folder)
    url = loaded.push_to_hub(
        name, private=private or None, message=message, card=card, half_embeddings=half
    )
    typer.echo(url)
