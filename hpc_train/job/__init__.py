"""What the user asks for: job file, flags, environment, user config and site defaults to one frozen JobSpec.

Every value keeps the place it came from, and every mistake is one line with file and key.
"""
