"""Draw the pictures of docs/draw.md with the packaged models.

    python benchmarks/draw_docs.py [--out docs/images]

The short sentence is that of the paper's Figure 4; the long one shows the layout of many words.
"""

import argparse
from pathlib import Path

import gumbeltree
from gumbeltree.analysis.figure import draw_trees
from gumbeltree.analysis.film import draw_film
from gumbeltree.analysis.trace import trace

DOCS = Path(__file__).parent.parent / "docs"
SHORT = "i love this very much ."
LONG = (
    "the film that my sister and i saw last night at the old theatre by the river was not nearly "
    "as bad as the papers had said , and although the story made little sense to anyone who had "
    "not read the book , the two leads were so warm and so funny that we laughed to the end ."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=DOCS / "images")
    out = parser.parse_args().out
    models = {name: gumbeltree.load(name) for name in ("sst2-100d", "snli-100d")}
    short = [(name, trace(model, SHORT)) for name, model in models.items()]
    draw_trees(short).save(out / "draw-figure4.svg")
    draw_trees(short).save(out / "draw-figure4.png")
    draw_film(short).save(out / "draw-film.svg")
    draw_film(short).save(out / "draw-film.gif")
    draw_trees([("sst2-100d", trace(models["sst2-100d"], LONG))]).save(out / "draw-long.svg")


if __name__ == "__main__":
    main()
