"""Set up training: the device and the initial model."""

import dataclasses
import gc
import logging
import os
from pathlib import Path

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy

from gumbeltree.config import ModelConfig, Recipe
from gumbeltree.data.prepared import Prepared
from gumbeltree.device.pick import pick_device
from gumbeltree.model import SentenceModel, load
from gumbeltree.text.tokenizer import PAD, UNKNOWN
from gumbeltree.weights import check_fit

logger = logging.getLogger(__name__)

# Fabric's "64-true" would round scores to float32 before the loss, so `train` converts the model
PRECISIONS = {"32": "32-true", "tf32": "32-true", "bf16": "bf16-mixed", "64": "32-true"}


def start_fabric(device: str, precision: str) -> Fabric:
    """Return the device or devices to train on.

    Args:
        device: auto, cpu, cuda or cuda:N. Under torchrun, each process uses its own device; if
            there are more processes than CUDA devices, they share these.
        precision: see `TrainingConfig.precision`.
    """
    kind, _, index = pick_device(device).partition(":")
    world = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    # hide Fabric's banner and its advice on precision
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    fabric = Fabric(
        accelerator=kind,
        # the strategy lists the devices of several processes
        devices=[int(index)] if world == 1 and index and kind == "cuda" else 1,
        num_nodes=world // local,
        strategy=strategy(kind, local) if world > 1 else "auto",
        precision=PRECISIONS[precision],  # type: ignore[arg-type]
    )
    fabric.launch()
    return fabric


def strategy(kind: str, local: int) -> DDPStrategy:
    """Return how `local` processes of this machine share its devices of a kind."""
    count = torch.cuda.device_count() if kind == "cuda" else local
    shared = count < local
    if shared:
        # NCCL allows only one process per device
        logger.info(
            "%d processes share the CUDA devices (%d) and communicate with Gloo", local, count
        )
    return DDPStrategy(
        parallel_devices=[
            torch.device("cuda", rank % count) if kind == "cuda" else torch.device("cpu")
            for rank in range(local)
        ],
        process_group_backend="gloo" if shared else None,
        # the cell has no gradient if all sentences of a batch are single words
        find_unused_parameters=True,
    )


def leave_processes() -> None:
    """Leave the process group, if there is one.

    A process that exits while the group's threads are running can abort, and torchrun then stops
    the others as well. The threads end with the last reference to the group.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        # modules wrapped by DDP refer to the group and, in a cycle, to themselves
        gc.collect()
        torch.distributed.destroy_process_group()


def new_model(
    config: ModelConfig,
    prepared: Prepared,
    seed: int,
    init: SentenceModel | None = None,
    dtype: torch.dtype = torch.float32,
) -> SentenceModel:
    """Return the initial model.

    Args:
        config: model settings.
        prepared: provides the vocabulary and the word vectors.
        seed: seed of the random weights.
        init: provides the encoder's weights and the vectors of the words it knows.
        dtype: dtype of all weights; random weights are drawn in float32.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = SentenceModel(config, prepared.tokenizer).to(dtype)
    with torch.no_grad():
        if prepared.vectors is not None:
            model.embedding.weight.copy_(torch.from_numpy(prepared.vectors))
        if init is not None:
            # batch normalisation counts its batches in integers
            weights = {
                name: x.to(dtype) if x.is_floating_point() else x
                for name, x in init.encoder.state_dict().items()
            }
            check_fit(model.encoder.state_dict(), weights, "the encoder of the initial model")
            model.encoder.load_state_dict(weights)
            ids, known = prepared.tokenizer.get_vocab(), init.tokenizer.get_vocab()
            shared = sorted(ids.keys() & known.keys())
            vectors = init.embedding.weight[[known[word] for word in shared]]
            model.embedding.weight[[ids[word] for word in shared]] = vectors.to(dtype)
    return model


def start_from(recipe: Recipe, folder: str | Path) -> tuple[Recipe, SentenceModel]:
    """Load a trained model; return a recipe with its encoder and tokenizer settings, and the model.

    Args:
        recipe: keeps its head and its training settings.
        folder: the trained model, as for `load`.
    """
    init = load(folder)
    model = dataclasses.replace(recipe.model, encoder=init.config.encoder)
    trained = init.provenance.get("recipe", {}).get("data", {})
    text = {name: trained[name] for name in ("lower", "tokenizer") if name in trained}
    data = dataclasses.replace(recipe.data, **text)
    return dataclasses.replace(recipe, model=model, data=data), init


def known_words(model: SentenceModel) -> list[str]:
    """Return the words that a model knows, in the order of their ids."""
    ids = model.tokenizer.get_vocab()
    return [word for word in sorted(ids, key=ids.__getitem__) if word not in (PAD, UNKNOWN)]
