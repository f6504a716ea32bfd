"""The run directory: the only channel between the login side, the batch shell and the ranks.

Apart because all three meet here and nowhere else; it must be readable with the standard library alone, since the
launch shim reads and writes it before anything heavy is imported.
"""
