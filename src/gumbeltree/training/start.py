"""What training starts from: the device, the model."""

import dataclasses
import logging
import os
from pathlib import Path

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy

from gumbeltree.config import ModelConfig, Recipe
from gumbeltree.data.prepared import Prepared
from gumbeltree.model import SentenceModel, load
from gumbeltree.text.tokenizer import PAD, UNKNOWN
from gumbeltree.weights import check_fit

# "32-true" leaves all numbers as they are; Fabric's "64-true" would round scores to float32 before
# the loss, so `train` makes the model double itself
PRECISIONS = {"32": "32-true", "tf32": "32-true", "bf16": "bf16-mixed", "64": "32-true"}


def check_device(device: str) -> tuple[str, str]:
    """Return kind and number of a device ("" without one), or raise if there is none such."""
    kind, _, index = device.partition(":")
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind not in ("cpu", "cuda") or (index and not index.isdecimal()):
        raise ValueError(f"`--device` must be auto, cpu, cuda or cuda:N, got {device!r}")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError("no CUDA device is to be found here; pass --device cpu")
    return kind, index


def start_fabric(device: str, precision: str) -> Fabric:
    """Return the device or devices to train on.

    Args:
        device: auto, cpu, cuda or cuda:N. Under torchrun every process takes its own.
        precision: see `TrainingConfig.precision`.
    """
    kind, index = check_device(device)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    # its banner and its advice on precision, which is the user's choice
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    fabric = Fabric(
        accelerator=kind,
        devices=local if world > 1 else ([int(index)] if index and kind == "cuda" else 1),
        num_nodes=world // local,
        # a batch of single words uses no merge: the cell then has no gradient
        strategy=DDPStrategy(find_unused_parameters=True) if world > 1 else "auto",
        precision=PRECISIONS[precision],  # type: ignore[arg-type]
    )
    fabric.launch()
    return fabric


def leave_processes() -> None:
    """Leave the group of processes, if there is one: its threads must not outlive the interpreter.

    A process that ends with them running is now and then aborted, and torchrun then ends the
    others, too.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def new_model(
    config: ModelConfig,
    prepared: Prepared,
    seed: int,
    init: SentenceModel | None = None,
    dtype: torch.dtype = torch.float32,
) -> SentenceModel:
    """Return the model that training starts from.

    Args:
        config: sizes and parts.
        prepared: gives the vocabulary and the word vectors.
        seed: decides the random weights.
        init: gives the encoder's weights and the vectors of the words it knows.
        dtype: of all weights; they are drawn in float32 whatever it is.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = SentenceModel(config, prepared.tokenizer).to(dtype)
    with torch.no_grad():
        if prepared.vectors is not None:
            model.embedding.weight.copy_(torch.from_numpy(prepared.vectors))
        if init is not None:
            weights = {name: x.to(dtype) for name, x in init.encoder.state_dict().items()}
            check_fit(model.encoder.state_dict(), weights, "the encoder to start from")
            model.encoder.load_state_dict(weights)
            ids, known = prepared.tokenizer.get_vocab(), init.tokenizer.get_vocab()
            both = sorted(ids.keys() & known.keys())
            rows = torch.tensor([ids[word] for word in both])
            vectors = init.embedding.weight[[known[word] for word in both]]
            model.embedding.weight[rows] = vectors.to(dtype)
    return model


def start_from(recipe: Recipe, folder: str | Path) -> tuple[Recipe, SentenceModel]:
    """Return a recipe that fits a trained model's encoder and text, and that model.

    Args:
        recipe: keeps its head and training.
        folder: of the trained model.
    """
    init = load(folder)
    model = dataclasses.replace(recipe.model, encoder=init.config.encoder)
    trained = init.provenance.get("recipe", {}).get("data", {})
    text = {name: trained[name] for name in ("lower", "tokenizer") if name in trained}
    data = dataclasses.replace(recipe.data, **text)
    return dataclasses.replace(recipe, model=model, data=data), init


def known_words(model: SentenceModel) -> list[str]:
    """Return the words of a model, in the order of their ids."""
    ids = model.tokenizer.get_vocab()
    return [word for word in sorted(ids, key=ids.__getitem__) if word not in (PAD, UNKNOWN)]
