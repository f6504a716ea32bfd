"""How the ranks of an attempt find each other, and what they then know of themselves.

Apart because it is the only room that knows MPI and torch.distributed at the same time: everything else sees a World.
"""
