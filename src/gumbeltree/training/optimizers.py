"""Optimizers by name, with parameter groups for the parser and the word vectors.

All of them can be captured in a CUDA graph: their learning rate can be a tensor on the device.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gumbeltree.config import OPTIMIZERS, TrainingConfig
from gumbeltree.ops.adadelta import (
    Coefficients,
    Rows,
    Scalars,
    Weights,
    update_rows,
    update_weights,
)

Tensors = list[Tensor] | tuple[Tensor, ...]

MANY = 4096
"""Rows from which on Adadelta takes a matrix for word vectors and updates it by row."""
WIDEST = 512
"""Columns up to which it does; matrices of gates with many rows are wider."""


class Descent(torch.optim.Optimizer):
    """Stochastic gradient descent, and the base of optimizers that scale its steps.

    Unlike `torch.optim.SGD`, it never reads a learning rate on the device back to the CPU.

    Args:
        params: parameters or groups of them.
        lr: learning rate.
        weight_decay: multiple of a parameter to add to its gradient.
        defaults: further settings of the groups.

    Attributes:
        grad_scale: divides all gradients before anything else if it is not None `[]`.
    """

    grad_scale: Tensor | None = None

    def __init__(self, params: Any, lr: float, weight_decay: float = 0.0, **defaults: Any) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, **defaults})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            if parameters := [p for p in group["params"] if p.grad is not None]:
                self._update(group, parameters)

    def _update(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        """Update parameters of a group, which have gradients."""
        gradients: Tensors = [p.grad for p in parameters if p.grad is not None]
        if self.grad_scale is not None:
            gradients = torch._foreach_div(gradients, self.grad_scale)
        if group["weight_decay"]:
            gradients = torch._foreach_add(gradients, parameters, alpha=group["weight_decay"])
        directions = self._directions(group, parameters, gradients)
        torch._foreach_sub_(parameters, torch._foreach_mul(directions, group["lr"]))

    def _directions(
        self, group: dict[str, Any], parameters: Tensors, gradients: Tensors
    ) -> Tensors:
        """Return the steps before they are multiplied by the learning rate."""
        return gradients


class RMSProp(Descent):
    """Divide gradients by the root of the running mean of their squares.

    s = rho * s + (1 - rho) * g^2; p = p - lr * g / sqrt(s + eps). `torch.optim.RMSprop` adds eps
    after the root instead.

    Args:
        params: parameters or groups of them.
        lr: learning rate.
        eps: added under the root.
        rho: decay of the running mean.
        weight_decay: multiple of a parameter to add to its gradient.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        eps: float = 1e-6,
        rho: float = 0.9,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr, weight_decay, eps=eps, rho=rho, accumulator=0.0)

    def make_state(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        """Return the state of parameters, which is created where it is missing."""
        for group in self.param_groups:
            for p in group["params"]:
                if p not in self.state:
                    self.state[p]["squares"] = torch.full_like(
                        p, group["accumulator"], memory_format=torch.preserve_format
                    )
        return [self.state[p]["squares"] for p in parameters]

    def _directions(
        self, group: dict[str, Any], parameters: Tensors, gradients: Tensors
    ) -> Tensors:
        squares = self.make_state(parameters)
        torch._foreach_mul_(squares, group["rho"])
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - group["rho"])
        roots = torch._foreach_add(squares, group["eps"])
        torch._foreach_sqrt_(roots)
        return torch._foreach_div(gradients, roots)


