"""Finished runs are collected, and docs/results.md is written from them."""

import importlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from gumbeltree.config import load_recipe, with_settings
from gumbeltree.data.compile import prepare
from gumbeltree.training.loop import train
from tests.runs import small

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def collector():
    return importlib.import_module("collect_runs")


@pytest.fixture(scope="module")
def writer():
    return importlib.import_module("write_results")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of a small run."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        recipe = small(f"seed={seed}")
        train(recipe, prepare(recipe), folder / f"seed-{seed}", recipe_name="demo")
    return folder


def result(folder):
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


def test_collected_runs_appear_in_the_table(collector, writer, runs, tmp_path):
    out = tmp_path / "runs.jsonl"
    assert len(collector.collect([runs], out, exclusive=True)) == 2
    (group,) = writer.group(collector.read_runs(out))
    assert [run["seed"] for run in group.runs] == [0, 1]
    a, b = (100 * result(runs / f"seed-{seed}")["test_accuracy"] for seed in (0, 1))
    row = writer.tables([group])["others"].splitlines()[-1]
    assert "`demo`, " in row
    assert "`embedding_dim=8`" in row
    assert f"{(a + b) / 2:.2f} ± {abs(a - b) / 2**0.5:.2f}" in row
    # the listed changes repeat the experiment
    again = with_settings(load_recipe("demo"), group.set)
    assert again == small(f"checkpoint_seconds={again.training.checkpoint_seconds}")


def test_a_different_run_needs_replace(collector, runs, tmp_path):
    out = tmp_path / "runs.jsonl"
    collector.collect([runs / "seed-0"], out)
    before = out.read_bytes()
    collector.collect([runs / "seed-0"], out)
    assert out.read_bytes() == before
    other = shutil.copytree(runs / "seed-0", tmp_path / "other")
    changed = result(other) | {"dev_accuracy": 0.5}
    (other / "result.json").write_text(json.dumps(changed), encoding="utf-8")
    with pytest.raises(ValueError, match="--replace"):
        collector.collect([runs / "seed-1", other], out)
    assert out.read_bytes() == before
    collector.collect([other], out, replace=True)
    assert [run["dev_accuracy"] for run in collector.read_runs(out)] == [0.5]


def test_rejects_folders_without_a_finished_run(collector, runs, tmp_path):
    with pytest.raises(ValueError, match="contains no run"):
        collector.collect([tmp_path], tmp_path / "runs.jsonl")
    unfinished = shutil.copytree(runs / "seed-0", tmp_path / "run")
    (unfinished / "result.json").unlink()
    with pytest.raises(ValueError, match="--resume"):
        collector.collect([unfinished], tmp_path / "runs.jsonl")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("snli-300d", ["trees=left"]),
        ("snli-300d", ["embedding.dropout=0.3", "leaf=bilstm", "batch_size=16"]),
        ("sst2", ["missing_vectors=parts", "anneal_rate=0.0001"]),
        ("logic-policy", ["parser.hidden_dim=16", "tunes_words=true"]),
        # equals another packaged recipe
        ("snli-100d", ["cell_init=orthogonal", "score=scaled_dot"]),
    ],
)
def test_changes_lead_from_the_packaged_recipe_to_the_run(collector, name, changes):
    recipe = with_settings(load_recipe(name), [*changes, "seed=4", "checkpoint_seconds=1"])
    found, listed = collector.identify(name, collector.dataclasses.asdict(recipe))
    if name == "snli-100d":
        assert (found, listed) == ("snli-100d-reference", [])
    else:
        assert (found, listed) == (name, changes)


def run(seed, seconds, exclusive, recipe="snli-300d", digest="d", **more):
    """Return a collected run."""
    return {
        **{"recipe": recipe, "set": [], "seed": seed, "dev_accuracy": 0.7 + 0.02 * seed},
        **{"best_epoch": 1.5, "best_seconds": seconds, "exclusive": exclusive, "code": []},
        **{"parameters": {"trained": 1234, "word_vectors": 56}, "data": {"digest": digest}},
        "machine": "NVIDIA H200",
        **more,
    }


