"""Time `gumbeltree data prepare` on a file of SNLI's full size.

    python benchmarks/prepare_snli.py SNLI_TRAIN VECTORS

SNLI_TRAIN is any part of SNLI's training file. It is blown up to 549,367 pairs in the official
format, parses included: 150,736 premises, each with hypotheses of its own, new ones made by
replacing a word, so that there are as many distinct sentences to read as in the whole of SNLI.
"""

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gumbeltree.tasks.snli import SNLI
from gumbeltree.text.files import Report

PAIRS, PREMISES, HYPOTHESES = 549_367, 150_736, 480_040


def parse(text: str) -> str:
    """Return a string as long as a parse of `text` is."""
    words = text.split()
    return "( " * (len(words) - 1) + words[0] + "".join(f" {word} )" for word in words[1:])


def varied(texts: list[str], count: int, generator: random.Random) -> list[str]:
    """Return `count` distinct texts: those given, then copies with one word replaced."""
    found = dict.fromkeys(texts[:count])
    words = [word for text in texts[:20_000] for word in text.split()]
    while len(found) < count:
        parts = generator.choice(texts).split()
        parts[generator.randrange(len(parts))] = generator.choice(words)
        found[" ".join(parts)] = None
    return list(found)


def main() -> None:
    source, vectors = map(Path, sys.argv[1:3])
    task = SNLI()
    task.trees = False
    examples = list(task.read(source, "train", Report()))
    generator = random.Random(0)
    premises = varied([e.texts[0] for e in examples], PREMISES, generator)
    hypotheses = varied([e.texts[1] for e in examples], HYPOTHESES, generator)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        for split, count in (("train", PAIRS), ("dev", 10_000)):
            with open(data / f"snli_1.0_{split}.jsonl", "w", encoding="utf-8") as file:
                for i in range(count):
                    first, second = premises[i // 3 % PREMISES], hypotheses[i % HYPOTHESES]
                    row = {
                        "annotator_labels": ["neutral"],
                        "captionID": f"{i}.jpg#0",
                        "gold_label": task.labels[i % 3],
                        "pairID": f"{i}.jpg#0r1n",
                        "sentence1": first,
                        "sentence1_binary_parse": parse(first),
                        "sentence1_parse": "(ROOT " + parse(first) * 2 + ")",
                        "sentence2": second,
                        "sentence2_binary_parse": parse(second),
                        "sentence2_parse": "(ROOT " + parse(second) * 2 + ")",
                    }
                    file.write(json.dumps(row) + "\n")
        size = (data / "snli_1.0_train.jsonl").stat().st_size
        print(f"{PAIRS:,} pairs, {size / 1e6:,.0f} MB of text", flush=True)
        out = data / "snli.safetensors"
        command = [sys.executable, "-m", "gumbeltree", "data", "prepare", "snli-300d", "--data"]
        started = time.perf_counter()
        subprocess.run(
            [*command, str(data), "--vectors", str(vectors), "--out", str(out)], check=True
        )
        seconds = time.perf_counter() - started
        print(f"{seconds:.1f} s, {out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
