"""The guard: runs the user's program in this process and makes sure that no kind of end hangs or is lost.

Apart from the monitor because it lives in the program's process. mpi4py's exit hook waits in MPI_Finalize for the other
ranks, so an exception or sys.exit(3) on one rank hangs the step: a program that did not end cleanly leaves by
os._exit, with its reason on the shared page. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import re
import runpy
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from hpc_train.errors import HpcTrainError, SpecError
from hpc_train.launch.page import FINISHED, RUNNING, Page
from hpc_train.run.marks import class_of_code

__all__ = ["InProcess", "classify_exception", "parse_python_command", "run_guarded"]

_PYTHON = re.compile(r"python(3(\.\d+)?)?")

# Texts of errors that mean "a peer went away", from gloo, NCCL and MPI. All are consequences of another rank's end.
_PEER_LOST = re.compile(
    r"connection (closed|reset) by peer|broken pipe|socket closed|gloo/transport|ncclremoteerror|"
    r"remote process exited|mpi_err_proc_failed|connect(ion)? refused|peer .{0,40} (closed|lost)|"
    r"failed to recv, got 0 bytes|store->|tcpstore",
    re.IGNORECASE,
)


class InProcess:
    """A Python command that can run in this process: kind "script", "module" or "code", its target and arguments."""

    def __init__(self, kind: str, target: str, arguments: list[str]) -> None:
        self.kind = kind
        self.target = target
        self.arguments = arguments


def parse_python_command(command: list[str], python: str) -> InProcess | None:
    """How to run a command in this process, or None where it must be a program of its own.

    In process: `python …` and the recorded interpreter itself, with -u, -m, -c or a script. Another interpreter, other
    options, or another program: not.
    """
    head = command[0]
    is_ours = _PYTHON.fullmatch(head) is not None or (
        os.path.isabs(head) and os.path.realpath(head) == os.path.realpath(python) and head == python
    )
    rest = command[1:]
    while rest and rest[0] == "-u":
        rest = rest[1:]
    if not is_ours or not rest:
        return None
    if rest[0] in ("-m", "-c") and len(rest) > 1:
        return InProcess("module" if rest[0] == "-m" else "code", rest[1], rest[2:])
    return None if rest[0].startswith("-") else InProcess("script", rest[0], rest[1:])


def _execute(program: InProcess) -> None:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # logs are read while the run goes on
    if program.kind == "script":
        script = Path(program.target)
        if not script.exists():
            raise SpecError(f"[program] command: there is no {script} in {Path.cwd()}")
        sys.argv = [program.target, *program.arguments]
        sys.path[0] = str(script.resolve().parent)
        runpy.run_path(program.target, run_name="__main__")
    elif program.kind == "module":
        sys.argv = [program.target, *program.arguments]
        sys.path[0] = os.getcwd()
        runpy.run_module(program.target, run_name="__main__", alter_sys=True)
    else:
        sys.argv = ["-c", *program.arguments]
        sys.path[0] = ""
        exec(compile(program.target, "<command>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})  # noqa: S102 - the user's own -c text


def classify_exception(error: BaseException) -> tuple[str, int]:
    """Class and exit code of what a program raised."""
    if isinstance(error, HpcTrainError):
        name = "superseded" if type(error).__name__ == "Superseded" else class_of_code(error.exit_code)
        return name, error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return "terminated", 130
    if isinstance(error, OSError) and error.errno in (28, 122):  # ENOSPC, EDQUOT
        return "no_space", 73
    text = f"{type(error).__name__}: {error}"
    is_distributed = type(error).__name__.startswith(("Dist", "Exception")) or isinstance(error, RuntimeError | OSError)
    if is_distributed and _PEER_LOST.search(text):
        return "peer_lost", 76
    return "program", 1


def leave(code: int) -> NoReturn:
    """End the process at once, output flushed, without exit hooks: MPI's would wait for the other ranks."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def run_guarded(program: InProcess, page: Page) -> int:
    """Run the program; returns 0 if it ended cleanly and does not return otherwise."""
    page.set_state(RUNNING)
    try:
        _execute(program)
        code = 0
    except SystemExit as error:
        code = _exit_code(error)
        if code:
            page.last_words(class_of_code(code), f"the program left with sys.exit({code})")
    except BaseException as error:  # noqa: BLE001 - the edge of the process: every end must be told
        traceback.print_exc()
        failure, code = classify_exception(error)
        page.last_words(failure, _one_line(error))
    if code:
        leave(code)
    page.set_state(FINISHED)
    return 0


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def _one_line(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" ({last[0].filename}:{last[0].lineno})" if last else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:1500]}{where}" if text else f"{type(error).__name__}{where}"