def test_cells_of_a_group(writer):
    code = {"commit": "a" * 40, "clean": True, "source": "1" * 40}
    members = [run(0, 60, False, best_epoch=9), run(1, 30, True, code=[code]), run(2, 42, True)]
    (group,) = writer.group(members)
    assert writer.accuracy(group, "dev") == "72.00 ± 2.00"
    assert writer.accuracy(group, "test") == ""
    # the mean of the exclusive runs
    assert writer.minutes(group) == "0.60"
    assert writer.minutes(group._replace(runs=members[:1])) == "≤ 1.0"
    assert writer.minutes_of_epoch(group) == pytest.approx(0.6 / 1.5)
    assert writer.minutes_of_epoch(group._replace(runs=members[:1])) is None
    on_cpu = run(0, 60, False, machine="CPU, 1 threads")
    assert writer.minutes(group._replace(runs=[on_cpu])) == "≤ 1.0 (CPU)"
    assert writer.minutes(group._replace(runs=[on_cpu, members[0]])) == "≤ 1.0"
    assert writer.commits(group) == "`aaaaaaa`, others not recorded"
    # a later commit with the same source files is the same code
    again = code | {"commit": "b" * 40}
    changed = code | {"commit": "c" * 40, "source": "2" * 40}
    same = [run(seed, 1, True, code=[x]) for seed, x in enumerate((code, again, changed))]
    assert writer.commits(group._replace(runs=same)) == "`aaaaaaa`, `ccccccc`"
    assert writer.parameters(group) == "1,234 + 56"


def test_shared_runs_take_the_time_of_a_step_alone(writer, tmp_path, monkeypatch):
    times = tmp_path / "step_times.json"
    rows = {"snli-300d trees=left pool=1": {"seconds": 0.5}, "snli-300d": {"seconds": 9}}
    times.write_text(json.dumps({"rows": rows}), encoding="utf-8")
    monkeypatch.setattr(writer, "TIMES", times)
    writer.step_times.cache_clear()
    shared = [
        run(x, 600, False, best_step=100 + 20 * x, set=["pool=1", "trees=left"]) for x in (0, 1)
    ]
    alone = run(2, 6, True, best_step=1, set=["pool=1", "trees=left"])
    try:
        for members, minutes in (
            (shared, "0.92"),
            # runs alone are more exact than their steps
            ([*shared, alone], "0.10"),
            # without steps and without a time, shared runs are an upper bound
            ([shared[0] | {"set": ["pool=2"]}], "≤ 10.0"),
            ([{k: v for k, v in shared[0].items() if k != "best_step"}], "≤ 10.0"),
        ):
            (group,) = writer.group(members)
            assert writer.minutes(group) == minutes
    finally:
        writer.step_times.cache_clear()


def test_evaluations_on_further_files_are_collected(collector, runs, tmp_path):
    assert "tests" not in collector.read_run(runs / "seed-0")
    folder = shutil.copytree(runs / "seed-0", tmp_path / "seed-0")
    found = [
        {"file": "data/long.tsv", "examples": 7, "mean_words": 9.5, "accuracy": 0.5, "loss": 1}
    ]
    # several files, or one
    for content in (found, found[0]):
        (tmp_path / "seed-0.json").write_text(json.dumps(content))
        tests = {"long": {"examples": 7, "mean_words": 9.5, "accuracy": 0.5}}
        assert collector.read_run(folder)["tests"] == tests


def test_rejects_seeds_trained_on_different_data(writer):
    with pytest.raises(ValueError, match="snli-300d"):
        writer.group([run(0, 1, True), run(1, 1, True, digest="other")])


def test_the_pages_have_the_tables_of_the_collected_runs(collector, writer):
    for path, found in writer.pages(writer.group(collector.read_runs())).items():
        text = path.read_text(encoding="utf-8")
        assert found == text, "run python benchmarks/write_results.py"
    with pytest.raises(ValueError, match="trained"):
        writer.fill(text.replace("results: trained", "results: other"), {"trained": ""})


