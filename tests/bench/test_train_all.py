"""benchmarks/train_all.py: a plan runs to its end, over several calls, past failed runs."""

import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from benchmarks import train_all
from benchmarks.train_all import Work, one_of_each, read_plan, read_plans, summary

from gumbeltree.config import load_recipe, recipe_names, with_settings

PLANS = Path(train_all.__file__).parent / "plans"

PLAN = """
[[row]]
recipe = "demo"
set = ["generate=200", "epochs=1", "encoder.hidden_dim=8", "embedding_dim=8"]
seeds = 2
evaluate = ["--split", "dev"]

[[row]]
recipe = "demo"
options = ["--data", "missing.txt"]
"""
# stands in for gumbeltree: fails without its data, and trains until its second start
STAND_IN = """
import json, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.default_int_handler)
if "missing.txt" in sys.argv:
    sys.exit("missing.txt does not exist")
if sys.argv[1] == "evaluate":
    print(json.dumps({"accuracy": 0.5, "folder": sys.argv[2]}))
    sys.exit()
folder = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
seed = int(next(x for x in sys.argv if x.startswith("training.seed="))[-1])
if folder.exists():
    result = {"seed": seed, "dev_accuracy": 0.25 + 0.5 * seed}
    (folder / "result.json").write_text(json.dumps(result))
    sys.exit()
try:
    folder.mkdir()
    time.sleep(600)
except KeyboardInterrupt:
    print("interrupted", file=sys.stderr)
"""


@pytest.fixture
def runs(tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN)
    return read_plan(tmp_path / "plan.toml", tmp_path / "runs")


def test_interrupted_runs_resume_and_failed_ones_do_not_stop_others(runs, tmp_path, monkeypatch):
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    monkeypatch.setattr(Work, "command", (sys.executable, str(tmp_path / "stand_in.py")))
    assert [run.folder.name for run in runs] == ["seed-0", "seed-0", "seed-1"]
    said = []
    work = Work(runs, 3, 0, said.append)
    while not (work.failed and runs[0].folder.exists() and runs[2].folder.exists()):
        work.advance()
    # the time is over
    work.finish()
    assert [line.split()[0] for line in said] == [*["train"] * 3, "failed", *["stopped"] * 2]
    assert summary(runs)[0].endswith("0/2 seeds")
    work = Work(runs, 1, 600, said.append)
    work.finish()
    assert work.failed == [runs[1]]
    assert "missing.txt does not exist" in runs[1].beside(".log").read_text()
    assert "interrupted" in runs[0].beside(".log").read_text()
    for run in (runs[0], runs[2]):
        evaluation = json.loads(run.beside(".json").read_text())
        assert evaluation == {"accuracy": 0.5, "folder": str(run.folder)}
    assert summary(runs) == [
        f"{runs[0].row}: 2/2 seeds, dev 0.5000 ± 0.3536",
        "demo: 0/1 seeds",
    ]
    # finished runs are not repeated
    said.clear()
    Work([runs[0], runs[2]], 2, 600, said.append).finish()
    assert said == []


@pytest.mark.slow
def test_a_real_run(runs):
    work = Work(runs[:1], 1, 600, print)
    work.finish()
    assert not work.failed
    assert json.loads((runs[0].folder / "result.json").read_text())["seed"] == 0
    assert "accuracy" in json.loads(runs[0].beside(".json").read_text())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"must consist of tables \[\[row\]\], got none"),
        ("[[row]]\nseeds = 1", "row 1 has no `recipe`"),
        ('[[row]]\nrecipe = "demo"\nseed = 1', "row 1: unknown or invalid seed = 1; known"),
        ('[[row]]\nrecipe = "demo"\n' * 2, "row 2 repeats the row demo"),
    ],
)
def test_impossible_plans_are_explained(tmp_path, text, message):
    (tmp_path / "plan.toml").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_plan(tmp_path / "plan.toml", tmp_path)


def test_rows_can_name_their_tests(tmp_path):
    plan = tmp_path / "plan.toml"
    text = '[[row]]\nrecipe = "demo"\ntests = "long"\n'
    plan.write_text('[tests]\nlong = ["a.tsv", "b.tsv"]\n' + text)
    (run,) = read_plan(plan, tmp_path)
    assert run.evaluate[:6] == ["evaluate", str(run.folder), "--data", "a.tsv", "--data", "b.tsv"]
    plan.write_text(text)
    with pytest.raises(ValueError, match="row 1: unknown tests 'long'; known: none"):
        read_plan(plan, tmp_path)


def test_rows_can_share_recipes_and_numbers_of_seeds(tmp_path):
    plan = tmp_path / "plan.toml"
    text = '[[row]]\nrecipe = ["demo", "sst2"]\nseeds = "few"\n'
    plan.write_text("[seeds]\nfew = 2\n" + text)
    runs = read_plan(plan, tmp_path)
    found = [(run.row, run.folder.name) for run in runs]
    assert found == [(x, f"seed-{seed}") for seed in (0, 1) for x in ("demo", "sst2")]
    plan.write_text("[seeds]\nfew = 2\n" + text + "first = 7\n")
    runs = read_plan(plan, tmp_path)
    assert [run.folder.name for run in runs] == ["seed-7", "seed-7", "seed-8", "seed-8"]
    assert "training.seed=8" in runs[-1].train
    plan.write_text(text)
    with pytest.raises(ValueError, match="row 1: unknown seeds 'few'; known: none"):
        read_plan(plan, tmp_path)


