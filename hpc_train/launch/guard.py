"""The guard: runs the user's program in this process and makes sure that no kind of end hangs or is lost.

Apart from the monitor because it lives in the program's process. mpi4py's exit hook waits in MPI_Finalize for the other
ranks, so an exception or sys.exit(3) on one rank hangs the step: a program that did not end cleanly runs Python's exit
hooks and leaves by os._exit, with its reason on the shared page. Standard library only.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib.machinery
import io
import os
import re
import runpy
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NoReturn

from hpc_train.errors import HpcTrainError, InternalError, SpecError, Stopped
from hpc_train.launch.alone import worked_alone
from hpc_train.launch.failure import chain_of, classify_exception, describe_exception, one_line
from hpc_train.launch.page import FINISHED, RUNNING, Page
from hpc_train.run.marks import class_of_code

__all__ = ["InProcess", "command_to_execute", "parse_python_command", "run_guarded"]

NOTE_LIMIT_S = 2.0  # a file system that hangs must not keep a program that has failed
_PYTHON = re.compile(r"python(?:3(?:\.(\d+))?)?")


@dataclass(frozen=True)
class InProcess:
    """A Python command that can run in this process: kind "script", "module" or "code", its target and arguments."""

    kind: str
    target: str
    arguments: tuple[str, ...]


def parse_python_command(command: list[str], python: str) -> InProcess | None:
    """How to run a command in this process, or None where it must be a program of its own.

    In process: `python …` and the recorded interpreter itself, with -u, -m, -c or a script. Another interpreter, other
    options, or another program: not.

    Args:  python: absolute path of the recorded interpreter, which runs this process.
    """
    rest = command[1:]
    while rest and rest[0] == "-u":
        rest = rest[1:]
    if not rest or not _is_recorded(command[0], python):
        return None
    if rest[0] in ("-m", "-c") and len(rest) > 1:
        return InProcess("module" if rest[0] == "-m" else "code", rest[1], tuple(rest[2:]))
    return None if rest[0].startswith("-") else InProcess("script", rest[0], tuple(rest[1:]))


def command_to_execute(command: list[str], python: str) -> list[str]:
    """The command as it is executed where it cannot run in process: a bare `python` is the recorded one there too."""
    return [python, *command[1:]] if _is_recorded(command[0], python) else command


def _is_recorded(head: str, python: str) -> bool:
    if match := _PYTHON.fullmatch(head):
        return match[1] is None or int(match[1]) == sys.version_info.minor
    # python and python3 of one directory are one environment; those of two venvs may share a target and are not.
    same_directory = os.path.isabs(head) and os.path.dirname(head) == os.path.dirname(python)
    return same_directory and os.path.realpath(head) == os.path.realpath(python)


def run_guarded(program: InProcess, page: Page) -> int:
    """Run the program; returns 0 if it ended cleanly and does not return otherwise.

    The program counts as finished once its threads have ended too, before any exit hook: MPI's waits for other ranks.
    """
    owner = os.getpid()
    page.set_state(RUNNING)
    _watch_threads(page)
    began_s = time.process_time()
    failure: BaseException | None = None
    try:
        _execute(program)
    except BaseException as error:
        if os.getpid() != owner:  # a fork of the user's own that unwinds to here: not the program
            raise
        failure = error
    if os.getpid() != owner:
        return 0
    if failure is not None:
        _end(failure, page)
    page.enter("threads")
    atexit.register(_finish, page, began_s)  # hooks run in reverse order, after non-daemon threads have been joined
    return 0


def _finish(page: Page, began_s: float) -> None:
    if worked_alone(after_s=began_s):
        page.tell_alone()
    page.set_state(FINISHED)


def _end(error: BaseException, page: Page) -> None:
    """Tell the last words and leave; returns only for sys.exit() with code 0."""
    try:
        if isinstance(error, SystemExit):
            code = _exit_code(error)
            if code == 0:
                return
            text = f": {one_line(error.code)}" if not isinstance(error.code, int) else ""
            page.last_words(class_of_code(code), f"the program left with sys.exit({code}){text}", code)
        else:
            failure, code = classify_exception(error)
            page.last_words(failure, describe_exception(error), code)
        _tell(error)
    except BaseException:  # noqa: BLE001 - out of memory again, a broken __str__: still no hang
        code = 1
        page.last_words("program", f"{type(error).__name__}, and it could not be described", code)
    # Slurm's PMIx kills the whole step, monitors too, once it sees that an MPI process has gone. Those that stop on
    # request leave together, and their mark says that they have.
    if not isinstance(error, Stopped):
        page.await_note(NOTE_LIMIT_S)
    _leave(code)


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


def _tell(error: BaseException) -> None:
    with contextlib.suppress(Exception):
        if isinstance(error, SystemExit):
            if not isinstance(error.code, int):
                print(error.code, file=sys.stderr)
        elif not isinstance(error, Stopped):  # an ordered end needs no traceback
            error.__traceback__ = _without_our_frames(error.__traceback__)
            if isinstance(error, HpcTrainError) and not isinstance(error, InternalError):
                shorten(error)
            sys.excepthook(type(error), error, error.__traceback__)  # the user's own counts, as in plain Python


def _without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    inner = trace
    while inner is not None and inner.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
        inner = inner.tb_next
    return inner or trace


def shorten(error: HpcTrainError) -> None:
    """An error of the user's data, disk or request: where the program asked, what went wrong, why; not our insides."""
    package = os.path.dirname(os.path.dirname(__file__)) + os.sep
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        if last.tb_next.tb_frame.f_code.co_filename.startswith(package):
            last.tb_next = None
            break
        last = last.tb_next
    causes = [one_line(f"{type(known).__name__}: {known}") for known in chain_of(error)[1:]]
    error.__cause__, error.__suppress_context__ = None, True
    for cause in causes[-1:]:
        error.add_note(f"caused by {cause}")


