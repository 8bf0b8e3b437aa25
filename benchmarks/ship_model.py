"""Make a model that ships inside the package out of trained ones.

    python benchmarks/ship_model.py RUN_OR_MODEL... --name sst2-100d \\
        --out src/gumbeltree/pretrained --check sst2-100d.safetensors

Of several runs, or of a folder with several seeds, the one with the best development accuracy is
taken, of equals the one with the lowest seed. Its word vectors are rounded to float16. Words can be
left out: `--extra-words N` keeps the first N of those that came from the vector file, `--megabytes`
as many words as fit, those of the vector file going first and then the rarest of the data.

`--check` compares the result with the original on the development and test splits of the prepared
file that it was trained on; where development accuracy drops by more than 0.1 points, nothing is
written. The accuracies that it measures go into config.json and card. Without it they are those
of the training run, and the card says so.
"""

import argparse
import dataclasses
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from gumbeltree.atomic import replace_file
from gumbeltree.card import model_card
from gumbeltree.data import Split
from gumbeltree.data.prepared import Prepared, load_prepared
from gumbeltree.evaluate import evaluate
from gumbeltree.fetch import SOURCES
from gumbeltree.hub import CARD
from gumbeltree.model import SentenceModel, load, save
from gumbeltree.store import CONFIG, TOKENIZER, WEIGHTS, find_model, read_config
from gumbeltree.text.tokenizer import PAD, UNKNOWN

FILES = (CONFIG, WEIGHTS, TOKENIZER, CARD)
MOST_LOST = 0.001
"""How much of the development accuracy may be lost, as a share of the examples."""
MORE = 1000
"""Bytes that measured accuracies may add to config.json and card."""

# what a task's examples come from, and the licence of a model trained on them
TASKS = {"snli": ("snli", "cc-by-sa-4.0"), "sst2": ("sst", "other"), "sst5": ("sst", "other")}
# more than `gumbeltree data get --list` says
TERMS = {"sst": "free for research, cite the paper; its makers state no licence"}


def candidates(folders: Sequence[Path]) -> list[Path]:
    """Return the model folders meant: a folder of several seeds stands for all of them."""
    found = []
    for folder in folders:
        seeds = sorted(folder.glob("seed-*"))
        found += [folder] if find_model(folder) != folder or not seeds else seeds
    return [find_model(folder) for folder in found]


def best_of(folders: Sequence[Path]) -> Path:
    """Return the model with the best development accuracy; of equals that of the lowest seed."""
    ranked = []
    for folder in folders:
        about = read_config(folder).get("provenance", {})
        accuracy = about.get("metrics", {}).get("dev_accuracy")
        if accuracy is None:
            raise ValueError(
                f"{folder}: expected a development accuracy in its provenance, got none; train it "
                "to the end"
            )
        ranked.append((-accuracy, about.get("seed", 0), folder, about.get("recipe_name")))
        print(f"{folder}: dev {accuracy:.2%}, seed {about.get('seed', 'not recorded')}")
    recipes = sorted({str(recipe) for *_, recipe in ranked})
    if len(recipes) > 1:
        raise ValueError(f"expected models of one recipe, got {', '.join(recipes)}; name fewer")
    return min(ranked, key=lambda row: row[:2])[2]


def ordered_words(tokenizer: Tokenizer) -> list[str]:
    """Return the words by id, without <pad> and <unk>: those of the data, the frequent first.

    Then come the words of the vector file that the data lacks, in its order.
    """
    ids = tokenizer.get_vocab()
    return [word for word in sorted(ids, key=ids.__getitem__) if word not in (PAD, UNKNOWN)]


def with_words(model: SentenceModel, words: Sequence[str]) -> SentenceModel:
    """Return a model that knows only `words`; all else is the same, and <unk> for the others."""
    description = json.loads(model.tokenizer.to_str())
    if description["model"]["type"] != "WordLevel":
        raise ValueError(f"expected a tokenizer of words, got {description['model']['type']}")
    before = model.tokenizer.get_vocab()
    kept = [*words, *(word for word in (PAD, UNKNOWN) if word in before)]
    description["model"]["vocab"] = {word: i for i, word in enumerate(kept)}
    smaller = SentenceModel(model.config, Tokenizer.from_str(json.dumps(description)))
    rows = torch.tensor([before[word] for word in kept])
    weights = model.state_dict()
    weights["embedding.weight"] = weights["embedding.weight"][rows]
    smaller.to(weights["embedding.weight"].dtype).load_state_dict(weights)
    smaller.provenance = model.provenance
    return smaller.eval()


