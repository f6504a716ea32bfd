"""The random number generators of this process as one object to put into `per_rank`.

Apart because generators are a rank's own: restoring rank 0's on every rank makes all ranks drop the same units and
augment alike, without an error (NVIDIA/Megatron-LM#6858).
"""

from __future__ import annotations

import random
import sys
from typing import Any

from hpc_train.errors import CheckpointError

__all__ = ["RngState", "rng_state"]


class RngState:
    """State of Python's, numpy's (its global generator) and torch's generators (CPU, and CUDA where initialised)."""

    def state_dict(self) -> dict[str, Any]:
        """States of the generators whose library is imported."""
        state: dict[str, Any] = {"python": random.getstate()}
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None:
            state["numpy"] = numpy.random.get_state()
        if torch is not None:
            state["torch"] = torch.get_rng_state()
            if torch.cuda.is_available() and torch.cuda.is_initialized():
                state["cuda"] = torch.cuda.get_rng_state_all()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the generators. Imports the library of each saved one.

        Raises: CheckpointError if the number of CUDA devices is another one.
        """
        _set(state)
        if "cuda" in state:
            import torch

            if len(state["cuda"]) != torch.cuda.device_count():
                raise CheckpointError(
                    f"random state of {len(state['cuda'])} CUDA devices, {torch.cuda.device_count()} are visible"
                )
            torch.cuda.set_rng_state_all(state["cuda"])

    def load_resized(self, state: dict[str, Any] | None, seed: int) -> None:
        """Go on where another number of ranks saved: with this rank's own state, or anew from `seed` if it had none.

        Generators of CUDA devices begin anew where another number of them is visible now: it changes with the ranks.
        """
        if state is None:
            _seed_all(seed)
            return
        _set(state)
        if "cuda" in state:
            import torch

            if len(state["cuda"]) == torch.cuda.device_count():
                torch.cuda.set_rng_state_all(state["cuda"])
            else:
                torch.cuda.manual_seed_all(seed)


def _set(state: dict[str, Any]) -> None:
    """The generators of the CPU."""
    random.setstate(state["python"])
    if "numpy" in state:
        import numpy

        numpy.random.set_state(state["numpy"])
    if "torch" in state:
        import torch

        torch.set_rng_state(state["torch"])


def _seed_all(seed: int) -> None:
    """All generators, of the libraries that are imported: Python's, numpy's, torch's (CUDA's too)."""
    random.seed(seed)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed([seed & 0xFFFFFFFF, seed >> 32])
    if torch is not None:
        torch.manual_seed(seed)


def rng_state() -> RngState:
    """An object for `per_rank={"rng": rng_state()}`: saves and restores this process's random generators."""
    return RngState()
