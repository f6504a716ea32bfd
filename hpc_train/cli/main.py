"""`hpc-train`: finds the command and is the one place where errors become one line and an exit code.

Apart from the commands, which raise. Command modules load when they are used or listed, so they must be light.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from hpc_train import __version__
from hpc_train.errors import HpcTrainError

__all__ = ["cli", "main"]

_COMMANDS = {
    "submit": "hpc_train.cli.submit",
    "status": "hpc_train.cli.status",
    "logs": "hpc_train.cli.logs",
    "why": "hpc_train.cli.why",
    "cancel": "hpc_train.cli.cancel",
    "requeue": "hpc_train.cli.requeue",
    "checkpoint": "hpc_train.cli.checkpoint",
    "data": "hpc_train.cli.data",
    "site": "hpc_train.cli.site",
    "schema": "hpc_train.cli.schema",
}


class _LazyGroup(click.Group):
    """Loads a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(_COMMANDS[cmd_name]).command
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}; commands: {', '.join(_COMMANDS)}")
        return super().resolve_command(ctx, args)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="hpc-train")
def cli() -> None:
    """Train neural networks with PyTorch on Slurm machines: submit, watch, resume."""


def main() -> int:
    """Run the command line; returns the exit code. The edge of the process: every known error is one line here."""
    try:
        result = cli.main(prog_name="hpc-train", standalone_mode=False)
    except click.exceptions.Abort:
        print("hpc-train: interrupted", file=sys.stderr)
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except HpcTrainError as error:
        print(f"hpc-train: error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # `hpc-train logs RUN | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except OSError as error:
        print(f"hpc-train: error: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
        return 74
    return result if isinstance(result, int) else 0