def kept_extra(model: SentenceModel, extra: int) -> list[str]:
    """Return the words of the data and the first `extra` of the others."""
    counts = model.provenance.get("data", {}).get("vocabulary", {})
    words = ordered_words(model.tokenizer)
    if counts.get("training", 0) + counts.get("extra", 0) != len(words):
        raise ValueError(
            f"--extra-words needs to know which of the {len(words):,} words are of the data, got "
            f"{counts or 'nothing'} in the provenance; leave it out"
        )
    return words[: counts["training"] + extra]


def fitting(model: SentenceModel, size: int, limit: int) -> list[str]:
    """Return as many of the first words as fit.

    Args:
        model: whose words they are.
        size: bytes with all of them.
        limit: bytes that there may be.
    """
    words = ordered_words(model.tokenizer)
    width = model.embedding.weight.shape[1]
    while size > limit and words:
        # a row of float16, and a line of tokenizer.json: quotes, colon, id and comma at least
        size -= 2 * width + len(words.pop().encode()) + 6
    if not words:
        raise ValueError(f"expected room for words in {limit:,} bytes, got none; allow more")
    return words


def mapped(split: Split, before: Tokenizer, after: Tokenizer) -> Split:
    """Return a split with the ids that another tokenizer has for the same words."""
    ids, new = before.get_vocab(), after.get_vocab()
    table = np.full(len(ids), new[UNKNOWN], dtype=np.uint32)
    for word, i in ids.items():
        table[i] = new.get(word, new[UNKNOWN])
    return dataclasses.replace(split, words=table[split.words])


def measure(model: SentenceModel, prepared: Prepared, device: str) -> dict[str, float]:
    """Return the accuracies on the development split, and on test where there is one."""
    model.to(device)
    return {
        f"{name}_accuracy": evaluate(
            model, mapped(prepared.splits[name], prepared.tokenizer, model.tokenizer)
        ).accuracy
        for name in ("dev", "test")
        if name in prepared.splits
    }


def check_fit(model: SentenceModel, prepared: Prepared, path: Path) -> None:
    """Raise unless a prepared file holds what the model was trained for."""
    data = model.provenance.get("recipe", {}).get("data", {})
    pair = model.config.head.kind == "pair"
    for what, found, wanted in (
        ("labels", prepared.labels, model.labels),
        ("pair", prepared.pair, pair),
        ("max_words", prepared.max_words, model.config.max_words),
        *((key, getattr(prepared.data, key), data.get(key)) for key in ("task", "lower")),
    ):
        if found != wanted:
            raise ValueError(
                f"{path}: expected {what} {wanted!r} as in the model, got {found!r}; pass the file "
                "that the model was trained on"
            )


def sources(model: SentenceModel) -> list[dict[str, str]]:
    """Return where data and word vectors come from, with their licences."""
    about = model.provenance
    task = about.get("recipe", {}).get("data", {}).get("task")
    vectors = about.get("data", {}).get("vectors", {}).get("file", "")
    names = [TASKS[task][0]] if task in TASKS else []
    names += [name for name, source in SOURCES.items() if source.vectors and name in vectors]
    return [
        {
            "name": name,
            "licence": TERMS.get(name, SOURCES[name].licence),
            "citation": SOURCES[name].citation,
            "page": SOURCES[name].page,
        }
        for name in names
    ]


def write(model: SentenceModel, folder: Path, name: str, about: dict[str, Any]) -> int:
    """Write the four files; return their size."""
    save(model, folder, about, half_embeddings=True)
    (folder / CARD).write_text(model_card(load(folder), name), encoding="utf-8")
    return sum((folder / file).stat().st_size for file in FILES)


