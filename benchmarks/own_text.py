"""Compare the recipes `text` and `text-pair` with baselines on small labelled data sets.

    python benchmarks/own_text.py --data FOLDER --vectors glove.6B.100d.txt [--out FILE]

FOLDER contains sst/{train,dev,test}.txt, text/{mr,subj,trec_train,trec_test}.csv.gz and
sick/{train,dev,test}.tsv. MR and Subj are split 80/10/10 and TREC's training file 90/10, with
seed 0 of `gumbeltree.tasks.table.split`; the others have splits of their own. Only whole sentences
are used: SST's phrases are not.

Each line of the output is one run: data set, method, with or without vectors, seed, accuracy on
the development and test splits, seconds to train, bytes of the model, texts per second. On a CPU,
seconds are CPU time of one thread, which depends little on what else the machine does. A run that
is in the file already is not repeated. Besides gumbeltree, the baselines need scikit-learn
(tfidf) and fasttext-wheel (fasttext).
"""

import argparse
import csv
import gzip
import itertools
import json
import multiprocessing
import os
import pickle
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gumbeltree.config import Recipe, load_recipe, with_settings
from gumbeltree.tasks.table import split

SPLITS = ("train", "dev", "test")
CHOSEN_ON = ("sst2", "mr", "trec")
"""Single texts on which the settings of all methods were chosen, by development accuracy."""
KEPT_BACK = ("subj", "sst5")
"""Single texts that were not looked at before the settings were final."""
SETS = (*CHOSEN_ON, *KEPT_BACK, "sick")
OURS = ("tree", "lstm", "bag", "before")
METHODS = (*OURS, "bilstm", "tfidf", "fasttext")

BEFORE = (
    *("embedding.dropout=0.2", "head.dropout=0.2", "head.hidden_dim=200", "label_smoothing=0"),
    *("leaf=lstm", "leaf.init=orthogonal", "cell.init=he", "cell.forget_offset=1"),
    *("score=dot", "pooling=root"),
    *("own_vectors=false", "average=0"),
    *("learning_rate=1e-3", "pool=100", "epochs=20", "patience=6", "stop_after=20"),
)
"""Earlier settings of the recipes, for comparison."""
BILSTM: dict[str, dict[str, Any]] = {
    "text": {"learning_rate": 2e-3, "embedding_dropout": 0.5, "head_dropout": 0.2},
    "text-pair": {"learning_rate": 1e-3, "embedding_dropout": 0.2, "head_dropout": 0.1},
}
"""Settings of the BiLSTM by recipe."""
PATIENT = {"stop_after": 6}
"""The BiLSTM waits longer than our models for a better evaluation, as that helped it on TREC."""
CS = (0.3, 1, 3, 10, 30, 100, 300)
"""Values of C to choose from."""
FASTTEXT = tuple(itertools.product((0.1, 0.25, 0.5), (5, 10, 25)))
"""Learning rates and numbers of epochs to choose from."""
CHOSEN: dict[tuple[str, bool], tuple[float, int]] = {}
"""Learning rate and epochs of fastText by data set and vectors; chosen with the first seed."""


class Rows(NamedTuple):
    """Texts, each a tuple of one or two sentences, and their labels."""

    texts: list[tuple[str, ...]]
    labels: list[str]


Data = dict[str, Rows]
"""One data set: rows by split."""


def _csv(path: Path) -> Rows:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return Rows([(row["text"],) for row in rows], [row["label"] for row in rows])


def _part(rows: Rows, places: list[int]) -> Rows:
    return Rows([rows.texts[i] for i in places], [rows.labels[i] for i in places])


def _divided(rows: Rows, shares: dict[str, float]) -> Data:
    parts = split(len(rows.texts), list(shares.values()), seed=0)
    return {name: _part(rows, places) for name, places in zip(shares, parts, strict=True)}


