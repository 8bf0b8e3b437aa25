"""Count sentence lengths of an SNLI file, for `gumbeltree bench`.

    python benchmarks/snli_lengths.py snli_1.0_dev.jsonl.gz > src/gumbeltree/bench/snli_lengths.json

Lengths are those of the file's binary parses, counted separately for premises and hypotheses: entry
i of each list is the number of sentences with i words. Pairs without a gold label are skipped.
"""

import gzip
import json
import sys
from collections import Counter


def main() -> None:
    path = sys.argv[1]
    counts = {"premise": Counter(), "hypothesis": Counter()}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            pair = json.loads(line)
            if pair["gold_label"] == "-":
                continue
            for name, key in (("premise", "sentence1"), ("hypothesis", "sentence2")):
                words = [w for w in pair[f"{key}_binary_parse"].split() if w not in "()"]
                counts[name][len(words)] += 1
    histogram = {name: [c[i] for i in range(max(c) + 1)] for name, c in counts.items()}
    print(json.dumps({"source": "SNLI 1.0 development set, binary parses", **histogram}))


if __name__ == "__main__":
    main()