def rows(text, *names):
    """Return the cells of the rows of a table that name a recipe, in its order."""
    found = [[x.strip() for x in row.split("|")[1:-1]] for row in text.splitlines()]
    return [cells for cells in found if any(f"`{name}`" in cells for name in names)]


def test_systems_without_runs_have_empty_cells(collector, writer):
    found = writer.tables([])
    (lstm,) = rows(found["accuracy snli"], "lstm")
    source = "[Bowman et al. 2016](https://arxiv.org/abs/1603.06021)"
    assert lstm == [f"300D LSTM ({source})", "80.6", "`lstm`"]
    assert rows(found["cost snli"], "lstm") == [["`lstm`", "3.0M", "3,010,195", "4 †"]]
    for name in ("differences", "figure 3", *(f"picture {task}" for task in writer.TASKS)):
        assert found[name] == writer.NONE
    # pretrained on other text, so there is no recipe
    assert (
        "[McCann et al. 2017](https://arxiv.org/abs/1708.00107)) | 90.3 |"
        in (found["accuracy sst2"])
    )
    assert "So far, 0 of" in writer.trained_sentence([])


def test_every_recipe_of_the_plans_has_a_line(writer):
    plans = importlib.import_module("train_all")
    names = {
        run.train[1]
        for plan in ("paper", "peers")
        for run in plans.read_plan(ROOT / "benchmarks" / "plans" / f"{plan}.toml", ROOT)
    }
    shown = {line.recipe for task in writer.TASKS for line in writer.lines(task, {})}
    assert shown - {""} == names | {"sst2-100d"}


def test_what_stands_beside_the_accuracy(writer):
    data = {"digest": "d", "examples": {"train": 549_367}, "vectors": {"file": "a.subset.txt"}}
    groups = writer.group([run(0, 30, True, name, data=data) for name in ("nse", "spinn-pi")])
    table = writer.tables(groups)["accuracy snli"]
    (nse,), (spinn,) = rows(table, "nse"), rows(table, "spinn-pi")
    assert nse[-1] == "cased words, mostly lower-case GloVe subset"
    # all of SNLI has official parses
    assert spinn[-1] == "GloVe subset"
    sst2 = [(line.recipe, line.note) for line in writer.lines("sst2", {})]
    first = sst2.index(("rntn-sst2", ""))
    assert sst2[first + 1] == ("rntn-sst5", "two classes read from five")


def test_matched_settings_and_those_of_the_authors_have_lines_of_their_own(writer):
    data = {"digest": "d", "examples": {"train": 150_916}, "vectors": {"file": "a.subset.txt"}}
    members = [
        *(run(seed, 30, True, "lstm-matched", data=data, test_accuracy=0.7) for seed in (0, 1)),
        run(0, 60, False, "lstm", data=data),
        *(run(seed, 30, True, "snli-300d", data=data, test_accuracy=0.6) for seed in (0, 1)),
        run(0, 30, True, "spinn-pi", data=data, test_accuracy=0.5)
        | {"tests": {"snli_1.0_test": {"accuracy": 0.625}}},
    ]
    groups = writer.group(members)
    found = writer.tables(groups)
    part = "27 % of SNLI, GloVe subset"
    authors, matched = rows(found["accuracy snli"], "lstm", "lstm-matched")
    assert authors[1:] == ["80.6", "`lstm`", "70.00", "", "1", part]
    assert matched == ["", "", "`lstm-matched`", "71.00 ± 1.41", "70.00 ± 0.00", "2", part]
    silver, official = rows(found["accuracy snli"], "spinn-pi")
    assert silver[3:] == ["70.00", "50.00", "1", f"{part}, silver parses"]
    assert official[3:5] == ["", "62.50"]
    assert official[6] == f"{part}, silver parses, official parses of the test file"
    costs = rows(found["cost snli"], "lstm", "lstm-matched")
    assert [row[0] for row in costs] == ["`lstm`", "`lstm-matched`"]
    assert "| `spinn-pi` (silver parses) | 3.7M |" in found["cost snli"]
    plain = {each.recipe: each for each in groups}
    assert "spinn-pi (silver)" in [x[0] for x in writer.points(writer.lines("snli", plain))[1]]
    assert costs[0][1:] == ["3.0M", "1,234 + 56", "4 †", "1.5", "≤ 1.0"]
    (row,) = rows(found["differences"], "lstm-matched")
    # two degrees of freedom: 4.303 sqrt(1 + 1) = 6.08
    assert row[2:4] == ["+0.00 [−6.08, +6.08]", "+10.00 [+10.00, +10.00]"]
    assert found["picture snli"].startswith("![")
    assert "So far, 3 of 48 recipes" in writer.trained_sentence(groups)


