"""`python -m hpc_train`: the same program as `hpc-train`.

The internal commands (run, begin, decide, succeed, supervise) are answered here before click is imported: they start on
every rank or in the batch shell, where the standard library must do.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Dispatch; returns the exit code."""
    name, arguments = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("", [])
    if name == "run":
        from hpc_train.launch.main import main as run

        return run(arguments)
    if name in ("begin", "decide"):
        from hpc_train.recovery.batch import main as batch

        return batch(name, arguments)
    if name == "succeed":
        from hpc_train.scheduler.slurm.successor import main as succeed

        return succeed(arguments)
    if name == "supervise":
        from hpc_train.scheduler.local.supervisor import main as supervise

        return supervise(arguments)
    from hpc_train.cli.main import main as cli

    return cli()


if __name__ == "__main__":
    sys.exit(main())
