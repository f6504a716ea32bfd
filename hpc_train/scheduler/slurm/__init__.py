"""Slurm: its commands and its words."""
