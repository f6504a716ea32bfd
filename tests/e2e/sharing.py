"""A torch-free program that saves inside its run and into a directory of the project: sharing.py PROJECT_ROOT."""

from __future__ import annotations

import sys

import numpy as np

import hpc_train

world = hpc_train.init(process_group=False)
state = {"m": {"x": np.arange(100.0)}}
hpc_train.Checkpointer(world=world).save(1, state)
hpc_train.Checkpointer(sys.argv[1], world=world).save(1, state)
