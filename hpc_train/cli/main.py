"""`hpc-train`: finds the command and is the one place where errors become one line and an exit code.

Apart from the commands, which raise. Command modules load when they are used or listed, so they must be light.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
import traceback
from typing import Any

import click

from hpc_train import __version__
from hpc_train.cli.text import one_line
from hpc_train.errors import HpcTrainError, InternalError, UsageError, from_os_error

__all__ = ["cli", "main"]

_COMMANDS = {
    "submit": "hpc_train.cli.submit",
    "status": "hpc_train.cli.status",
    "logs": "hpc_train.cli.logs",
    "why": "hpc_train.cli.why",
    "cancel": "hpc_train.cli.cancel",
    "requeue": "hpc_train.cli.requeue",
    "resume": "hpc_train.cli.resume",
    "clean": "hpc_train.cli.clean",
    "checkpoint": "hpc_train.cli.checkpoint",
    "data": "hpc_train.cli.data",
    "site": "hpc_train.cli.site",
    "schema": "hpc_train.cli.schema",
}
INTERRUPTED = 130  # 128 + SIGINT, as shells say it


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
            raise UsageError(f"there is no command {args[0]!r}; commands: {', '.join(_COMMANDS)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # click would print an empty line first
            print("hpc-train: interrupted", file=sys.stderr)
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:  # `hpc-train logs RUN | head`: the reader has what it wanted
            _drop_output()
            ctx.exit(0)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="hpc-train")
def cli() -> None:
    """Train neural networks with PyTorch on Slurm machines: submit, watch, resume."""


def main() -> int:
    """Run the command line; returns the exit code. The edge of the process: every known error is one line here."""
    _open_missing_streams()
    _let_output_take_any_text()
    try:
        result = cli.main(prog_name="hpc-train", standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        print("hpc-train: interrupted", file=sys.stderr)
        return INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except HpcTrainError as error:
        return _tell(error)
    except OSError as error:
        if error.filename is None:
            _drop_output()
        return _tell(from_os_error(error, str(error.filename or _place_of_nameless())))
    except Exception as error:  # noqa: BLE001 - the edge of the process
        traceback.print_exc()
        return _tell(InternalError(f"a fault of hpc-train, please report it: {type(error).__name__}: {error}"))
    return result if isinstance(result, int) else 0


def _open_missing_streams() -> None:
    """Where a caller closed one (`hpc-train submit … >&-`), nowhere takes its place.

    Else the next file that is opened would get its number, and take what this command and its children print.
    """
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free
        if getattr(sys, name) is None:
            stream = open(fd, "w" if fd else "r", encoding="utf-8", closefd=False)  # noqa: SIM115 - until the end
            setattr(sys, name, stream)


def _drop_output() -> None:
    """What could not be written must not be tried once more at the end of the process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _place_of_nameless() -> str:
    """What an OSError that names no file is about."""
    try:
        os.getcwd()
    except OSError:
        return "the current directory is gone; change to another one (cd)"
    return "standard output, or another system call"


def _let_output_take_any_text() -> None:
    """No letter that a terminal's encoding lacks, and no file name that is no UTF-8, is a reason to crash."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="surrogateescape" if stream.encoding.lower() == "utf-8" else "replace")


def _tell(error: HpcTrainError) -> int:
    print(f"hpc-train: error: {one_line(str(error))}", file=sys.stderr)
    return error.exit_code