class AdaGrad(RMSProp):
    """Divide gradients by the root of the sum of their squares (Duchi et al. 2011).

    s = s + g^2; p = p - lr * g / (sqrt(s) + eps). `torch.optim.Adagrad` cannot be captured.

    Args:
        params: parameters or groups of them; a group can have its own `accumulator`.
        lr: learning rate.
        eps: added to the root.
        accumulator: initial value of the sums.
        weight_decay: multiple of a parameter to add to its gradient.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        eps: float = 1e-10,
        accumulator: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        Descent.__init__(self, params, lr, weight_decay, eps=eps, accumulator=accumulator)

    def reset(self) -> None:
        """Return all sums to their initial value, in place."""
        for group in self.param_groups:
            for x in self.make_state(group["params"]):
                x.fill_(group["accumulator"])

    def _directions(
        self, group: dict[str, Any], parameters: Tensors, gradients: Tensors
    ) -> Tensors:
        squares = self.make_state(parameters)
        torch._foreach_addcmul_(squares, gradients, gradients)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, group["eps"])
        return torch._foreach_div(gradients, roots)


class Adadelta(Descent):
    """Divide gradients by the ratio of two running means (Zeiler 2012).

    s = rho * s + (1 - rho) * g^2; u = sqrt(d + eps) / sqrt(s + eps) * g; d = rho * d + (1 - rho) *
    u^2; p = p - lr * u, as in `torch.optim.Adadelta`, up to rounding. That optimizer goes through
    all word vectors in every step. Words that a batch does not have keep their vectors, and their
    means only shrink; here, they shrink in the word's next update. With weight decay, all words
    change in every step.

    Args:
        params: parameters or groups of them.
        lr: learning rate.
        eps: added under the roots.
        rho: decay of the running means.
        weight_decay: multiple of a parameter to add to its gradient.
    """

    # says, as in torch's fused optimizers, that `grad_scale` saves a pass over the gradients
    _step_supports_amp_scaling = True

    def __init__(
        self,
        params: Any,
        lr: float,
        eps: float = 1e-6,
        rho: float = 0.9,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr, weight_decay, eps=eps, rho=rho)

    def make_state(self, parameters: Iterable[Tensor]) -> None:
        """Create the state of parameters where it is missing."""
        for p in parameters:
            state = self.state[p]
            if not state:
                state["square_avg"], state["acc_delta"] = torch.zeros_like(p), torch.zeros_like(p)
            # also if the state is one of `torch.optim.Adadelta`, which older checkpoints have
            if "last" not in state and _has_words(p):
                state["steps"], state["last"] = p.new_zeros(()), p.new_zeros(len(p))

    def _update(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        self.make_state(parameters)
        others = []
        for p in parameters:
            if group["weight_decay"] or not _has_words(p):
                others.append(p)
            else:
                self._update_rows(group, p)
        if others:
            squares, deltas = (
                [self.state[p][name] for p in others] for name in ("square_avg", "acc_delta")
            )
            gradients = [p.grad for p in others if p.grad is not None]
            numbers = (group[name] for name in ("rho", "eps", "weight_decay"))
            coefficients = Coefficients(group["lr"], self.grad_scale, *numbers)
            update_weights(Weights(others, gradients, squares, deltas), coefficients)

    def _update_rows(self, group: dict[str, Any], p: Tensor) -> None:
        """Update the rows of a matrix that have a gradient."""
        assert p.grad is not None
        state = self.state[p]
        state["steps"] += 1
        rows = Rows(p, p.grad, state["square_avg"], state["acc_delta"], state["last"])
        numbers = state["steps"], group["lr"], 1.0 if self.grad_scale is None else self.grad_scale
        # filling a tensor can be captured, copying a number to the device cannot
        scalars = Scalars(*(x if isinstance(x, Tensor) else p.new_full((), x) for x in numbers))
        update_rows(rows, scalars, group["rho"], group["eps"])


def _has_words(p: Tensor) -> bool:
    """Return whether a parameter has the shape of word vectors."""
    return p.dim() == 2 and len(p) >= MANY and p.shape[1] <= WIDEST


class Several(torch.optim.Optimizer):
    """Several optimizers as one; each updates parameters of its own.

    Args:
        parts: the optimizers.
    """

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        # without super().__init__(), which would make groups of its own
        self.parts = list(parts)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Parameter groups of all parts."""
        return [group for part in self.parts for group in part.param_groups]

    @property
    def state(self) -> dict[Tensor, Any]:  # type: ignore[override]
        """State of all parts, by parameter."""
        return {p: x for part in self.parts for p, x in part.state.items()}

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update the parameters of all parts."""
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Delete all gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none)

    def make_state(self, parameters: Sequence[Tensor]) -> None:
        """Create the state of parameters that have none."""
        for part in self.parts:
            own = {p for group in part.param_groups for p in group["params"]}
            make_state(part, [p for p in parameters if p in own])

    def reset(self) -> None:
        """Reset the parts that can be reset."""
        for part in self.parts:
            if hasattr(part, "reset"):
                part.reset()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all parts."""
        states = [part.state_dict() for part in self.parts]
        groups = [group for state in states for group in state["param_groups"]]
        return {"state": [state["state"] for state in states], "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the states of all parts."""
        groups = list(state_dict["param_groups"])
        for part, state in zip(self.parts, state_dict["state"], strict=True):
            own = [groups.pop(0) for _ in part.param_groups]
            part.load_state_dict({"state": state, "param_groups": own})


class _Kind(NamedTuple):
    """An optimizer of the table."""

    build: Callable[[Any, dict[str, Any], bool], torch.optim.Optimizer]
    """From groups, options and whether they are on a CUDA device."""
    takes: frozenset[str]
    """Training settings that only some optimizers have."""


_KINDS = {
    "adam": _Kind(
        lambda groups, options, cuda: torch.optim.Adam(
            groups, fused=True, capturable=cuda, **options
        ),
        frozenset({"eps"}),
    ),
    "adadelta": _Kind(lambda groups, options, _: Adadelta(groups, **options), frozenset({"eps"})),
    "rmsprop": _Kind(lambda groups, options, _: RMSProp(groups, **options), frozenset({"eps"})),
    "sgd": _Kind(lambda groups, options, _: Descent(groups, **options), frozenset()),
    "adagrad": _Kind(
        lambda groups, options, _: AdaGrad(groups, **options),
        frozenset({"eps", "accumulator", "word_accumulator", "reset_every"}),
    ),
}
assert tuple(_KINDS) == OPTIMIZERS


def new_optimizer(
    config: TrainingConfig, model: nn.Module, device: torch.device
) -> torch.optim.Optimizer:
    """Return the configured optimizer for the trainable parameters."""
    kinds = [config.optimizer, config.word_optimizer or config.optimizer]
    _check(config, kinds)
    parameters = [p for p in model.parameters() if p.requires_grad]
    parser = _parser(config, model)
    words = _words(config, model)
    special = parser | words

    def new(kind: str, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        options = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
        if config.eps is not None and "eps" in _KINDS[kind].takes:
            options["eps"] = config.eps
        return _KINDS[kind].build(groups, options, device.type == "cuda")

    groups: list[dict[str, Any]] = [{"params": [p for p in parameters if p not in special]}]
    if parser:
        own = [p for p in parameters if p in parser]
        groups.append({"params": own, "lr": config.parser_rate})
    for group in groups:
        if "accumulator" in _KINDS[config.optimizer].takes:
            group["accumulator"] = config.accumulator
    if not words:
        return new(config.optimizer, groups)
    rate, first = config.word_rate, config.word_accumulator
    of_words: dict[str, Any] = {
        "params": list(words),
        "lr": config.learning_rate if rate is None else rate,
    }
    if "accumulator" in _KINDS[kinds[1]].takes:
        of_words["accumulator"] = config.accumulator if first is None else first
    if config.word_decay is not None or config.word_optimizer:
        of_words["weight_decay"] = 0.0
    if config.word_optimizer:
        parts = [new(config.optimizer, groups), new(config.word_optimizer, [of_words])]
    else:
        parts = [new(config.optimizer, [*groups, of_words])]
    if config.word_decay:
        parts[-1].register_step_pre_hook(_decay(words, config.word_decay))
    return parts[0] if len(parts) == 1 else Several(parts)


def _decay(words: Iterable[Tensor], factor: float) -> Callable[..., None]:
    """Return a function that adds the weight decay of the words of a batch to their gradients.

    Other words have no gradient and are left alone. If all words were decayed, rare ones would
    vanish: optimizers such as AdaGrad enlarge the small gradients between their occurrences.
    """

    def hook(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        # the optimizer divides gradients by this, but their decay has not been clipped
        scale = getattr(optimizer, "grad_scale", None)
        for weight in words:
            if weight.grad is not None:
                present = weight.grad.any(1, keepdim=True)
                # not a product: the scale may be infinite
                amount = present if scale is None else torch.where(present, scale, 0)
                weight.grad.addcmul_(weight.detach(), amount.to(weight.dtype), value=factor)

    return hook


def _check(config: TrainingConfig, kinds: Sequence[str]) -> None:
    """Raise an error for settings that none of the optimizers has."""
    for name in ("eps", "accumulator", "word_accumulator", "reset_every"):
        value = getattr(config, name)
        of_words = name == "word_accumulator"
        asked = kinds[1:] if of_words else kinds
        if value and not any(name in _KINDS[kind].takes for kind in asked):
            can = [kind for kind, about in _KINDS.items() if name in about.takes]
            setting = "word_optimizer" if of_words and config.word_optimizer else "optimizer"
            raise ValueError(
                f"`training.{name}` is {value:g}, but the optimizer {asked[0]!r} does not have "
                f"this setting; use {setting}={' or '.join(can)}, or remove it"
            )


def _parser(config: TrainingConfig, model: nn.Module) -> set[nn.Parameter]:
    """Return the parameters of a parser that has its own learning rate."""
    if config.parser_rate is None:
        return set()
    parser = getattr(getattr(model, "encoder", None), "parser", None)
    if parser is None:
        raise ValueError(
            f"`training.parser_rate` is {config.parser_rate:g}, but the encoder has no parser; "
            "use encoder.kind=parser_composer, or set only `learning_rate`"
        )
    return set(parser.parameters())


def _words(config: TrainingConfig, model: nn.Module) -> set[nn.Parameter]:
    """Return the word vectors if they have settings of their own."""
    for name in ("word_rate", "word_optimizer", "word_accumulator", "word_decay"):
        value = getattr(config, name)
        if value not in (None, ""):
            weight = getattr(getattr(model, "embedding", None), "weight", None)
            if weight is None or not weight.requires_grad:
                raise ValueError(
                    f"`training.{name}` is {value}, but the word vectors are fixed; set "
                    f"embedding.tuned=true, or remove `{name}`"
                )
            return {weight}
    return set()


@contextlib.contextmanager
def learning_rates(
    optimizer: torch.optim.Optimizer, rates: Sequence[float | Tensor]
) -> Iterator[None]:
    """Temporarily replace the learning rate of each parameter group."""
    groups = optimizer.param_groups
    former = [group["lr"] for group in groups]
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate
    try:
        yield
    finally:
        for group, rate in zip(groups, former, strict=True):
            group["lr"] = rate


def make_state(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> None:
    """Create the optimizer state of parameters that it has not updated yet.

    Optimizers create this state at a parameter's first update, which could be inside a graph. The
    state of optimizers of torch must start at zero, as it does for Adam.
    """
    if hasattr(optimizer, "make_state"):
        optimizer.make_state(parameters)
        return
    new = [p for p in parameters if p not in optimizer.state]
    if not new:
        return
    try:
        for p in new:
            p.grad = torch.zeros_like(p)
        with learning_rates(optimizer, [0.0] * len(optimizer.param_groups)):
            optimizer.step()
        for p in new:
            # with stateless optimizers, this lookup adds an empty entry, which marks p as seen
            for x in optimizer.state[p].values():
                if isinstance(x, Tensor):
                    x.zero_()
    finally:
        for p in new:
            p.grad = None
