"""The demonstration: encode a few sentences, compare the two implementations, draw the trees."""

from collections.abc import Callable
from pathlib import Path

import torch

from gumbeltree.config import EmbeddingConfig, EncoderConfig, HeadConfig, ModelConfig
from gumbeltree.model import SentenceModel
from gumbeltree.store import save
from gumbeltree.text.tokenizer import whitespace_tokenizer

SENTENCES = [
    "i love this very much .",
    "the dog that barked all night sleeps now .",
    "not one of the films that the critics praised was worth the price of the ticket .",
]


def untrained_model(seed: int = 0) -> SentenceModel:
    """Return a small model with random weights over the demonstration's words."""
    words = dict.fromkeys(word for sentence in SENTENCES for word in sentence.split())
    config = ModelConfig(
        EncoderConfig(embedding_dim=32, hidden_dim=64),
        HeadConfig(kind="single", labels=("negative", "positive"), hidden_dim=64),
        EmbeddingConfig(tuned=True),
    )
    torch.manual_seed(seed)
    model = SentenceModel(config, whitespace_tokenizer(words))
    with torch.no_grad():
        # wide enough for the trees to differ from each other before any training
        model.embedding.weight[: len(words)].normal_()
        model.encoder.query.normal_()
    return model.eval()


def run(out: Path, say: Callable[[str], None]) -> None:
    """Run the demonstration; leave a model folder and a picture in `out`."""
    model = untrained_model()
    say("A Gumbel Tree-LSTM with random weights, nothing trained yet, merges words like this:")
    for tree in model.parse_many(SENTENCES):
        say(f"\n{tree}\n\n{tree.draw(width=80)}")
    vectors = {}
    for impl in ("reference", "exact"):
        encoder = type(model.encoder)(EncoderConfig(**{**vars(model.config.encoder), "impl": impl}))
        encoder.load_state_dict(model.encoder.state_dict())
        model.encoder = encoder.eval()
        vectors[impl] = torch.from_numpy(model.encode(SENTENCES))
    gap = (vectors["exact"] - vectors["reference"]).abs().max().item()
    say(f"\n'exact' (linear) and 'reference' (the paper's equations) differ by at most {gap:.1e}.")
    save(untrained_model(), out / "model", {"demo": "random weights"})
    picture = out / "tree.svg"
    picture.write_text(model.parse(SENTENCES[1]).svg(), encoding="utf-8")
    say(f"\nWrote {out / 'model'} and {picture}. Next:")
    say(f'  gumbeltree parse {out / "model"} --draw "the critics praised this dog ."')
    say(f"  gumbeltree info {out / 'model'}")
