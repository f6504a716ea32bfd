"""What a machine is: site files (TOML) to the frozen Site record, found along a search path.

Nothing specific to one machine stands in Python: a support team writes a file, and keeps it where it likes.
"""
