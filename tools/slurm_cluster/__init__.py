"""A real Slurm cluster on one machine: every node is a slurmd inside namespaces of its own.

The command is `tools/slurm-cluster`. The parts use the standard library only, so that the system's python3 runs them
as root without an installed package.
"""
