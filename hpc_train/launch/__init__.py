"""The launch shim: what runs on a node between the launcher (srun, mpirun) and the user's program.

Apart because it must stand on the standard library alone: it ignores signals, sets the rank's environment and watches
the program before anything heavy is imported, and it tells how the program ended when that program no longer can.
"""
