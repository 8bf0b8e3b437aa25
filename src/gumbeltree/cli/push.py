"""Commands that share models: push."""

from typing import Annotated

import typer

from gumbeltree.cli.app import app


@app.command()
def push(
    model: Annotated[
        str,
        typer.Argument(
            help="A model folder, the folder of a run, or a name of `gumbeltree models`."
        ),
    ],
    name: Annotated[str, typer.Argument(help="ORG/NAME on the Hugging Face Hub.")],
    private: Annotated[
        bool, typer.Option("--private", help="Only you and your organisation may see it.")
    ] = False,
    message: Annotated[str | None, typer.Option(help="Message of the commit.")] = None,
    license: Annotated[
        str | None, typer.Option(help="License of the weights, such as mit or cc-by-4.0.")
    ] = None,
    language: Annotated[str | None, typer.Option(help="Language of the texts, such as en.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print card and files; nothing leaves the machine.")
    ] = False,
) -> None:
    """Upload a model and its card to the Hugging Face Hub.

    A README.md of your own in the model folder is the card; otherwise one is generated.
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
    if (folder / CARD).is_file():
        own = (folder / CARD).read_text(encoding="utf-8")
        if not generated(own):
            if license or language:
                raise ValueError(
                    f"{folder / CARD} is your own card: write license and language into it, or "
                    "move it away to have one generated"
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
    typer.echo(
        loaded.push_to_hub(
            name, private=private or None, message=message, card=card, half_embeddings=half
        )
    )