def test_two_classes_are_read_from_a_model_of_five(writer):
    more = {"test_accuracy": 0.5, "dev_binary_accuracy": 0.8, "test_binary_accuracy": 0.9}
    found = writer.tables(writer.group([run(0, 1, True, "constituency-dropout-sst5", **more)]))
    (two,) = rows(found["accuracy sst2"], "constituency-dropout-sst5")
    (five,) = rows(found["accuracy sst5"], "constituency-dropout-sst5")
    assert (two[3:5], five[3:5]) == (["80.00", "90.00"], ["70.00", "50.00"])


@pytest.mark.parametrize(
    ("ours", "theirs", "text"),
    [
        # equal variances 4, so four degrees of freedom: 2.776 sqrt(4/3 + 4/3) = 4.53
        ([70, 72, 74], [69, 71, 73], "+1.00 [−3.53, +5.53]"),
        # all of the variance in one sample, so two: 4.303 sqrt(4/3) = 4.97
        ([70, 70], [70, 72, 74], "−2.00 [−6.97, +2.97]"),
        ([70, 72], [69], "+2.00"),
        ([], [69, 70], ""),
    ],
)
def test_difference_of_means_with_its_interval(writer, ours, theirs, text):
    assert writer.difference(ours, theirs) == text


def test_candidates_of_tuned_recipes_are_in_the_order_of_development_accuracy(writer):
    changed = {"set": ["missing_vectors=parts"], "dev_accuracy": 0.8}
    members = [run(0, 1, True, "sst2"), run(0, 1, True, "sst2-tuned", dev_accuracy=0.75)]
    groups = writer.group([*members, run(0, 1, True, "sst2", **changed)])
    names = [each.name for each in writer.select_candidates(groups)]
    assert names == ["sst2 missing_vectors=parts", "sst2-tuned", "sst2"]


def test_the_page_on_long_inputs_has_the_recorded_tables(tmp_path):
    page = importlib.import_module("write_generalise")
    runs = page.read_groups()
    text = (ROOT / "docs" / "generalise.md").read_text(encoding="utf-8")
    again = page.fill(text, page.tables(runs, page.read_json(page.TREES)))
    assert again == text, "run python benchmarks/write_generalise.py"
    page.draw(
        [x for x in runs["generalise"] if x.recipe == "listops-beams"], tmp_path / "picture.png"
    )
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_restarts_keep_the_run_with_the_highest_development_accuracy():
    page = importlib.import_module("write_generalise")
    found = []
    for seed in page.RESTARTS:
        # the higher the development accuracy, the lower that on the test pairs
        tests = {"test": {"accuracy": 1 - seed / 100}}
        dev = {"dev_accuracy": seed / 100, "dev_loss": seed}
        found.append(run(seed, 1, True, "logic-policy", tests=tests, **dev))
    rows = [line.strip("| ").split(" | ") for line in page.restarts(page.group(found)).splitlines()]
    assert rows[2] == ["1", "15", "88.00 ± 4.47", "88.00 ± 4.47"]
    # of two of the seeds 5 to 19, the larger is 14 2/3 on average, and the smaller 9 1/3
    assert rows[3][:2] == ["2", "105"]
    assert [x.split()[0] for x in rows[3][2:]] == ["85.33", "90.67"]
    assert [row[1] for row in rows[4:]] == ["455", "3,003"]


