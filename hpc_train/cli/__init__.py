"""The command line: one module a command, each light to import.

Apart as the outermost room: it may import every other, and nothing imports it.
"""
