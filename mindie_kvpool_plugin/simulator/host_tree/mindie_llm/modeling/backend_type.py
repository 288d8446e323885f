"""Which framework the model runs in."""

from enum import Enum


class BackendType(str, Enum):
    ATB = "atb"
    TORCH = "torch"
