"""What version 0.1 wrote: model folders, a prepared file, an unfinished run, and their results.

`python -m tests.frozen.make` made these files and has no other use: later versions must read what is
here (`test_frozen.py`), so nothing of it is ever made again.
"""

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

import gumbeltree
from gumbeltree.config import load_recipe, with_settings
from gumbeltree.data.compile import prepare
from gumbeltree.data.prepared import save_prepared
from gumbeltree.model import SentenceModel
from gumbeltree.training import loop
from tests.models import TEXTS, tiny_model

HERE = Path(__file__).parent

MODELS: dict[str, dict[str, Any]] = {
    "pair": {},
    "attention": {"kind": "single", "attention": True, "leaf": "bilstm", "score": "scaled_dot"},
    "balanced": {"kind": "single", "trees": "balanced", "leaf": "affine"},
    "random": {"kind": "pair", "trees": "random"},
}
BASELINES = ("bag", "lstm")

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


def outputs(model: SentenceModel) -> dict[str, Any]:
    """Return what a tiny model gives for the texts of the tests."""
    pair = model.config.head.kind == "pair"
    found: dict[str, Any] = {
        "vectors": model.encode(TEXTS).tolist(),
        "probabilities": [
            list(x.probabilities.values())
            for x in (model.predict(TEXTS, TEXTS[::-1]) if pair else model.predict(TEXTS))
        ],
    }
    if model.encoder.builds_trees:
        found["trees"] = [str(tree) for tree in model.parse_many(TEXTS)]
    return found


def packaged() -> dict[str, Any]:
    """Return what the packaged models give."""
    sst, snli = gumbeltree.load("sst2-100d"), gumbeltree.load("snli-100d")
    return {
        "sst2-100d": {
            "trees": [str(tree) for tree in sst.parse_many(SENTENCES)],
            "probabilities": [list(x.probabilities.values()) for x in sst.predict(SENTENCES)],
        },
        "snli-100d": {
            "trees": [str(snli.parse(text)) for pair in PAIRS for text in pair],
            "probabilities": [list(x.probabilities.values()) for x in snli.predict(PAIRS)],
        },
    }


def main() -> None:
    content: dict[str, Any] = {"models": {}, "packaged": packaged()}
    for name, settings in MODELS.items():
        gumbeltree.save(tiny_model(**settings), HERE / "models" / name, {"made": "frozen"})
    for kind in BASELINES:
        model = tiny_model("single")
        config = gumbeltree.ModelConfig(
            gumbeltree.EncoderConfig(5, 6, kind=kind), model.config.head, model.config.embedding
        )
        own = SentenceModel(config, model.tokenizer).eval()
        own.load_state_dict(model.state_dict(), strict=False)
        gumbeltree.save(own, HERE / "models" / kind, {"made": "frozen"})
    gumbeltree.save(tiny_model("pair"), HERE / "models" / "half", half_embeddings=True)
    for name in (*MODELS, *BASELINES, "half"):
        content["models"][name] = outputs(gumbeltree.load(HERE / "models" / name))
    recipe = with_settings(load_recipe("demo"), SETTINGS)
    data = prepare(recipe)
    save_prepared(data, HERE / "prepared.safetensors")
    asked = loop._Run._asked_to_stop
    loop._Run._asked_to_stop = lambda run, _: run.progress.step == 5  # type: ignore[method-assign]
    with contextlib.suppress(loop.InterruptedRunError):
        loop.train(recipe, data, HERE / "run", recipe_name="demo")
    loop._Run._asked_to_stop = asked  # type: ignore[method-assign]
    done = shutil.copytree(HERE / "run", HERE / "done")
    result = loop.train(recipe, data, done, recipe_name="demo", resume=True)
    lines = [json.loads(line) for line in (done / "metrics.jsonl").read_text().splitlines()]
    content["run"] = {
        "metrics": [{k: v for k, v in line.items() if k != "seconds"} for line in lines],
        "result": {k: result[k] for k in ("best_epoch", "dev_loss", "test_loss", "test_accuracy")},
        "weights": {
            name: float(np.abs(x.detach().double().numpy()).sum())
            for name, x in gumbeltree.load(done).state_dict().items()
        },
    }
    shutil.rmtree(done)
    shutil.rmtree(HERE / "run" / "tensorboard", ignore_errors=True)
    (HERE / "run" / ".lock").unlink(missing_ok=True)
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    (HERE / "expected.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
