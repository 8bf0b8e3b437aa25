"""Make a packaged model from trained ones.

    python benchmarks/ship_model.py RUN_OR_MODEL... --name sst2-100d \\
        --out src/gumbeltree/pretrained --check sst2-100d.safetensors

Of several runs or seeds, the one with the best development accuracy is taken. Its word vectors are
rounded to float16. `--extra-words N` keeps only the first N of the words that came from the vector
file alone.

`--check` compares the result with the original on the development and test splits of the prepared
file that it was trained on, and writes nothing if development accuracy drops by more than 0.1
points. The measured accuracies go into config.json and the model card. Without `--check` the card
has the accuracies of the training run, and says so.
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
from gumbeltree.evaluation import evaluate
from gumbeltree.fetch import SOURCES
from gumbeltree.hub import CARD
from gumbeltree.model import SentenceModel, load, save
from gumbeltree.packaged import results_of
from gumbeltree.store import CONFIG, TOKENIZER, WEIGHTS, find_model, read_config
from gumbeltree.text.tokenizer import PAD, UNKNOWN

FILES = (CONFIG, WEIGHTS, TOKENIZER, CARD)
MOST_LOST = 0.001
"""Largest accepted drop of development accuracy, as a fraction."""

# source of a task's examples, and licence of a model trained on them
TASKS = {
    **dict.fromkeys(("snli", "snli_similarity"), ("snli", "cc-by-sa-4.0")),
    **dict.fromkeys(("sst2", "sst5"), ("sst", "other")),
}
# more precise than `gumbeltree data get --list`
TERMS = {"sst": "free for research if you cite the paper; its authors state no licence"}


def candidates(folders: Sequence[Path]) -> list[Path]:
    """Return the model folders; a folder of several seeds stands for all of them."""
    chosen = []
    for folder in folders:
        seeds = sorted(folder.glob("seed-*"))
        chosen += [folder] if find_model(folder) != folder or not seeds else seeds
    return [find_model(folder) for folder in chosen]


def best_of(folders: Sequence[Path]) -> Path:
    """Return the model with the best development accuracy and, among equals, the lowest seed."""
    ranked = []
    for folder in folders:
        about = read_config(folder).get("provenance", {})
        main, value, _ = results_of(about)
        if value is None:
            raise ValueError(
                f"{folder}: no development accuracy is recorded; finish its training first"
            )
        ranked.append((-value, about.get("seed", 0), folder, about.get("recipe_name")))
        print(f"{folder}: dev {main} {value:.2%}, seed {about.get('seed', 'not recorded')}")
    recipes = sorted({str(recipe) for *_, recipe in ranked})
    if len(recipes) > 1:
        raise ValueError(f"the models have different recipes: {', '.join(recipes)}; pass only one")
    return min(ranked, key=lambda row: row[:2])[2]


def ordered_words(tokenizer: Tokenizer) -> list[str]:
    """Return the words by id, without <pad> and <unk>.

    The words of the data come first, by frequency, then those of the vector file alone.
    """
    ids = tokenizer.get_vocab()
    return [word for word in sorted(ids, key=ids.__getitem__) if word not in (PAD, UNKNOWN)]


def with_words(model: SentenceModel, words: Sequence[str]) -> SentenceModel:
    """Return the same model with a smaller vocabulary; other words become <unk>."""
    description = json.loads(model.tokenizer.to_str())
    if description["model"]["type"] != "WordLevel":
        raise ValueError(f"the tokenizer must be word-level, got {description['model']['type']}")
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
    """Return the words of the data and the first `extra` other words."""
    counts = model.provenance.get("data", {}).get("vocabulary", {})
    words = ordered_words(model.tokenizer)
    if counts.get("training", 0) + counts.get("extra", 0) != len(words):
        raise ValueError(
            f"--extra-words needs to know which of the {len(words):,} words are from the data, but "
            f"the model records {counts or 'no counts'}; omit the option"
        )
    return words[: counts["training"] + extra]


def mapped(split: Split, before: Tokenizer, after: Tokenizer) -> Split:
    """Return a split with the ids of another tokenizer."""
    ids, new = before.get_vocab(), after.get_vocab()
    table = np.full(len(ids), new[UNKNOWN], dtype=np.uint32)
    for word, i in ids.items():
        table[i] = new.get(word, new[UNKNOWN])
    return dataclasses.replace(split, words=table[split.words])


def measure(model: SentenceModel, prepared: Prepared, device: str) -> dict[str, float]:
    """Return the main metric on the development split and, if there is one, the test split."""
    model.to(device)
    return {
        f"{name}_{model.head.measure}": evaluate(
            model, mapped(prepared.splits[name], prepared.tokenizer, model.tokenizer)
        ).value
        for name in ("dev", "test")
        if name in prepared.splits
    }


def check_fit(model: SentenceModel, prepared: Prepared, path: Path) -> None:
    """Raise if a prepared file does not match the model."""
    data = model.provenance.get("recipe", {}).get("data", {})
    pair = model.head.sentences == 2
    for what, found, wanted in (
        ("labels", prepared.labels, getattr(model.config.head, "labels", ())),
        ("pair", prepared.pair, pair),
        ("max_words", prepared.max_words, model.config.max_words),
        *((key, getattr(prepared.data, key), data.get(key)) for key in ("task", "lower")),
    ):
        if found != wanted:
            raise ValueError(
                f"{path}: {what} is {found!r}, but {wanted!r} in the model; pass the file that the "
                "model was trained on"
            )


def sources(model: SentenceModel) -> list[dict[str, str]]:
    """Return the sources of data and word vectors with their licences."""
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
    """Write the four files and return their size."""
    save(model, folder, about, half_embeddings=True)
    (folder / CARD).write_text(model_card(load(folder), name), encoding="utf-8")
    return sum((folder / file).stat().st_size for file in FILES)


def ship(arguments: argparse.Namespace) -> None:
    """Write the folder, or raise and change nothing."""
    target: Path = arguments.out / arguments.name
    if target.exists() and not arguments.replace:
        raise FileExistsError(f"{target} exists; pass --replace to overwrite it")
    if target.exists():
        read_config(target)
    original = load(best_of(candidates(arguments.models)))
    prepared = None
    if arguments.check is not None:
        prepared = load_prepared(arguments.check)
        check_fit(original, prepared, arguments.check)
    task = original.provenance.get("recipe", {}).get("data", {}).get("task")
    if arguments.license is None and task not in TASKS:
        raise ValueError(f"no licence is known for the task {task}; pass --license")
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
                # the run itself may have measured on another device
                about["shipped"]["original"] = compared
                about["shipped"]["recorded"] = {key: recorded.get(key) for key in metrics}
            return write(model, folder, arguments.name, about)

        size = finish({}, {})
        if prepared is not None:
            metrics = measure(load(folder), prepared, arguments.device)
            compared = measure(original, prepared, arguments.device)
            for key, value in metrics.items():
                print(
                    f"{key}: {compared[key]:.2%} original, {value:.2%} shipped; the run recorded "
                    f"{recorded.get(key, float('nan')):.2%}"
                )
            main = original.head.measure
            before, after = (x[f"dev_{main}"] for x in (compared, metrics))
            if before - after > MOST_LOST + 1e-9:
                raise ValueError(
                    f"dev {main} drops from {before:.2%} to {after:.2%}, more than "
                    f"{100 * MOST_LOST:g} points; keep more words"
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
    print(f"{arguments.out}: {total / 1e6:.2f} MB in total")


def main(argv: Sequence[str] | None = None) -> None:
    """Read the arguments and write the model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path, help="runs or model folders")
    parser.add_argument("--name", required=True, help="name of the packaged model")
    parser.add_argument("--out", type=Path, default=Path("src/gumbeltree/pretrained"))
    parser.add_argument("--extra-words", type=int, help="words to keep besides those of the data")
    parser.add_argument("--check", type=Path, help="the prepared file it was trained on")
    parser.add_argument("--license", help="licence of the weights; default: depends on the data")
    parser.add_argument("--language", default="en")
    parser.add_argument("--device", default="cpu", help="device of --check")
    parser.add_argument("--replace", action="store_true", help="replace a model of that name")
    try:
        ship(parser.parse_args(argv))
    except (OSError, ValueError) as error:
        sys.exit(f"ship_model: error: {error}")


if __name__ == "__main__":
    main()
