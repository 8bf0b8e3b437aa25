"""From the folders of finished runs to records, and from records to docs/results.md."""

import dataclasses
import importlib
import json
import os
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gumbeltree import load
from gumbeltree.code_version import code_version
from gumbeltree.config import load_recipe, with_settings
from gumbeltree.data.compile import prepare
from gumbeltree.training.loop import train

ROOT = Path(__file__).parent.parent.parent
SCRIPTS = ROOT / "benchmarks"


@pytest.fixture(autouse=True)
def _place(tmp_path, monkeypatch):
    monkeypatch.setenv("GUMBELTREE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def scripts():
    """The two scripts, as modules."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        yield importlib.import_module("collect_runs"), importlib.import_module("write_results")
    finally:
        sys.path.remove(str(SCRIPTS))


@pytest.fixture
def collector(scripts):
    return scripts[0]


@pytest.fixture
def writer(scripts):
    return scripts[1]


def fake_run(
    folder,
    name="snli-300d",
    seed=0,
    settings=(),
    accuracies=(0.5, 0.7, 0.6),
    seconds=30.0,
    examples=150_916,
    test=None,
    machine="a machine",
    digest="d",
):
    """Write what a finished run leaves: an evaluation each half epoch, `seconds` apart."""
    recipe = dataclasses.asdict(
        with_settings(load_recipe(name), [*settings, f"training.seed={seed}"])
    )
    lines = [
        {"epoch": (i + 1) / 2, "seconds": (i + 1) * seconds, "dev_accuracy": a, "step": i}
        for i, a in enumerate(accuracies)
    ]
    best = max(range(len(lines)), key=lambda i: (accuracies[i], -i))
    result = {
        "recipe": name,
        "seed": seed,
        "best_epoch": lines[best]["epoch"],
        "seconds": lines[-1]["seconds"],
        "dev_accuracy": accuracies[best],
        **({"machine": machine} if machine else {}),
        **({"test_accuracy": test} if test is not None else {}),
    }
    sizes = {"train": examples, "dev": 90, **({"test": 80} if test is not None else {})}
    data = {
        "digest": digest,
        "splits": {split: {"examples": n} for split, n in sizes.items()},
        "vocabulary": {"training": 7, "extra": 3},
        "vectors": {"file": "glove.840B.300d.txt", "tokens": 9, "all_tokens": 10},
    }
    asked = {"recipe_name": name, "recipe": recipe, "data_digest": digest, "init_digest": ""}
    (folder / "model").mkdir(parents=True)
    write_json(folder / "settings.json", asked)
    write_json(folder / "result.json", result)
    write_json(folder / "model" / "config.json", {"provenance": {"data": data}})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
    return folder


def write_json(path, content):
    path.write_text(json.dumps(content), encoding="utf-8")


def change(path, **values):
    write_json(path, read(path) | values)


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def files(folder):
    """Return all files of a folder with their bytes."""
    return {p.name: p.read_bytes() for p in folder.iterdir()} if folder.exists() else {}


def collected(collector, *folders, out="records", **options):
    collector.collect(list(folders), Path(out), **options)
    return {path.stem: read(path) for path in sorted(Path(out).glob("*.json"))}


def results(writer, records="records"):
    """Return the generated sections of the page by name."""
    return writer.sections(writer.group(writer.read_records(Path(records))))


def page_for(sections):
    """Return a page with a place for each section."""
    return "\n".join(f"About {x}.\n\n<!-- results: {x} -->\n\n<!-- end -->\n" for x in sections)


def shell(text):
    """Return the commands below a table."""
    return text.split("```sh\n")[1].split("\n```")[0].split("\n")


def rows(text):
    """Return the rows of the first table of a text, header first."""
    lines = text.split("\n\n")[0].split("\n")
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    return [cells[0], *cells[2:]]


# records


def test_a_record(collector, tmp_path):
    folder = fake_run(tmp_path / "run", settings=["tuned=true"], accuracies=(0.5, 0.7, 0.7, 1 / 3))
    (name, record), *none = collected(collector, folder).items()
    assert not none
    assert name == "snli-300d--tuned=true--seed0"
    assert record["overrides"] == {"model.embedding.tuned": True}
    # the first of the highest
    assert record["best"] == {"epoch": 1.0, "seconds": 60.0}
    # 2,861,547 by the paper's architecture; ten words, <pad> and <unk>, of 300 numbers
    assert record["parameters"] == {"trained": 2_861_547, "word_vectors": 3_600}
    assert record["data"]["examples"] == {"train": 150_916, "dev": 90}
    assert record["data"]["digest"] == "d"
    assert record["result"] == read(folder / "result.json")
    assert record["recipe"] == read(folder / "settings.json")["recipe"]
    assert [line["dev_accuracy"] for line in record["metrics"]] == [0.5, 0.7, 0.7, 0.333333]


def test_fixed_word_vectors_are_not_counted(collector, tmp_path):
    (record,) = collected(collector, fake_run(tmp_path / "run")).values()
    assert record["overrides"] == {}
    assert record["parameters"] == {"trained": 2_861_547}


def test_changes_that_make_another_recipe_are_that_recipe(collector, tmp_path):
    both = ["cell_init=orthogonal", "score=scaled_dot"]
    fake_run(tmp_path / "runs" / "a", "snli-100d", settings=both)
    fake_run(tmp_path / "runs" / "b", "snli-100d", settings=both[:1])
    found = collected(collector, tmp_path / "runs")
    assert list(found) == ["snli-100d--cell_init=orthogonal--seed0", "snli-100d-reference--seed0"]
    assert found["snli-100d-reference--seed0"]["overrides"] == {}
    assert found["snli-100d-reference--seed0"]["recipe_name"] == "snli-100d-reference"


def test_numbers_have_six_digits(collector):
    assert collector.short(1.5625e-05) == 1.5625e-05
    assert collector.short(1234.56789) == 1234.57
    assert collector.short(1234567) == 1234567
    assert collector.short("1.23456789") == "1.23456789"


def test_differences(collector):
    packaged = dataclasses.asdict(load_recipe("snli-300d"))
    given = ["batch_size=16", "embedding.dropout=0.3", "seed=4", "checkpoint_seconds=1"]
    recipe = dataclasses.asdict(with_settings(load_recipe("snli-300d"), given))
    recipe["description"] = "in other words"
    assert collector.difference(recipe, packaged) == {
        "model.embedding.dropout": 0.3,
        "training.batch_size": 16,
    }
    # an older run that knew no annealing did not anneal, and one of now may
    old = json.loads(json.dumps(packaged))
    del old["training"]["anneal_rate"]
    del old["model"]["encoder"]["leaf"]
    assert collector.difference(old, packaged) == {}
    recipe = dataclasses.asdict(with_settings(load_recipe("snli-300d"), ["anneal_rate=1e-4"]))
    assert collector.difference(recipe, old) == {"training.anneal_rate": 1e-4}
    # 128 is the default, but not this recipe's
    del old["training"]["batch_size"]
    other = dataclasses.asdict(load_recipe("sst2"))
    assert collector.difference(old, packaged) == {}
    assert collector.difference(old, other)["training.batch_size"] == 128
    # labels found in the data are no change
    text = dataclasses.asdict(load_recipe("text"))
    own = json.loads(json.dumps(text))
    own["model"]["head"]["labels"] = ["bad", "good"]
    assert collector.difference(own, text) == {}


def test_names(collector):
    trees = {"model.encoder.trees": "left"}
    assert collector.stem("snli-300d", {}, 0) == "snli-300d--seed0"
    assert collector.stem("snli-300d", trees, 1) == "snli-300d--trees=left--seed1"
    both = {"training.batch_size": 16, "model.head.dropout": 0.5}
    assert collector.stem("sst2", both) == "sst2--head.dropout=0.5--batch_size=16"
    assert collector.stem("text", {"data.text": "a/b c"}) == "text--text=a_b_c"
    many = {f"model.encoder.long_name_{i}": i for i in range(30)}
    name = collector.stem("sst2", many, 3)
    assert re.fullmatch(r"sst2--30-changes-[0-9a-f]{8}--seed3", name)
    assert collector.stem("sst2", many | {"training.clip": 1.0}, 3) != name
    assert collector.stem("sst2", many, 4).rpartition("--")[0] == name.rpartition("--")[0]


@pytest.mark.parametrize(
    "given",
    [
        "batch_size=16",
        "embedding.dropout=0.25",
        "tuned=true",
        "precision=64",
        "leaf=affine",
        'head.labels=["a b", "c"]',
        "anneal_rate=1e-05",
        "encoder.hidden_dim=7",
        "head.hidden_dim=7",
        "task=demo",
        "data.text=it's",
    ],
)
def test_changes_are_written_as_the_command_takes_them(collector, given):
    plain = load_recipe("snli-300d")
    changed = with_settings(plain, [given])
    own = collector.difference(dataclasses.asdict(changed), dataclasses.asdict(plain))
    written = [collector.setting(key, value) for key, value in own.items()]
    assert len(written) == 1
    assert with_settings(plain, written) == changed
    # no longer than needed
    assert len(written[0]) <= len(given)


def test_folders_at_any_depth(collector, tmp_path):
    fake_run(tmp_path / "all" / "snli" / "seed-0", seed=0)
    fake_run(tmp_path / "all" / "snli" / "seed-1", seed=1)
    single = fake_run(tmp_path / "all" / "sst" / "run", "sst2", test=0.5)
    # a model's own settings.json is not another run's
    (single / "model" / "settings.json").write_text("{}", encoding="utf-8")
    names = ["snli-300d--seed0", "snli-300d--seed1", "sst2--seed0"]
    assert list(collected(collector, tmp_path / "all")) == names
    # named twice is given once
    assert list(collected(collector, single, tmp_path / "all", out="again")) == names


def test_what_is_no_finished_run_is_refused(collector, tmp_path):
    good = fake_run(tmp_path / "runs" / "good", seed=3)

    def refused(pattern, *folders):
        with pytest.raises(ValueError, match=pattern):
            collector.collect([good, *(folders or [tmp_path / "runs"])], tmp_path / "out")
        # nothing of the good one either
        assert files(tmp_path / "out") == {}

    (tmp_path / "empty").mkdir()
    refused(r"empty: expected a run of `gumbeltree train` in it, found none", tmp_path / "empty")
    refused(r"nowhere: expected the folder of a run, got no folder", tmp_path / "nowhere")
    bad = fake_run(tmp_path / "runs" / "bad")
    before = {name: (bad / name).read_bytes() for name in ("settings.json", "metrics.jsonl")}
    (bad / "result.json").rename(bad / "kept")
    refused(r"runs/bad: expected a finished run, it lacks result.json; finish it with --resume")
    (bad / "metrics.jsonl").unlink()
    refused(r"runs/bad: expected a finished run, it lacks metrics.jsonl, result.json$")
    (bad / "kept").rename(bad / "result.json")
    (bad / "metrics.jsonl").write_text("", encoding="utf-8")
    refused(r"bad/metrics.jsonl: expected lines with epoch, seconds, dev_accuracy, got others or n")
    (bad / "metrics.jsonl").write_text('{"epoch": 1', encoding="utf-8")
    refused(r"bad/metrics.jsonl is damaged")
    (bad / "metrics.jsonl").write_bytes(before["metrics.jsonl"])
    for values, pattern in (
        ({"recipe_name": "mine"}, r"runs/bad: its recipe 'mine' is none of the package's"),
        ({"init_digest": "x"}, r"runs/bad: it started from another model \(--init\)"),
        ({"data_digest": "x"}, r"settings.json and model/config.json are of different data"),
        ({"recipe": {"training": {"seed": 0}}}, r"runs/bad: .* it lacks 'model'"),
    ):
        change(bad / "settings.json", **values)
        refused(pattern)
        (bad / "settings.json").write_bytes(before["settings.json"])
    change(bad / "result.json", best_epoch=9.5)
    refused(r"best accuracy at epoch 1.0, result.json at 9.5: they are of different runs")
    change(bad / "result.json", best_epoch=1.0, seed=7)
    refused(r"settings.json and result.json are of different seeds")
    (bad / "result.json").write_text("[]", encoding="utf-8")
    refused(r"bad/result.json is damaged \(no table\)")


def test_another_run_of_the_same_name(collector, tmp_path):
    one, two = fake_run(tmp_path / "one"), fake_run(tmp_path / "two", accuracies=(0.1, 0.9))
    assert collector.collect([one], tmp_path / "out") == ["snli-300d--seed0: new"]
    before = files(tmp_path / "out")
    assert collector.collect([one], tmp_path / "out") == ["snli-300d--seed0: is there"]
    third = fake_run(tmp_path / "three", seed=1)
    with pytest.raises(ValueError, match=r"snli-300d--seed0.json is the record of another run tha"):
        collector.collect([third, two], tmp_path / "out")
    assert files(tmp_path / "out") == before
    assert collector.collect([two], tmp_path / "out", replace=True) == [
        "snli-300d--seed0: replaced"
    ]
    assert files(tmp_path / "out") != before
    with pytest.raises(ValueError, match=r"one and .*two are both snli-300d--seed0; give one of"):
        collector.collect([one, two], tmp_path / "out", replace=True)


def test_merge_orders_are_copied(collector, tmp_path):
    folder, out = fake_run(tmp_path / "run"), tmp_path / "out"
    np.savez_compressed(folder / "dev_orders.npz", order=np.arange(3))
    collector.collect([folder], out)
    copied = out / "snli-300d--seed0.npz"
    assert copied.read_bytes() == (folder / "dev_orders.npz").read_bytes()
    # a replaced record does not keep the orders of another run
    other = fake_run(tmp_path / "other", accuracies=(0.2, 0.1))
    collector.collect([other], out, replace=True)
    assert sorted(files(out)) == ["snli-300d--seed0.json"]


# figures


def test_mean_and_deviation_by_hand(writer):
    # of 1, 2, 6: mean 3, squares 4 + 1 + 9 = 14, over n - 1 = 2 is 7
    assert writer.spread([1.0, 2.0, 6.0]) == "3.00 ± 2.65"
    assert writer.spread([1.0, 2.0]) == "1.50 ± 0.71"
    assert writer.spread([78.615]) in ("78.61", "78.62")


def test_rows_by_hand(collector, writer, tmp_path):
    # best after 60, 120 and 30 seconds: 70 on average, 1.17 minutes; epochs 1, 1 and 0.5
    fake_run(tmp_path / "runs" / "0", seed=0, accuracies=(0.5, 0.7, 0.6), seconds=30)
    fake_run(tmp_path / "runs" / "1", seed=1, accuracies=(0.5, 0.8, 0.6), seconds=60)
    fake_run(tmp_path / "runs" / "2", seed=2, accuracies=(0.76, 0.75), seconds=30)
    collected(collector, tmp_path / "runs", alone=True)
    header, row = rows(results(writer)["table 1"])
    # (70, 80, 76): mean 75.33, deviation sqrt((28.4 + 21.8 + 0.4) / 2) = 5.03
    assert dict(zip(header, row, strict=True)) == {
        "recipe": "`snli-300d`",
        "paper, test": "85.6",
        "ours, dev": "75.33 ± 5.03",
        "seeds": "3",
        "paper, parameters": "2.9M",
        "ours, parameters": "2,861,547",
        "paper, hours": "1.6",
        "ours, minutes": "1.2",
    }
    (group,) = writer.group(writer.read_records(Path("records")))
    assert writer.epochs(group) == "0.8"


def test_the_code_of_a_row(collector, writer, tmp_path, monkeypatch):
    monkeypatch.setattr(collector, "sources", lambda: {"f" * 40: "5" * 40})
    clean = {"commit": "a" * 40, "clean": True, "source": "1" * 40}
    for seed, code in enumerate(
        [
            [clean],
            # changed, but to what another commit has
            [{"commit": "a" * 40, "clean": False, "source": "5" * 40}],
            [{"commit": "b" * 40, "clean": False, "source": "2" * 40}],
            [clean, {"commit": None, "clean": None, "source": "3" * 40}],
        ]
    ):
        folder = fake_run(tmp_path / "runs" / str(seed), seed=seed)
        change(folder / "result.json", code=code)
    collected(collector, tmp_path / "runs")
    header, row = rows(results(writer)["table 1"])
    known = "`aaaaaaa`, `fffffff`, `bbbbbbb` modified, source `3333333`"
    assert row[header.index("code")] == known
    collected(collector, fake_run(tmp_path / "old", seed=4))
    assert rows(results(writer)["table 1"])[1][-1] == f"{known}, others not recorded"


def test_commits_are_found_by_the_digest_of_the_package(collector):
    # of the commit that began to record it, which every record since is compared with
    source = "8dc36a5c165a1b4675daee13810c3864e39f510f"
    if source not in collector.sources().values():
        pytest.skip("not in a repository with the package's history")
    found = collector.known_commit({"commit": None, "clean": None, "source": source})
    assert found["commit"].startswith("c0d1f45")
    assert found["clean"]
    unknown = {"commit": None, "clean": None, "source": "0" * 40}
    assert collector.known_commit(unknown) == unknown


def test_that_a_run_was_alone_is_kept(collector, tmp_path):
    run = fake_run(tmp_path / "run")
    assert "alone" not in collected(collector, run)["snli-300d--seed0"]
    assert collected(collector, run, alone=True, replace=True)["snli-300d--seed0"]["alone"]
    assert collector.collect([run], Path("records")) == ["snli-300d--seed0: is there"]
    assert collected(collector, run)["snli-300d--seed0"]["alone"]


def test_all_seeds_of_a_recipe_count(collector, writer, tmp_path):
    for seed in range(4):
        fake_run(tmp_path / "runs" / f"{seed}", "sst2", seed=seed, test=0.8 + 0.02 * seed)
    collected(collector, tmp_path / "runs")
    found = results(writer)
    header, row = rows(found["table 2"])
    assert (row[header.index("ours, test")], row[header.index("seeds")]) == ("83.00 ± 2.58", "4")
    header, row, *_ = rows(found["authors"])
    assert row[header.index("ours")] == "`sst2` 83.00 ± 2.58"
    assert row[header.index("seeds")] == "4"


def test_times_are_drawn_where_they_can_be_compared(collector, writer, tmp_path):
    def width(**options):
        collected(collector, tmp_path / "runs", **options)
        writer.pictures(writer.group(writer.read_records(Path("records"))), Path("images"))
        # a PNG has its width in bytes 16 to 20
        return int.from_bytes(Path("images/convergence.png").read_bytes()[16:20], "big")

    fake_run(tmp_path / "runs" / "0", "snli-300d")
    fake_run(tmp_path / "runs" / "1", "snli-600d")
    shared = width()
    assert width(alone=True, replace=True) > 1.2 * shared


def test_minutes_are_those_of_runs_that_were_alone(collector, writer, tmp_path):
    collected(collector, fake_run(tmp_path / "0", seed=0, seconds=4.5))
    assert rows(results(writer)["table 1"])[1][-1] == "≤ 0.15"
    collected(collector, fake_run(tmp_path / "1", seed=1, seconds=9), alone=True)
    assert rows(results(writer)["table 1"])[1][-1] == "0.30"


def test_test_accuracy_is_shown_where_there_is_one(collector, writer, tmp_path):
    fake_run(tmp_path / "runs" / "0", seed=0, test=0.72)
    fake_run(tmp_path / "runs" / "1", seed=1, test=0.74)
    fake_run(tmp_path / "runs" / "2", seed=2)
    collected(collector, tmp_path / "runs")
    header, row = rows(results(writer)["table 1"])
    assert row[header.index("ours, test")] == "73.00 ± 1.41 (2 of 3)"
    assert row[header.index("ours, dev")] == "70.00 ± 0.00"


def test_curves_by_hand(writer):
    def run(epochs, accuracies):
        lines = zip(epochs, accuracies, strict=True)
        return {"metrics": [{"epoch": e, "dev_accuracy": a} for e, a in lines]}

    group = writer.Group("x", {}, [run([1, 2, 3], [0.1, 0.3, 0.7]), run([1.5, 2], [0.4, 0.5])])
    curve = importlib.import_module("results_pictures").curve
    places, mean, low, high = curve(group)
    # the range both have; at 1.5 the first is half way from 0.1 to 0.3
    assert places.tolist() == [1.5, 2]
    assert low.tolist() == pytest.approx([0.2, 0.3])
    assert high.tolist() == pytest.approx([0.4, 0.5])
    assert mean.tolist() == pytest.approx([0.3, 0.4])


# the page


def many(tmp_path):
    """Make runs for every section."""
    runs = tmp_path / "many"
    for seed in (0, 1):
        for name in ("snli-600d", "snli-100d", "snli-100d-affine", "snli-300d", "snli-300d-affine"):
            fake_run(runs / f"{name}-{seed}", name, seed)
    fake_run(runs / "sst5", "sst5", test=0.5)
    fake_run(runs / "sst2", "sst2", test=0.9)
    fake_run(runs / "small", "sst2-100d", test=0.8)
    fake_run(runs / "b16", settings=["batch_size=16"], accuracies=(0.4, 0.5, 0.6))
    fake_run(runs / "b32", settings=["batch_size=32"])
    fake_run(runs / "cold", settings=["anneal_rate=1e-4"])
    fake_run(runs / "wide", settings=["clip=1.0"])
    fake_run(runs / "demo", "demo", test=0.9)
    return runs


def test_grouping_and_order(collector, writer, tmp_path):
    collected(collector, many(tmp_path))
    found = results(writer)
    assert [row[0] for row in rows(found["table 1"])[1:]] == [
        "`snli-100d-affine`",
        "`snli-100d`",
        "`snli-300d-affine`",
        "`snli-300d`",
        "`snli-600d`",
    ]
    # by task, the published one first; changed runs are elsewhere
    assert [row[:4] for row in rows(found["table 2"])[1:]] == [
        ["`sst2`", "90.7", "90.00", "70.00"],
        ["`sst2-100d`", "", "80.00", "70.00"],
        ["`sst5`", "53.7", "50.00", "70.00"],
    ]
    leaf = rows(found["leaf"])[1:]
    assert [(r[0], r[1], r[3]) for r in leaf] == [
        ("`snli-100d-affine`", "affine", "2"),
        ("`snli-100d`", "lstm", "2"),
        ("`snli-300d-affine`", "affine", "2"),
        ("`snli-300d`", "lstm", "2"),
    ]
    batch = rows(found["batch"])
    assert batch[0][1:4] == ["batch", "dev", "seeds"]
    assert [(r[1], r[2], r[3], r[4], r[5]) for r in batch[1:]] == [
        ("16", "60.00", "1", "1.5", "≤ 1.5"),
        ("32", "70.00", "1", "1.0", "≤ 1.0"),
        ("128", "70.00 ± 0.00", "2", "1.0", "≤ 1.0"),
    ]
    anneal = rows(found["anneal rate"])[1:]
    assert [(r[0], r[1]) for r in anneal] == [("`snli-300d`", "0.0"), ("`snli-300d`", "0.0001")]
    assert found["trees"] == "No runs on record."
    assert [r[0] for r in rows(found["others"])[1:]] == ["`snli-300d`, `clip=1.0`", "`demo`"]
    beside = rows(found["authors"])
    assert ["SST-2, 300D", "test", "88.80", "1", "", "`sst2` 90.00", "1"] in beside
    both = "`snli-100d` 70.00 ± 0.00"
    assert [row[5] for row in beside if row[0] == "SNLI part, 100D"] == [both, both]


def test_the_page_keeps_its_text(collector, writer, tmp_path):
    collected(collector, many(tmp_path))
    Path("page.md").write_text(page_for(results(writer)), encoding="utf-8")
    command = [sys.executable, SCRIPTS / "write_results.py", "--runs", "records"]
    pages = []
    for hashes in "78":
        done = subprocess.run(
            [*command, "--page", "page.md", "--images", f"images{hashes}"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONHASHSEED": hashes},
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        pages.append((Path("page.md").read_bytes(), files(Path(f"images{hashes}"))))
    assert pages[0] == pages[1]
    text, drawn = pages[0]
    for name, content in results(writer).items():
        assert f"About {name}.\n\n<!-- results: {name} -->\n\n{content}\n\n<!-- end -->" in (
            text.decode()
        )
    assert sorted(drawn) == ["batch-size-snli-300d.png", "convergence.png"]
    assert all(content.startswith(b"\x89PNG") for content in drawn.values())


def test_a_page_without_a_place_for_a_section_is_refused(writer):
    with pytest.raises(ValueError, match=r"expected the sections a, b, each once, .* got b, c"):
        writer.written(page_for("bc"), {"a": "1", "b": "2"})


def trees_record(record, trees, seed=0):
    """Return a record as one with other trees would be, whether the package knows them or not."""
    recipe = json.loads(json.dumps(record["recipe"]))
    recipe["model"]["encoder"]["trees"] = trees
    recipe["training"]["seed"] = seed
    return record | {
        "recipe": recipe,
        "seed": seed,
        "overrides": {**record["overrides"], "model.encoder.trees": trees},
    }


def test_trees(collector, writer, tmp_path):
    (record,) = collected(collector, fake_run(tmp_path / "run")).values()
    record["recipe"]["model"]["encoder"].pop("trees", None)
    records = [trees_record(record, x) for x in ("random", "right", "left", "balanced")]
    found = writer.sections(writer.group([*records, record]))
    part = found["trees"]
    assert [row[1] for row in rows(part)[1:]] == ["learned", "left", "right", "balanced", "random"]
    given = "gumbeltree train snli-300d --data $snli --vectors $glove840"
    assert shell(part)[0] == given
    assert shell(part)[1] == f"{given} --set trees=left --out runs/snli-300d--trees=left"
    assert len(rows(found["table 1"])) == 2
    # without the learned trees beside them they are shown nevertheless
    found = writer.sections(writer.group(records[:1]))
    assert [row[1] for row in rows(found["trees"])[1:]] == ["random"]
    assert found["table 1"] == "No runs on record."


def test_tuned_recipes_are_explained_and_last(collector, writer, tmp_path):
    (record,) = collected(
        collector, fake_run(tmp_path / "run", settings=["head.dropout=0.3", "batch_size=64"])
    ).values()
    tuned = record | {"recipe_name": "snli-300d-tuned", "overrides": {}}
    (plain,) = collected(collector, fake_run(tmp_path / "p"), out="plain").values()
    (other,) = collected(collector, fake_run(tmp_path / "o", "snli-600d"), out="other").values()
    found = writer.sections(writer.group([tuned, other, plain]))
    table = rows(found["table 1"])
    names = ["`snli-300d`", "`snli-600d`", "`snli-300d-tuned`"]
    assert [row[0] for row in table[1:]] == names
    assert table[3][1] == ""
    assert rows(found["tuned"])[1:] == [
        ["`snli-300d-tuned`", "`snli-300d`, `head.dropout=0.3`, `batch_size=64`"]
    ]
    command = "gumbeltree train snli-300d-tuned --data $snli --vectors $glove840"
    assert shell(found["table 1"])[2] == command


def test_vectors_from_elsewhere_are_in_the_command(collector, writer, tmp_path):
    folder = fake_run(tmp_path / "run", settings=["missing_vectors=parts"])
    (record,) = collected(collector, folder).values()
    vectors = {"file": "glove.840B.300d.zip", "borrowed": {"file": "glove.6B.zip", "tokens": 8}}
    record = record | {"data": record["data"] | {"vectors": vectors}}
    (command,) = writer.commands(writer.group([record])[0])
    assert "--vectors $glove840 --more-vectors $glove6 --set missing_vectors=parts" in command


def test_seeds_in_commands(collector, writer, tmp_path):
    for seed in (0, 1, 2, 5, 7, 8):
        fake_run(tmp_path / "runs" / str(seed), seed=seed)
    collected(collector, tmp_path / "runs")
    (group,) = writer.group(writer.read_records(Path("records")))
    given = "gumbeltree train snli-300d --data $snli --vectors $glove840"
    assert writer.commands(group) == [
        f"{given} --seeds 3",
        f"{given} --seed 5 --out runs/snli-300d--seed5",
        f"{given} --seed 7 --seeds 2 --out runs/snli-300d--seed7",
    ]


def test_runs_that_cannot_be_compared_are_refused(collector, writer, tmp_path):
    one = fake_run(tmp_path / "one")
    collected(collector, one, fake_run(tmp_path / "two", seed=1, digest="e"), out="data")
    with pytest.raises(ValueError, match="records of snli-300d differ in more than the seed"):
        results(writer, "data")
    collected(
        collector, one, fake_run(tmp_path / "b", settings=["batch_size=16"], digest="e"), out="f"
    )
    with pytest.raises(ValueError, match="expected runs on the same data, to be compared"):
        results(writer, "f")
    # the recipe was another one when this was collected
    record = collected(collector, one, out="recipe")["snli-300d--seed0"]
    record["recipe"]["training"] |= {"seed": 1, "clip": 1.0}
    write_json(Path("recipe/snli-300d--seed1.json"), record | {"seed": 1})
    with pytest.raises(ValueError, match="records of snli-300d differ in more than the seed"):
        results(writer, "recipe")


def test_bad_records_are_refused(writer):
    Path("records").mkdir()
    with pytest.raises(ValueError, match="records: expected records of runs, found none"):
        results(writer)
    Path("records/x.json").write_text("[", encoding="utf-8")
    with pytest.raises(ValueError, match=r"x.json: expected the record of a run, got "):
        results(writer)
    for name in "xy":
        write_json(Path(f"records/{name}.json"), {"recipe_name": "a", "overrides": {}, "seed": 1})
    with pytest.raises(ValueError, match=r"x.json and records/y.json are both a--seed1; keep one"):
        results(writer)


def test_errors_of_the_scripts_are_one_line(collector, writer, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    for script, given in ((collector, "empty"), (writer, "--runs=empty")):
        monkeypatch.setattr(sys, "argv", ["script", given])
        with pytest.raises(SystemExit, match=r"^\w+: error: empty: expected .*[^\n]$"):
            script.main()


def test_the_script_that_collects(collector, tmp_path, monkeypatch, capsys):
    one = fake_run(tmp_path / "one")
    monkeypatch.setattr(sys, "argv", ["script", str(one), "--out", "records"])
    collector.main()
    assert capsys.readouterr().out == "snli-300d--seed0: new\n"
    other = fake_run(tmp_path / "other", accuracies=(0.1, 0.2))
    monkeypatch.setattr(sys, "argv", ["script", str(other), "--out", "records"])
    with pytest.raises(SystemExit, match="pass --replace to put this one in its place"):
        collector.main()
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--replace"])
    collector.main()
    assert capsys.readouterr().out == "snli-300d--seed0: replaced\n"


# a real run


def snli_files(folder):
    """Write a data set of SNLI's form, which the words decide."""
    generator = random.Random(3)
    folder.mkdir()
    for split, count in (("train", 60), ("dev", 20)):
        with open(folder / f"snli_1.0_{split}.jsonl", "w", encoding="utf-8") as file:
            for _ in range(count):
                label = generator.choice(["neutral", "entailment", "contradiction"])
                one, two = (
                    " ".join(generator.choices(["a", "man", "dog", "runs", label[:3]], k=4))
                    for _ in range(2)
                )
                row = {"gold_label": label, "sentence1": one, "sentence2": two}
                file.write(json.dumps(row) + "\n")
    return folder


def test_a_real_run_from_training_to_the_page(collector, writer, cli, tmp_path):
    data = snli_files(tmp_path / "snli")
    recipe = load_recipe("snli-100d-affine")
    prepared = prepare(recipe, data)
    for seed in (0, 1):
        one = with_settings(recipe, [f"seed={seed}"])
        train(one, prepared, tmp_path / f"runs/seed-{seed}", recipe_name="snli-100d-affine")
    few = with_settings(recipe, ["epochs=2"])
    train(few, prepared, tmp_path / "few", recipe_name="snli-100d-affine")
    records = collected(collector, Path("runs"), Path("few"))
    assert list(records) == [
        "snli-100d-affine--epochs=2--seed0",
        "snli-100d-affine--seed0",
        "snli-100d-affine--seed1",
    ]
    record = records["snli-100d-affine--seed1"]
    model = load("runs/seed-1")
    counts = {True: 0, False: 0}
    for name, parameter in model.named_parameters():
        counts[name.startswith("embedding.")] += parameter.numel()
    assert record["parameters"] == {"trained": counts[False], "word_vectors": counts[True]}
    assert counts[False] == 201_603
    assert record["data"]["examples"] == {"train": 60, "dev": 20}
    assert record["data"]["vectors"] == {}
    assert len(record["metrics"]) == 15
    best = next(
        line
        for line in record["metrics"]
        if line["dev_accuracy"] == line["best_accuracy"]
        and line["epoch"] == record["result"]["best_epoch"]
    )
    assert record["best"] == {"epoch": best["epoch"], "seconds": best["seconds"]}
    found = results(writer)
    (_, row) = rows(found["table 1"])
    each = [read(Path(f"runs/seed-{seed}/result.json"))["dev_accuracy"] for seed in (0, 1)]
    mean, deviation = 50 * sum(each), 100 * abs(each[0] - each[1]) / 2**0.5
    assert row[2] == f"{mean:.2f} ± {deviation:.2f}"
    assert f"201,603 + {counts[True]:,}" in row
    assert record["code"] == [code_version()] or record["code"][0]["clean"]
    # the page's own command makes the same run again
    (other,) = shell(found["others"])
    words = shlex.split(other.replace("$snli", str(data)))
    assert words[0] == "gumbeltree"
    assert cli(*words[1:], "--quiet").code == 0
    again = collected(collector, Path("runs/snli-100d-affine--epochs=2"), out="again")
    (name, repeated), *none = again.items()
    assert not none
    assert repeated["result"]["dev_loss"] == records[name]["result"]["dev_loss"]
    assert repeated["overrides"] == {"training.epochs": 2}


# what is committed


def test_the_page_is_what_the_records_give(writer):
    page = ROOT / "docs" / "results.md"
    text = page.read_text(encoding="utf-8")
    found = results(writer, SCRIPTS / "results" / "runs")
    assert writer.written(text, found) == text, "run python benchmarks/write_results.py"


def test_the_readme_repeats_the_page(writer):
    found = results(writer, SCRIPTS / "results" / "runs")
    exact = {}
    for name, column in (("table 1", "ours, dev"), ("table 2", "ours, test")):
        header, *body = rows(found[name])
        for row in body:
            exact[row[0]] = row[header.index(column)], row[header.index("seeds")]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(
        r"^\| (`[\w-]+`) \| .*? \| ([\d.]+) ± ([\d.]+) \| (\d+) \|", readme, re.MULTILINE
    )
    assert len(shown) >= 4
    for recipe, mean, deviation, seeds in shown:
        value, count = exact[recipe]
        assert (mean, deviation) == tuple(f"{float(x):.1f}" for x in value.split(" ± ")), recipe
        assert seeds == count, recipe
