"""Which estimators the kernels of `fused` support."""

from typing import Any, NamedTuple

from gumbeltree.registry import own

SETTINGS = {
    "st_gumbel": None,
    "st": None,
    "gumbel_rao": "samples",
    "gapped": "gap",
    "reinmax": None,
    "spigot": "step",
}
"""The setting that each kernel takes, by the attribute `kernels` of the estimator's class."""
TILE = 2048
"""Largest number of weights that a program computes at once for Gumbel-Rao."""


class Kernel(NamedTuple):
    """What selects and configures the kernel of an estimator."""

    name: str = "st_gumbel"
    """Name of the estimator; of SPIGOT, that of the variant."""
    setting: float = 0.0
    """Its setting, a number that is compiled into the kernel."""

    @property
    def recorded(self) -> bool:
        """Whether the forward pass records softmax weights (Eq. 8) instead of scores."""
        return self.name == "st_gumbel"

    def points(self, width: int) -> int:
        """Return how many points of the simplex to compute at once for layers of `width`."""
        if self.name != "gumbel_rao":
            return 2 if self.name == "reinmax" else 1
        return min(1 << (int(self.setting) - 1).bit_length(), max(1, TILE // width))


ST_GUMBEL = Kernel()


def is_supported(estimator: Any) -> bool:
    """Return whether the kernels support a local estimator; a subclass must declare it itself."""
    return own(estimator, "kernels") in SETTINGS


def kernel_of(estimator: Any) -> Kernel:
    """Return the kernel of a supported estimator."""
    name = own(estimator, "kernels")
    setting = SETTINGS[name]
    config = estimator.config
    return Kernel(
        getattr(config, "variant", name), 0.0 if setting is None else getattr(config, setting)
    )
