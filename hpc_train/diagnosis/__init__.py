"""Why a job waits, was refused or failed, from texts alone: logs, Slurm's reasons, sbatch's words.

Apart because the knowledge is data (TOML files beside these modules) and everything here is pure but the reading of
logs: it works for any job, also one that hpc-train never saw. Standard library only.
"""
