"""Programs that ship: to run, to read, and to copy from.

Apart from the library so that it stays clear what hpc-train does and what a training script does. Run one with
`hpc-train submit -- python -m hpc_train.examples.byte_gpt …`.
"""
