"""Where a job's ranks go: Slurm's host lists, and the placement of a job on a site.

Pure: text and records in, text and records out. The login side and the node side both import it.
"""
