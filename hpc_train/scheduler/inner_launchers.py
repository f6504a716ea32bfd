"""Programs that start ranks themselves: inside ranks that we start, each would begin a training of its own. Pure.

Such a job looks well: every training ends with code 0, each with a part of the batch size, all writing the same files.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence

__all__ = ["PYTHON", "find_inner_launcher", "spans_nodes", "starts_several"]

PYTHON = re.compile(r"python(3(\.\d+)?)?")  # run by the interpreter of the job: hpc_train/launch/guard.py
_PROGRAMS = ("torchrun", "deepspeed", "horovodrun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "srun")
_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
)
# One agent a node joins the others where it is told how many there are; the others would use ssh or Slurm again.
_JOINING = (
    "torchrun",
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate launch",
    "accelerate.commands.launch",
)
_NUM_NODES = re.compile(r"--(?:nnodes|num[_-]machines)")
_NUM_PROCESSES = re.compile(r"--nproc[_-]per[_-]node|--num[_-](?:processes|gpus)|--?np?|--ntasks")


def find_inner_launcher(command: Sequence[str]) -> str:
    """What in a command starts ranks, as it is typed: "torchrun", "python -m torch.distributed.run"; "" if nothing.

    Only what the command itself says: a shell script that calls torchrun is not looked into.
    """
    words = [os.path.basename(command[0]), *command[1:]]
    if words[0] in _PROGRAMS:
        return words[0]
    if words[:2] == ["accelerate", "launch"]:
        return "accelerate launch"
    if PYTHON.fullmatch(words[0]):
        options = [word for word in words[1:] if word not in ("-u", "-O", "-I", "-B")]
        if len(options) > 1 and options[0] == "-m" and options[1] in _MODULES:
            return f"python -m {options[1]}"
    return ""


def spans_nodes(launcher: str, command: Sequence[str]) -> bool:
    """Whether one such launcher on each node would make one training: it is told of more nodes than its own."""
    if launcher.removeprefix("python -m ") not in _JOINING:
        return False
    own = _own_words(command)
    return _value_of(_NUM_NODES, own) not in ("", "1", "1:1") and "--standalone" not in own


def starts_several(command: Sequence[str]) -> bool:
    """Whether a launcher's command asks for more than one process on this node, as far as its options say."""
    return _value_of(_NUM_PROCESSES, _own_words(command)) not in ("", "1")


def _own_words(command: Sequence[str]) -> list[str]:
    """Up to the script, whose own the rest is."""
    return list(itertools.takewhile(lambda word: not word.endswith(".py"), command))


def _value_of(option: re.Pattern[str], words: Sequence[str]) -> str:
    """The last value of an option, "" if it has none."""
    parts = [part for word in words for part in word.split("=", 1)]
    values = [value for word, value in itertools.pairwise([*parts, ""]) if option.fullmatch(word)]
    return values[-1] if values else ""