def test_rows_and_seeds_of_several_plans_are_selected(tmp_path):
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text('[[row]]\nrecipe = ["sst2", "sst5"]\nseeds = 3\n')
    two.write_text('[[row]]\nrecipe = "sst5"\nset = ["trees=left"]\nseeds = 2\nfirst = 1\n')

    def found(*given):
        return [(run.row, run.seed) for run in read_plans([one, two], tmp_path, *given)]

    left = "sst5 trees=left"
    assert found() == [
        *[("sst2", 0), ("sst5", 0), ("sst2", 1), ("sst5", 1), (left, 1)],
        *[("sst2", 2), ("sst5", 2), (left, 2)],
    ]
    assert found(["sst5*"], [1]) == [("sst5", 1), (left, 1)]
    assert found(["sst5", "sst2"], [2]) == [("sst2", 2), ("sst5", 2)]
    with pytest.raises(
        ValueError, match=r"no row matches 'snli\*'; the plans have sst2, sst5, sst5 t"
    ):
        found(["sst5", "snli*"])
    with pytest.raises(ValueError, match="no row has one of the seeds 7, 8"):
        found([], [7, 8])
    assert one_of_each(read_plans([two, one], tmp_path))[left].seed == 1
    two.write_text('[[row]]\nrecipe = "sst5"\n')
    with pytest.raises(ValueError, match="two plans have the row sst5"):
        found()


@pytest.mark.parametrize("path", sorted(PLANS.glob("*.toml")), ids=lambda path: path.stem)
def test_plans_of_the_documentation_name_recipes_and_settings(path):
    runs = read_plan(path, path.parent)
    assert runs
    for run in runs:
        changes = [change for key, change in pairwise(run.train) if key == "--set"]
        assert with_settings(load_recipe(run.train[1]), changes)


@pytest.fixture
def control(tmp_path, monkeypatch):
    """A service that writes down what it was told."""
    control = tmp_path / train_all.CONTROL
    control.write_text(
        f"#!{sys.executable}\n"
        "import os, pathlib, sys\n"
        "here = pathlib.Path(__file__).parent\n"
        "text = ' '.join(sys.argv[1:]) or sys.stdin.read().strip()\n"
        "with open(here / 'said', 'a') as file:\n"
        "    print(text, os.environ['CUDA_MPS_PIPE_DIRECTORY'], file=file)\n"
    )
    control.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    return tmp_path / "said"


def test_mps_is_started_for_the_runs_and_ended(control, monkeypatch):
    script = (
        "import os\n"
        f"with open({str(control)!r}, 'a') as file:\n"
        "    print('probe', os.environ.get('CUDA_MPS_PIPE_DIRECTORY'), file=file)"
    )
    monkeypatch.setattr(train_all, "PROBE", (sys.executable, "-c", script))
    with train_all.mps() as environment:
        folder = environment["CUDA_MPS_PIPE_DIRECTORY"]
        assert Path(folder).is_dir()
        assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
        assert control.read_text() == f"-d {folder}\nprobe {folder}\n"
    assert control.read_text() == f"-d {folder}\nprobe {folder}\nquit {folder}\n"


def test_mps_that_no_process_can_use_is_ended(control, monkeypatch):
    monkeypatch.setattr(train_all, "PROBE", (sys.executable, "-c", "raise SystemExit(1)"))
    with pytest.raises(subprocess.CalledProcessError), train_all.mps():
        pass
    assert [line.split()[0] for line in control.read_text().splitlines()] == ["-d", "quit"]


def test_runs_get_the_environment_of_mps(runs, tmp_path, monkeypatch):
    script = "import os; print(os.environ['CUDA_MPS_PIPE_DIRECTORY'])"
    monkeypatch.setattr(Work, "command", (sys.executable, "-c", script))
    work = Work(runs[:1], 1, 600, lambda text: None, {"CUDA_MPS_PIPE_DIRECTORY": "pipes"})
    work.advance()
    work.running.copy().popitem()[0].wait()
    assert runs[0].beside(".log").read_text() == "pipes\n"


def test_mps_without_the_driver(tmp_path, monkeypatch, capsys):
    (tmp_path / "plan.toml").write_text(PLAN)
    monkeypatch.setenv("PATH", str(tmp_path))
    arguments = ["train_all.py", str(tmp_path / "plan.toml"), "--out", str(tmp_path / "r"), "--mps"]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit):
        train_all.main()
    assert "nvidia-cuda-mps-control, a part of NVIDIA's driver" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_every_prepared_file_of_the_plans_can_be_made(tmp_path):
    plans = [PLANS / f"{name}.toml" for name in ("paper", "peers", "ablations")]
    runs = read_plans(plans, Path("runs"))
    needed = {x for run in runs for x in (*run.train, *run.evaluate) if x.startswith("data/")}
    command = ["make", "--dry-run", "--file", PLANS.parent / "prepare.mk"]
    sources = [f"{name}={name}" for name in ("SNLI", "SST", "GLOVE_6B", "GLOVE_840B")]
    text = subprocess.run(
        [*command, *sources], cwd=tmp_path, check=True, capture_output=True, text=True
    ).stdout
    recipes = dict(re.findall(r"data prepare (\S+) .*--out (\S+)", text))
    assert set(recipes) <= set(recipe_names())
    assert needed == {*recipes.values(), "data/snli/snli_1.0_test.jsonl"}
