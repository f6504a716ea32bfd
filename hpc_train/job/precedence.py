"""Which of several places a value is taken from.

Apart because it is one rule, stated once: flag, then job file, then HPC_TRAIN_* variable, then user config, then the
site's defaults, then the built-in default. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpc_train.errors import SpecError

__all__ = ["ALTERNATIVES", "Layer", "lay_over"]

# Of such a pair the higher layer's key puts the lower layer's other key out; both in one layer contradict each other.
ALTERNATIVES = (("env.venv", "env.python"),)


@dataclass(frozen=True)
class Layer:
    """The values of one place under dotted keys, and for each key the place as people read it."""

    values: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)


def lay_over(layers: Sequence[Layer]) -> Layer:
    """One layer of all: for each key the value of the first layer that has it. Variables count one by one.

    Raises: SpecError if one layer sets both of two alternatives (`env.venv` and `env.python`).
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        taken = set(values)
        for key, value in layer.values.items():
            others = {other for pair in ALTERNATIVES if key in pair for other in pair if other != key}
            rival = next((other for other in others if layer.values.get(other) is not None), None)
            if rival is not None and value is not None:
                raise SpecError(f"{layer.origins[key]} and {layer.origins[rival]} exclude each other; keep one")
            if key not in taken and not others & taken:
                values[key] = value
                origins[key] = layer.origins[key]
    return Layer(values, origins)
