"""This machine as a scheduler: one supervisor a run, which does what a Slurm would do to the same script."""