def _sst(folder: Path, fine: bool) -> Data:
    from gumbeltree.tasks import TASKS
    from gumbeltree.text.files import Report

    data = {}
    for name in SPLITS:
        # the development split has only whole sentences, so all files are read as such
        task = TASKS["sst5" if fine else "sst2"]()
        found = list(task.read(folder / f"{name}.txt", "dev", Report()))
        data[name] = Rows([example.texts for example in found], [e.label for e in found])
    return data


def _sick(folder: Path) -> Data:
    data = {}
    for name in SPLITS:
        lines = (folder / f"{name}.tsv").read_text(encoding="utf-8").splitlines()
        rows = [line.split("\t") for line in lines]
        data[name] = Rows([(a, b) for _, a, b in rows], [label for label, _, _ in rows])
    return data


def read_set(name: str, folder: Path) -> Data:
    """Read a data set."""
    text = folder / "text"
    if name == "sick":
        return _sick(folder / "sick")
    if name == "trec":
        train = _divided(_csv(text / "trec_train.csv.gz"), {"train": 0.9, "dev": 0.1})
        return train | {"test": _csv(text / "trec_test.csv.gz")}
    if name in ("mr", "subj"):
        shares = {"train": 0.8, "dev": 0.1, "test": 0.1}
        return _divided(_csv(text / f"{name}.csv.gz"), shares)
    return _sst(folder / "sst", name == "sst5")


