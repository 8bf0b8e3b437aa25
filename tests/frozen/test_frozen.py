"""What version 0.1 wrote is read, and gives the same results.

Model folders, a prepared file, an unfinished run and what they give were made once, by
`tests/frozen/make.py` of commit c986a29. Nothing here is ever made again.
"""

import json
import shutil
from pathlib import Path

import pytest

import gumbeltree
from gumbeltree.config import load_recipe, with_settings
from gumbeltree.data.prepared import load_prepared
from gumbeltree.training.loop import train
from tests.models import TEXTS

SENTENCES = [
    "i love this very much .",
    "nobody could call it a masterpiece , but it is never dull .",
    "a dog sleeps on the sofa .",
    "the acting is n't bad",
    "no",
]
PAIRS = [
    ("a dog sleeps on the sofa .", "an animal is asleep ."),
    ("two men play chess in the park .", "nobody is outside ."),
    ("a woman in a red coat waits for a bus .", "she is going to work ."),
]

SETTINGS = (
    *("data.generate=120", "dev_fraction=0.2", "test_fraction=0.2", "embedding.dropout=0.0"),
    *("head.dropout=0.0", "optimizer=adam", "learning_rate=0.02", "stop_after=0"),
    *("embedding_dim=6", "encoder.hidden_dim=6", "head.hidden_dim=6", "batch_size=20"),
    *("epochs=3", "evaluations=2", "checkpoint_seconds=0"),
)
"""Of the unfinished run: no dropout, so that only the data, the noise and the model decide it."""

HERE = Path(__file__).parent
EXPECTED = json.loads((HERE / "expected.json").read_text(encoding="utf-8"))


def close(found, wanted):
    # other processors round otherwise
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", EXPECTED["models"])
def test_a_model_folder(name):
    model, wanted = gumbeltree.load(HERE / "models" / name), EXPECTED["models"][name]
    close(model.encode(TEXTS).tolist(), wanted["vectors"])
    pairs = name in ("pair", "random", "half")
    found = model.predict(TEXTS, TEXTS[::-1]) if pairs else model.predict(TEXTS)
    close([list(x.probabilities.values()) for x in found], wanted["probabilities"])
    if "trees" in wanted:
        assert [str(tree) for tree in model.parse_many(TEXTS)] == wanted["trees"]
    else:
        with pytest.raises(ValueError, match="builds no tree"):
            model.parse_many(TEXTS)


def test_packaged_models():
    sst, snli = gumbeltree.load("sst2-100d"), gumbeltree.load("snli-100d")
    for model, items, texts, wanted in (
        (sst, SENTENCES, SENTENCES, EXPECTED["packaged"]["sst2-100d"]),
        (snli, PAIRS, [x for pair in PAIRS for x in pair], EXPECTED["packaged"]["snli-100d"]),
    ):
        assert [str(tree) for tree in model.parse_many(texts)] == wanted["trees"]
        found = [list(x.probabilities.values()) for x in model.predict(items)]
        close(found, wanted["probabilities"])


def test_an_unfinished_run_goes_on_over_a_prepared_file(tmp_path):
    run = shutil.copytree(HERE / "run", tmp_path / "run")
    data = load_prepared(HERE / "prepared.safetensors")
    recipe = with_settings(load_recipe("demo"), SETTINGS)
    result = train(recipe, data, run, recipe_name="demo", resume=True)
    wanted = EXPECTED["run"]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert len(lines) == len(wanted["metrics"])
    for ours, theirs in zip(lines, wanted["metrics"], strict=True):
        assert {name: ours[name] for name in theirs} == pytest.approx(theirs, rel=1e-4)
    assert {name: result[name] for name in wanted["result"]} == pytest.approx(
        wanted["result"], rel=1e-4
    )
    weights = gumbeltree.load(run).state_dict()
    sums = {name: float(x.double().abs().sum()) for name, x in weights.items()}
    assert sums == pytest.approx(wanted["weights"], rel=1e-4)
    # five steps were done when this was written, and are not done again
    assert (
        json.loads((HERE / "run" / "metrics.jsonl").read_text("utf-8").splitlines()[0]) == lines[0]
    )
