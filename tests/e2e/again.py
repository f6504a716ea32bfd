"""Ends with the code that asks to be run again, at once."""

import sys

print("once more", flush=True)
sys.exit(75)
