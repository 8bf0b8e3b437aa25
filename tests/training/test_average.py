"""Test the running average of the weights."""

import io
import json

import numpy as np
import pytest
import torch

from gumbeltree import load, load_recipe, prepare, train, with_settings
from gumbeltree.data.compile import with_labels
from gumbeltree.training.average import WeightAverage
from gumbeltree.training.start import new_model

SETTINGS = [
    *("embedding_dim=6", "encoder.hidden_dim=6", "head.hidden_dim=6", "batch_size=16"),
    *("epochs=3", "head.batch_norm=true", "checkpoint_seconds=0", "average=0.9"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Return a recipe with an average, and data for it."""
    path = tmp_path_factory.mktemp("data") / "train.tsv"
    words = np.random.default_rng(0).integers(0, 9, size=(150, 5))
    rows = [" ".join(f"w{x}" for x in row) + f"\t{'no' if 1 in row else 'yes'}" for row in words]
    path.write_text("\n".join(["text\tlabel", *rows, ""]))
    recipe = with_settings(load_recipe("text"), SETTINGS)
    return recipe, prepare(recipe, path)


def test_average_by_hand(data):
    recipe, prepared = data
    config = with_labels(recipe, prepared).model
    model, copy = (new_model(config, prepared, seed) for seed in (0, 1))
    average = WeightAverage(model, copy, 0.5)
    expected = model.head.output.weight.detach().clone()
    for step, decay in ((1, 2 / 11), (2, 3 / 12), (30, 0.5)):
        with torch.no_grad():
            model.head.output.weight.normal_()
        average.update(step)
        expected = decay * expected + (1 - decay) * model.head.output.weight.detach()
        torch.testing.assert_close(copy.head.output.weight, expected)
    assert not copy.head.output.weight.requires_grad
    model.head.batch_norm_in.running_mean.fill_(7)
    average.copy_buffers()
    assert (copy.head.batch_norm_in.running_mean == 7).all()


def test_the_average_is_evaluated_and_saved(data, tmp_path):
    recipe, prepared = data
    one = with_settings(recipe, ["epochs=1", "evaluations=1"])
    result = train(one, prepared, tmp_path / "run", quiet=True)
    state = torch.load(_payload(tmp_path / "run"), weights_only=True)
    saved = load(tmp_path / "run").state_dict()
    for name, x in state["average"].items():
        assert torch.equal(saved[name], x), name
    assert not torch.equal(state["average"]["encoder.query"], state["model"]["encoder.query"])
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
    assert line["dev_accuracy"] == result["dev_accuracy"]


def _payload(folder):
    content = (folder / "last.checkpoint").read_bytes()
    start = content.index(b"\n") + 1 + 12
    return io.BytesIO(content[start:])


class Stop(Exception):
    """Raised in the middle of a run."""


@pytest.mark.parametrize("step", [4, 11])
def test_a_resumed_run_equals_one_without_a_stop(data, tmp_path, step):
    recipe, prepared = data

    def stop(number):
        if number == step:
            raise Stop

    train(recipe, prepared, tmp_path / "straight", quiet=True)
    with pytest.raises(Stop):
        train(recipe, prepared, tmp_path / "run", quiet=True, on_step=stop)
    train(recipe, prepared, tmp_path / "run", quiet=True, resume=True)
    whole, resumed = (
        (tmp_path / folder / "model" / "model.safetensors").read_bytes()
        for folder in ("straight", "run")
    )
    assert resumed == whole


def test_a_run_with_earlier_settings_is_told_apart_and_resumed(data, tmp_path):
    recipe, _ = data
    path = tmp_path / "train.tsv"
    rows = [f"the dog w{i % 7} sleeps\t{'ab'[i % 2]}" for i in range(60)]
    path.write_text("\n".join(["text\tlabel", *rows, ""]))
    earlier = with_settings(recipe, ["average=0", "own_vectors=false", "epochs=1"])
    train(earlier, prepare(earlier, path), tmp_path / "run", quiet=True)
    # the data differ as well, but only because of the setting
    with pytest.raises(ValueError, match=r"its `data.own_vectors` is False, not True; pass"):
        train(recipe, prepare(recipe, path), tmp_path / "run", quiet=True, resume=True)
    more = with_settings(earlier, ["epochs=2"])
    again = train(more, prepare(more, path), tmp_path / "run", quiet=True, resume=True)
    assert again["steps"] == 6