def test_pictures_are_drawn_from_curves(writer, tmp_path):
    curve = {"epoch": [1, 2, 3], "dev_accuracy": [0.5, 0.6, 0.7], "seconds": [1, 2, 3]}
    members = [run(seed, 30, True, name, curve=curve) for seed in (0, 1) for name in writer.PAPER]
    writer.draw_pictures(writer.group(members), tmp_path)
    assert (tmp_path / "convergence.png").read_bytes().startswith(b"\x89PNG")
    # the others compare systems
    assert len(list(tmp_path.iterdir())) == 2
    members += [run(0, 90, True, name, curve=curve) for name in ("nse", "nse-matched", "nse-sst2")]
    writer.draw_pictures(writer.group(members), tmp_path)
    names = {"comparison-snli.png", "comparison-sst2.png", "convergence-systems.png"}
    assert {path.name for path in tmp_path.iterdir()} > names


def test_curves_are_drawn_over_minutes_where_these_are_known(monkeypatch, tmp_path):
    pictures = importlib.import_module("results_pictures")
    drawn = []
    monkeypatch.setattr(pictures, "save_picture", lambda figure, _: drawn.append(figure))
    curve = {"epoch": [1, 2, 3], "dev_accuracy": [0.5, 0.6, 0.7]}
    groups = {name: SimpleNamespace(runs=[{"curve": curve}]) for name in "abc"}
    pictures.draw(groups, tmp_path / "x.png", paces={"a": 2.0, "b": None, "c": 0.5})
    pictures.draw(groups, tmp_path / "x.png", paces={"a": 2.0, "b": None, "c": None})
    epochs, minutes = ([line.get_xdata() for line in axis.lines] for axis in drawn[0].axes)
    assert [axis.get_xlabel() for axis in drawn[0].axes] == ["epochs", "minutes"]
    grid = epochs[0]
    assert (grid[0], grid[-1], len(epochs)) == (1, 3, 3)
    assert [x.tolist() for x in minutes] == [(2 * grid).tolist(), (0.5 * grid).tolist()]
    assert [axis.get_xlabel() for axis in drawn[1].axes] == ["epochs"]


def test_points_name_what_their_accuracy_depends_on(writer):
    more = {"test_accuracy": 0.5, "test_binary_accuracy": 0.9, "dev_binary_accuracy": 0.8}
    members = [run(0, 1, True, "rntn-sst5", **more), run(0, 1, True, "sst2", **more)]
    plain = {each.recipe: each for each in writer.group(members)}
    split, found = writer.points(writer.lines("sst2", plain))
    assert split == "test"
    assert [point.label for point in found] == ["rntn (of five classes)", "sst2"]
    assert [point.accuracies for point in found] == [[90.0], [50.0]]


def test_minutes_are_drawn_if_other_systems_have_them():
    pictures = importlib.import_module("results_pictures")
    trees = [pictures.Point("tree", "tree", 1, 1.0, [70.0]) for _ in range(2)]
    untimed = pictures.Point("nse", "authors", 1, None, [70.0])
    timed = untimed._replace(minutes=2.0)
    assert pictures.comparable([*trees, untimed]) == []
    assert pictures.comparable([*trees, untimed, timed]) == [*trees, timed]


def test_labels_of_points_do_not_overlap(tmp_path):
    pictures = importlib.import_module("results_pictures")
    plt = pictures.pyplot()
    figure, axis = plt.subplots()
    points = [(x, pictures.Point(f"system {x}", "authors", 1, 1.0, [70.0])) for x in range(40, 48)]
    axis.set(xlim=(0, 100), ylim=(60, 80))
    pictures.place_labels(axis, points)
    figure.draw_without_rendering()
    # without the lines to the points
    boxes = [plt.Text.get_window_extent(text) for text in axis.texts]
    assert len(boxes) == 8
    for i, a in enumerate(boxes):
        assert not any(a.overlaps(b) for b in boxes[:i])
    plt.close(figure)


def test_the_pages_have_the_recorded_speed():
    speed = importlib.import_module("write_speed")
    for path, text in speed.pages().items():
        assert path.read_text(encoding="utf-8") == text, "run python benchmarks/write_speed.py"