def ship(arguments: argparse.Namespace) -> None:
    """Make the folder, or raise and leave everything as it was."""
    target: Path = arguments.out / arguments.name
    if target.exists() and not arguments.replace:
        raise FileExistsError(f"{target} exists; pass --replace to put the new model in its place")
    if target.exists():
        read_config(target)
    original = load(best_of(candidates(arguments.models)))
    prepared = None
    if arguments.check is not None:
        prepared = load_prepared(arguments.check)
        check_fit(original, prepared, arguments.check)
    task = original.provenance.get("recipe", {}).get("data", {}).get("task")
    if arguments.license is None and task not in TASKS:
        raise ValueError(f"expected a licence for a model of the task {task}; pass --license")
    all_words = len(ordered_words(original.tokenizer))
    recorded = original.provenance["metrics"]
    about = {
        **original.provenance,
        "license": arguments.license or TASKS[task][1],
        "language": arguments.language,
        "sources": sources(original),
        "shipped": {"word_vectors": "float16", "measured": prepared is not None},
    }
    model = original
    if arguments.extra_words is not None:
        model = with_words(model, kept_extra(model, arguments.extra_words))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "model")

        def finish(metrics: dict[str, float], compared: dict[str, float]) -> int:
            about["metrics"] = {**recorded, **metrics}
            words = len(ordered_words(model.tokenizer))
            about["shipped"].update(words=words, words_left_out=all_words - words)
            if compared:
                # the original measured beside it, and what training found, on another device maybe
                about["shipped"]["original"] = compared
                about["shipped"]["recorded"] = {key: recorded.get(key) for key in metrics}
            return write(model, folder, arguments.name, about)

        size = finish({}, {})
        if arguments.megabytes is not None:
            limit = round(arguments.megabytes * 1e6)
            # measured accuracies are yet to come
            model = with_words(model, fitting(model, size + MORE, limit))
            size = finish({}, {})
        if prepared is not None:
            metrics = measure(load(folder), prepared, arguments.device)
            compared = measure(original, prepared, arguments.device)
            for key, value in metrics.items():
                print(
                    f"{key}: {compared[key]:.2%} original, {value:.2%} shipped; the run recorded "
                    f"{recorded.get(key, float('nan')):.2%}"
                )
            if compared["dev_accuracy"] - metrics["dev_accuracy"] > MOST_LOST + 1e-9:
                raise ValueError(
                    f"dev accuracy must not drop by more than {100 * MOST_LOST:g} points, got "
                    f"{metrics['dev_accuracy']:.2%} after {compared['dev_accuracy']:.2%}; keep "
                    "more words"
                )
            size = finish(metrics, compared)
        target.mkdir(parents=True, exist_ok=True)
        for file in FILES:
            replace_file(
                target / file, lambda path, file=file: shutil.copyfile(folder / file, path)
            )
    total = sum(path.stat().st_size for path in arguments.out.glob("*/*"))
    kept = about["shipped"]["words"]
    print(f"{target}: {kept:,} of {all_words:,} words, {size / 1e6:.2f} MB")
    print(f"{arguments.out}: {total / 1e6:.2f} MB in all")


def main(argv: Sequence[str] | None = None) -> None:
    """Read the arguments, and ship."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path, help="runs or model folders")
    parser.add_argument("--name", required=True, help="what the model will be called")
    parser.add_argument("--out", type=Path, default=Path("src/gumbeltree/pretrained"))
    parser.add_argument("--extra-words", type=int, help="words beside those of the data to keep")
    parser.add_argument("--megabytes", type=float, help="most megabytes, of a million bytes")
    parser.add_argument("--check", type=Path, help="the prepared file it was trained on")
    parser.add_argument("--license", help="of the weights; default: as the data asks for")
    parser.add_argument("--language", default="en")
    parser.add_argument("--device", default="cpu", help="where --check computes")
    parser.add_argument("--replace", action="store_true", help="replace a model of that name")
    try:
        ship(parser.parse_args(argv))
    except (OSError, ValueError) as error:
        sys.exit(f"ship_model: error: {error}")


if __name__ == "__main__":
    main()