def _leave(code: int) -> NoReturn:
    """End the process: exit hooks of Python, but not MPI's, which would wait for the other ranks; then files.

    A hook that hangs, as one that waits for other ranks, is cut short by the monitor.
    """
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    with contextlib.suppress(BaseException):
        # What plain Python would do at its end: no written line of a log or table may be lost.
        for thing in gc.get_objects():
            # By type: isinstance would ask each object for its __class__, and torch's old names warn when asked.
            if issubclass(type(thing), io.TextIOWrapper | io.BufferedWriter) and not thing.closed:
                with contextlib.suppress(BaseException):
                    thing.flush()
    os._exit(code)


def _watch_threads(page: Page) -> None:
    before = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            name = "?" if args.thread is None else args.thread.name
            page.thread_died(f"thread {name!r} ended with {describe_exception(args.exc_value)}")
        before(args)

    threading.excepthook = hook


def _execute(program: InProcess) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # logs are read while the run goes on
    sys.orig_argv = [sys.executable, *_options(program), *program.arguments]
    sys.argv = ["-c" if program.kind == "code" else program.target, *program.arguments]
    if program.kind == "script":
        _execute_script(program.target)
    elif program.kind == "module":
        _set_first_path(os.getcwd())
        runpy.run_module(program.target, run_name="__main__", alter_sys=True)
    else:
        _set_first_path("")
        main = _fresh_main()
        exec(compile(program.target, "<string>", "exec", dont_inherit=True), main.__dict__)  # noqa: S102 - the user's -c


def _options(program: InProcess) -> list[str]:
    return {"script": [], "module": ["-m"], "code": ["-c"]}[program.kind] + [program.target]


def _execute_script(target: str) -> None:
    if not os.path.exists(target):
        raise SpecError(f"[program] command: there is no {target} in {Path.cwd()}")
    path = os.path.abspath(target)
    if os.path.isdir(path) or not path.endswith(".py"):  # an archive, a directory, byte code
        _set_first_path(os.path.dirname(os.path.realpath(path)))
        runpy.run_path(path, run_name="__main__")
        return
    _set_first_path(os.path.dirname(os.path.realpath(path)))
    main = _fresh_main()
    main.__file__ = path  # multiprocessing's spawn and forkserver load it again under this name
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, main.__dict__)  # noqa: S102 - the user's own program


def _fresh_main() -> ModuleType:
    """A new __main__, which stays when the program's last line has run: exit hooks and threads may still need it."""
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    main.__spec__ = None
    sys.modules["__main__"] = main
    return main


def _set_first_path(directory: str) -> None:
    if not sys.flags.safe_path:  # else Python puts nothing there, and the first entry is the standard library
        sys.path[0] = directory