def bilstm_model(vocabulary: int, classes: int, columns: int, settings: dict[str, Any]) -> Any:
    """Return a bidirectional LSTM in plain torch, with max-pooling over the words and an MLP.

    Its width is that of our encoders: D/2 per direction. Pairs are compared by [u; v; |u-v|; u*v].
    """
    import torch
    from torch import nn

    class BiLSTM(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            D, hidden = settings["width"], settings["head"]
            self.embedding = nn.Embedding(vocabulary, settings["width"])
            nn.init.normal_(self.embedding.weight, std=0.01)
            self.lstm = nn.LSTM(settings["width"], D // 2, bidirectional=True, batch_first=True)
            self.word_dropout = nn.Dropout(settings["embedding_dropout"])
            self.dropout = nn.Dropout(settings["head_dropout"])
            self.hidden = nn.Linear(D if columns == 1 else 4 * D, hidden)
            self.output = nn.Linear(hidden, classes)

        def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            """Return logits `[B, C]` for ids `[columns * B, T]`."""
            words = self.word_dropout(self.embedding(ids))
            packed = nn.utils.rnn.pack_padded_sequence(
                words, lengths, batch_first=True, enforce_sorted=False
            )
            states, _ = nn.utils.rnn.pad_packed_sequence(
                self.lstm(packed)[0], batch_first=True, padding_value=-1e4
            )
            parts = states.max(1).values.chunk(columns)
            if columns == 2:
                u, v = parts
                parts = (u, v, (u - v).abs(), u * v)
            x = self.dropout(torch.cat(parts, 1))
            return self.output(self.dropout(self.hidden(x).relu()))

    return BiLSTM()


def train_bilstm(
    prepared: Any,
    settings: dict[str, Any],
    seed: int,
    device: str,
    on_evaluation: Callable[[Any], None] | None = None,
) -> tuple[Any, Callable[[Any, str], Any], float, float]:
    """Train the BiLSTM on prepared data, with the same batches and early stopping as our models.

    Returns:
        The model with the best development accuracy, a function that classifies a split, the
        accuracy, and the seconds of training.
    """
    import copy

    import torch

    from gumbeltree.data.split import shuffled
    from gumbeltree.training.loop import evaluation_points

    train = prepared.splits["train"]
    columns = train.sentences.shape[1]
    torch.manual_seed(seed)
    size = prepared.tokenizer.get_vocab_size()
    model = bilstm_model(size, len(prepared.labels), columns, settings)
    if prepared.vectors is not None:
        with torch.no_grad():
            model.embedding.weight.copy_(torch.from_numpy(prepared.vectors))
    model.to(device)

    def batch(part: Any, rows: Any) -> tuple[Any, Any]:
        sentences = part.sentences[rows].T.reshape(-1)
        starts, ends = part.starts[sentences], part.starts[sentences + 1]
        lengths = ends - starts
        places = np.arange(lengths.max())
        ids = part.words[np.minimum(starts[:, None] + places, ends[:, None] - 1)]
        return torch.from_numpy(ids.astype(np.int64)).to(device), torch.from_numpy(lengths)

    def classify(model: Any, name: str) -> Any:
        part = prepared.splits[name]
        order = np.argsort(part.lengths.max(axis=1), kind="stable")
        found = np.empty(len(order), dtype=np.int64)
        model.eval()
        with torch.inference_mode():
            for rows in np.array_split(order, max(1, len(order) // 256)):
                found[rows] = model(*batch(part, rows)).argmax(1).cpu().numpy()
        return found

    optimizer = torch.optim.Adam(model.parameters(), lr=settings["learning_rate"])
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, "max", factor=0.5, patience=settings["patience"]
    )
    loss = torch.nn.CrossEntropyLoss()
    targets = torch.from_numpy(train.labels).to(device)
    best, worse, kept = -1.0, 0, None
    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    for epoch in range(settings["epochs"]):
        batches = shuffled(train, settings["batch_size"], seed, epoch)
        due = evaluation_points(len(batches), settings["evaluations"])
        for number, rows in enumerate(batches, 1):
            model.train()
            optimizer.zero_grad()
            loss(model(*batch(train, rows)), targets[torch.from_numpy(rows).to(device)]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings["clip"])
            optimizer.step()
            if number in due:
                found = classify(model, "dev")
                if on_evaluation is not None:
                    on_evaluation(found)
                value = float((found == prepared.splits["dev"].labels).mean())
                schedule.step(value)
                worse += 1
                if value > best:
                    best, worse, kept = value, 0, copy.deepcopy(model)
                if settings["stop_after"] and worse >= settings["stop_after"]:
                    break
        else:
            continue
        break
    return kept, classify, best, clock() - start


class Case(NamedTuple):
    """One run."""

    name: str
    """Data set."""
    method: str
    vectors: bool
    seed: int

    @property
    def key(self) -> dict[str, Any]:
        """The fields that identify the run in the output."""
        return {"set": self.name, "method": self.method, "vectors": self.vectors, "seed": self.seed}


class Options(NamedTuple):
    """What all runs share."""

    data: Path
    vectors: Path
    device: str
    work: Path


def recipe_of(case: Case) -> tuple[str, Recipe]:
    """Return the name and the settings of the recipe of one of our methods, or of the BiLSTM."""
    name = "text-pair" if case.name == "sick" else "text"
    if case.method == "before":
        return name, with_settings(load_recipe(name), BEFORE)
    encoder = case.method if case.method in ("lstm", "bag") else None
    own = "false" if case.method == "bilstm" else "true"
    return name, with_settings(load_recipe(name, encoder), [f"own_vectors={own}"])


def prepared_file(case: Case, options: Options) -> Path:
    """Return the file of the prepared data of a run."""
    own = recipe_of(case)[1].data.own_vectors and not case.vectors
    kind = "file" if case.vectors else "own" if own else "random"
    return options.work / f"{case.name}-{kind}.safetensors"


def prepare_case(case: Case, options: Options) -> None:
    """Tokenise the data of a run and read its word vectors, unless another run did."""
    from gumbeltree.data.compile import prepare
    from gumbeltree.data.prepared import save_prepared

    file = prepared_file(case, options)
    if file.exists():
        return
    with tempfile.TemporaryDirectory() as folder:
        for name, rows in read_set(case.name, options.data).items():
            with open(Path(folder, f"{name}.csv"), "w", encoding="utf-8", newline="") as out:
                columns = ["text", "text2"][: len(rows.texts[0])]
                lines = csv.writer(out)
                lines.writerow([*columns, "label"])
                pairs = zip(rows.texts, rows.labels, strict=True)
                lines.writerows([*texts, label] for texts, label in pairs)
        files = [Path(folder, f"{name}.csv") for name in SPLITS]
        vectors = options.vectors if case.vectors else None
        recipe = with_settings(recipe_of(case)[1], ["any_labels=true"])
        save_prepared(prepare(recipe, files[0], vectors, dev=files[1], test=files[2]), file)


def run_ours(case: Case, options: Options) -> dict[str, Any]:
    """Train and evaluate a model with one of our recipes."""
    from gumbeltree import load
    from gumbeltree.data.prepared import load_prepared
    from gumbeltree.training.loop import train

    name, recipe = recipe_of(case)
    recipe = with_settings(recipe, [f"training.seed={case.seed}"])
    prepared = load_prepared(prepared_file(case, options))
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        start, device = time.process_time(), options.device
        result = train(recipe, prepared, folder, recipe_name=name, device=device, quiet=True)
        found = {key: result[key] for key in ("best_epoch", "steps", "seconds", "machine", "code")}
        found |= {"dev": result["dev_accuracy"], "test": result["test_accuracy"]}
        found["bytes"] = size_of(Path(folder, "model"))
        if device == "cpu":
            found["seconds"] = time.process_time() - start
            model = load(Path(folder, "model"))
            texts = read_set(case.name, options.data)["test"].texts
            given = [text if len(text) > 1 else text[0] for text in texts]
            found["texts_per_second"] = rate(lambda: model.predict(given), len(given))
    return found


def run_bilstm(case: Case, options: Options) -> dict[str, Any]:
    """Train and evaluate the BiLSTM."""
    from gumbeltree.data.prepared import load_prepared
    from gumbeltree.device.pick import pick_device

    name, recipe = recipe_of(case)
    prepared = load_prepared(prepared_file(case, options))
    names = ("batch_size", "epochs", "evaluations", "patience", "stop_after", "clip")
    settings = {key: getattr(recipe.training, key) for key in names} | BILSTM[name]
    settings |= PATIENT | {"width": recipe.model.encoder.hidden_dim, "head": 200}
    device = pick_device(options.device)
    model, classify, dev, seconds = train_bilstm(prepared, settings, case.seed, device)
    test = prepared.splits["test"]
    found = {
        "dev": dev,
        "test": float((classify(model, "test") == test.labels).mean()),
        "seconds": seconds,
        "bytes": 4 * sum(x.numel() for x in model.parameters()),
    }
    if options.device == "cpu":
        found["texts_per_second"] = rate(lambda: classify(model, "test"), len(test.labels))
    return found


def run_tfidf(case: Case, options: Options) -> dict[str, Any]:
    """Fit TF-IDF of word uni- and bigrams with logistic regression; C by development accuracy.

    Pairs are compared as our heads compare them, by [u; v; |u-v|; u*v].
    """
    from scipy import sparse
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    data = read_set(case.name, options.data)
    start = time.process_time()
    features = TfidfVectorizer(ngram_range=(1, 2))
    features.fit(itertools.chain.from_iterable(data["train"].texts))

    def numbers(rows: Rows) -> Any:
        u, *others = (features.transform(column) for column in zip(*rows.texts, strict=True))
        if not others:
            return u
        (v,) = others
        return sparse.hstack([u, v, abs(u - v), u.multiply(v)]).tocsr()

    x = {name: numbers(rows) for name, rows in data.items()}
    best: tuple[float, Any] = (-1.0, None)
    for C in CS:
        model = LogisticRegression(C=C, max_iter=1000).fit(x["train"], data["train"].labels)
        best = max(best, (model.score(x["dev"], data["dev"].labels), model), key=lambda b: b[0])
    dev, model = best
    seconds = time.process_time() - start
    return {
        "dev": dev,
        "test": model.score(x["test"], data["test"].labels),
        "seconds": seconds,
        "bytes": len(pickle.dumps((features, model))),
        "texts_per_second": rate(lambda: model.predict(numbers(data["test"])), x["test"].shape[0]),
        "C": model.C,
    }


def run_fasttext(case: Case, options: Options) -> dict[str, Any]:
    """Train fastText on word uni- and bigrams; rate and epochs by development accuracy.

    The two texts of a pair are joined. Texts are tokenised, and with vectors, the vocabulary is
    extended, as for our models.
    """
    import fasttext

    from gumbeltree.data.prepared import load_prepared

    prepared = load_prepared(prepared_file(case._replace(method="tree"), options))
    tokenizer, data = prepared.tokenizer, read_set(case.name, options.data)
    classes = {label: i for i, label in enumerate(prepared.labels)}

    def lines(rows: Rows) -> list[str]:
        texts = [" ".join(text) for text in rows.texts]
        normal = tokenizer.normalizer.normalize_str if tokenizer.normalizer else str
        split_ = tokenizer.pre_tokenizer.pre_tokenize_str
        return [" ".join(word for word, _ in split_(normal(text))) for text in texts]

    texts = {name: lines(rows) for name, rows in data.items()}
    with tempfile.TemporaryDirectory() as folder:
        train = Path(folder, "train.txt")
        pairs = zip(texts["train"], data["train"].labels, strict=True)
        labelled = [f"__label__{classes[y]} {x}\n" for x, y in pairs]
        # fastText reads the file in its order, and SST is sorted by label
        random.Random(case.seed).shuffle(labelled)
        train.write_text("".join(labelled), "utf-8")
        more = {}
        if case.vectors:
            ids = tokenizer.get_vocab()
            kept = [
                (word, prepared.vectors[i]) for word, i in ids.items() if prepared.vectors[i].any()
            ]
            with open(Path(folder, "words.vec"), "w", encoding="utf-8") as out:
                out.write(f"{len(kept)} {prepared.vectors.shape[1]}\n")
                out.writelines(f"{w} {' '.join(f'{x:.5g}' for x in v)}\n" for w, v in kept)
            more = {"pretrainedVectors": str(Path(folder, "words.vec"))}

        def fit(rate: float, epochs: int, seed: int) -> Any:
            return fasttext.train_supervised(
                str(train), lr=rate, epoch=epochs, wordNgrams=2, dim=100, bucket=200_000,
                thread=1, verbose=0, seed=seed, **more,
            )  # fmt: skip

        def classify(model: Any, name: str) -> list[int]:
            found = (model.f.predict(text + "\n", 1, 0.0, "strict") for text in texts[name])
            return [int(best[0][1].removeprefix("__label__")) for best in found]

        def accuracy(model: Any, name: str) -> float:
            gold = [classes[label] for label in data[name].labels]
            return statistics.mean(a == b for a, b in zip(classify(model, name), gold, strict=True))

        key = case.name, case.vectors
        if key not in CHOSEN:
            CHOSEN[key] = max(FASTTEXT, key=lambda pair: accuracy(fit(*pair, 0), "dev"))
        chosen = CHOSEN[key]
        start = time.process_time()
        model = fit(*chosen, case.seed)
        seconds = time.process_time() - start
        model.save_model(str(Path(folder, "model.bin")))
        return {
            "dev": accuracy(model, "dev"),
            "test": accuracy(model, "test"),
            "seconds": seconds,
            "bytes": Path(folder, "model.bin").stat().st_size,
            "texts_per_second": rate(lambda: classify(model, "test"), len(texts["test"])),
            "learning_rate": chosen[0],
            "epochs": chosen[1],
        }


def size_of(folder: Path) -> int:
    """Return the bytes of the files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def rate(classify: Callable[[], object], texts: int) -> float:
    """Return how many texts are classified per second, the best of three calls after the first."""
    seconds = []
    for _ in range(4):
        start = time.process_time()
        classify()
        seconds.append(time.process_time() - start)
    return texts / min(seconds[1:])


RUN: dict[str, Callable[[Case, Options], dict[str, Any]]] = {
    **dict.fromkeys(OURS, run_ours),
    "bilstm": run_bilstm,
    "tfidf": run_tfidf,
    "fasttext": run_fasttext,
}


def run(task: tuple[Case, Options]) -> dict[str, Any]:
    """Run one case and return a line of the output."""
    case, options = task
    return case.key | RUN[case.method](*task) | {"device": options.device}


def prepare_task(task: tuple[Case, Options]) -> None:
    """Prepare the data of one case."""
    prepare_case(*task)


def start_worker() -> None:
    """Use one thread: runs are small, and CPU times of one thread can be compared."""
    import torch

    torch.set_num_threads(1)


def cases(sets: list[str], methods: list[str], seeds: int) -> Iterator[Case]:
    """Yield all runs."""
    for method in methods:
        # TF-IDF has no vectors and no randomness
        plain = method == "tfidf"
        of_seeds = range(1 if plain else seeds)
        for seed, name, vectors in itertools.product(of_seeds, sets, (False, True)):
            if not (plain and vectors):
                yield Case(name, method, vectors, seed)


def summary(lines: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a table of mean test accuracies, one row per method."""
    names = [name for name in SETS if any(line["set"] == name for line in lines)]
    yield "method      vectors  " + "  ".join(f"{name:>12}" for name in names) + "     mean"
    for method, vectors in itertools.product(METHODS, (False, True)):
        cells, means = [], []
        for name in names:
            key = {"set": name, "method": method, "vectors": vectors}
            runs = [x["test"] for x in lines if key.items() <= x.items()]
            if not runs:
                cells.append("")
                continue
            means.append(statistics.mean(runs))
            spread = statistics.stdev(runs) if len(runs) > 1 else 0.0
            cells.append(f"{100 * means[-1]:.1f} ± {100 * spread:.1f}")
        if means:
            mean = f"{100 * statistics.mean(means):9.2f}" if len(means) == len(names) else ""
            yield f"{method:12}{vectors!s:7}  " + "  ".join(f"{x:>12}" for x in cells) + mean


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--vectors", type=Path, required=True, help="GloVe 6B 100D, text or .gz")
    parser.add_argument("--out", type=Path, default=Path("own_text.jsonl"))
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1, help="runs at the same time")
    given = parser.parse_args()
    known = given.out.read_text("utf-8").splitlines() if given.out.exists() else []
    lines = [json.loads(line) for line in known]
    todo = [
        case
        for case in cases(given.sets, given.methods, given.seeds)
        if not any(case.key.items() <= line.items() for line in lines)
    ]
    with tempfile.TemporaryDirectory() as work, open(given.out, "a", encoding="utf-8") as out:
        options = Options(given.data, given.vectors, given.device, Path(work))
        tasks = [(case, options) for case in todo]
        files = {
            prepared_file(case, options): (case, options)
            for case in todo
            if case.method not in ("tfidf", "fasttext")
        }
        files |= {
            prepared_file(case._replace(method="tree"), options): (
                case._replace(method="tree"),
                options,
            )
            for case in todo
            if case.method == "fasttext"
        }
        several = given.workers > 1
        if given.device == "cpu" and not several:
            start_worker()
        context = multiprocessing.get_context("spawn")
        with context.Pool(given.workers, start_worker) if several else _Here() as pool:
            list(pool.imap_unordered(prepare_task, files.values()))
            for line in pool.imap_unordered(run, tasks):
                out.write(json.dumps(line) + "\n")
                out.flush()
                lines.append(line)
                print(json.dumps(line), file=sys.stderr)
    print("\n".join(summary(lines)))


class _Here:
    """Stands in for a pool of processes, in this process."""

    imap_unordered = staticmethod(map)

    def __enter__(self) -> "_Here":
        return self

    def __exit__(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
