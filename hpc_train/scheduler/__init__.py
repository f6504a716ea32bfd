"""What takes a run's script and starts it: Slurm, or a supervisor on this machine.

Apart so that everything scheduler-specific is text in, text out: rendering never talks to a scheduler, a query never
renders.
"""
