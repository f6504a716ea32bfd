"""Which commands run in the shim's process, and what exceptions mean."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_train import errors
from hpc_train.launch.failure import classify_exception, describe_exception, one_line
from hpc_train.launch.guard import InProcess, command_to_execute, parse_python_command

VERSION = f"python3.{sys.version_info.minor}"
SCRIPT = InProcess("script", "x.py", ("a", "-m"))


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A directory like a venv's bin: python and python3 are the same, and the same as in another venv."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        os.symlink(sys.executable, tmp_path / name / "python3")
        os.symlink("python3", tmp_path / name / "python")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python x.py a -m", SCRIPT),
        ("python3 x.py a -m", SCRIPT),
        (f"{VERSION} x.py a -m", SCRIPT),
        ("python3.1 x.py a -m", None),  # another version: a program of its own
        ("python -u x.py a -m", SCRIPT),
        ("python -u -u x.py a -m", SCRIPT),
        ("python -m a.b -c", InProcess("module", "a.b", ("-c",))),
        ("python -u -c pass -m", InProcess("code", "pass", ("-m",))),
        ("HERE/python3 x.py a -m", SCRIPT),  # the recorded interpreter
        ("HERE/python x.py a -m", SCRIPT),  # another name of it in the same environment
        ("THERE/python3 x.py a -m", None),  # another environment, though the binary is the same
        ("/usr/bin/env python x.py", None),
        ("python -O x.py", None),  # an option that only a new interpreter can take
        ("python -", None),
        ("python", None),
        ("python -u", None),
        ("python -m", None),
        ("python -c", None),
        ("bash x.sh", None),
        ("pythonx x.py", None),
    ],
)
def test_a_python_command_runs_in_process_where_it_can(venv: Path, command: str, expected: InProcess | None) -> None:
    words = command.replace("HERE", str(venv / "here")).replace("THERE", str(venv / "there")).split()
    assert parse_python_command(words, str(venv / "here" / "python3")) == expected


def test_a_bare_python_means_the_recorded_interpreter_outside_the_process_too() -> None:
    assert command_to_execute(["python", "-O", "x.py"], "/venv/bin/python3") == ["/venv/bin/python3", "-O", "x.py"]
    assert command_to_execute(["bash", "python"], "/venv/bin/python3") == ["bash", "python"]


class OutOfMemoryError(RuntimeError):
    """As torch's of that name."""


class DistBackendError(RuntimeError):
    """As torch's of that name."""


def raised(error: Exception, *, during: Exception | None = None, cause: Exception | None = None) -> Exception:
    """The error as it is when it was raised, perhaps while another was handled."""
    try:
        if during is None:
            raise error from cause
        try:
            raise during
        except OSError:
            raise error  # noqa: B904 - its context is what matters here
    except type(error) as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("x"), ("program", 1)),
        (KeyboardInterrupt(), ("terminated", 130)),
        (errors.Stopped("saved"), ("stopped", 75)),
        (errors.Superseded("x"), ("superseded", 76)),
        (errors.BootstrapError("x"), ("infrastructure", 76)),
        (errors.DataError("x"), ("data", 65)),
        (errors.CheckpointError("x"), ("data", 65)),
        (errors.SpecError("x"), ("config", 78)),
        (errors.NoSpaceError("x"), ("no_space", 73)),
        # no room and no place are not the same: nobody can mend the second by freeing space
        (errors.from_os_error(OSError(errno.ENOSPC, "x"), "cannot write it"), ("no_space", 73)),
        (errors.CannotCreateError("the run's directory is gone"), ("io", 74)),
        (errors.from_os_error(OSError(errno.ENOENT, "x"), "cannot write it"), ("io", 74)),
        (errors.from_os_error(OSError(errno.ENOTDIR, "x"), "cannot write it"), ("io", 74)),
        (errors.InternalError("x"), ("bug", 70)),
        (MemoryError(), ("out_of_memory", 1)),
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), ("out_of_memory", 1)),
        (OSError(errno.ENOSPC, "x"), ("no_space", 73)),
        (OSError(errno.EDQUOT, "x"), ("no_space", 73)),
        (OSError(errno.EIO, "x"), ("io", 74)),
        (OSError(errno.ESTALE, "x"), ("io", 74)),
        (PermissionError(errno.EACCES, "x"), ("permission", 77)),
        (FileNotFoundError(errno.ENOENT, "x"), ("program", 1)),
        # torch.save on a full disk: a RuntimeError raised while the OSError was handled
        (raised(RuntimeError("PytorchStreamWriter failed"), during=OSError(errno.ENOSPC, "x")), ("no_space", 73)),
        (raised(RuntimeError("save failed"), cause=OSError(errno.ENOSPC, "x")), ("no_space", 73)),
        (RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:1234"), ("peer_lost", 76)),
        (DistBackendError("NCCL error: ncclRemoteError: remote process exited"), ("peer_lost", 76)),
        (DistBackendError("Timed out after 300 seconds waiting for clients. 1/2 clients joined."), ("peer_lost", 76)),
        # a program's own connection is no peer
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), ("program", 1)),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), ("program", 1)),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), ("infrastructure", 76)),
        (RuntimeError("CUDA error: device-side assert triggered"), ("program", 1)),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), ("program", 1)),
    ],
)
def test_an_exception_gets_its_class_and_code(error: BaseException, expected: tuple[str, int]) -> None:
    assert classify_exception(error) == expected


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([OSError(errno.ENOSPC, "x")], ("no_space", 73)),
        ([ExceptionGroup("inner", [OSError(errno.ENOSPC, "x")])], ("no_space", 73)),
        ([raised(RuntimeError("save failed"), cause=OSError(errno.ENOSPC, "x"))], ("no_space", 73)),
        ([ValueError("x"), errors.DataError("x")], ("data", 65)),  # a class says more than none
        ([RuntimeError("Connection closed by peer"), ValueError("x")], ("program", 1)),  # a cause more than its effect
        ([errors.Stopped("x"), ValueError("x")], ("program", 1)),
        ([errors.Stopped("x"), errors.Stopped("y")], ("stopped", 75)),
        ([KeyboardInterrupt(), OSError(errno.EIO, "x")], ("io", 74)),
        ([ValueError("x"), KeyError("x")], ("program", 1)),
    ],
)
def test_of_several_exceptions_at_once_the_most_telling_counts(
    members: list[BaseException], expected: tuple[str, int]
) -> None:
    assert classify_exception(BaseExceptionGroup("unhandled errors in a TaskGroup", members)) == expected


def test_what_was_raised_from_a_group_has_the_class_of_its_member() -> None:
    group = ExceptionGroup("saving", [ValueError("x"), OSError(errno.ENOSPC, "x")])
    assert classify_exception(raised(RuntimeError("save failed"), cause=group)) == ("no_space", 73)


def test_a_group_is_described_by_its_most_telling_member() -> None:
    group = ExceptionGroup("saving", [ValueError("x"), OSError(errno.ENOSPC, "No space left on device")])
    told = "OSError: [Errno 28] No space left on device, in ExceptionGroup: saving (2 sub-exceptions)"
    assert describe_exception(group) == told


def test_a_ring_of_causes_ends() -> None:
    one, two = ValueError("1"), ValueError("2")
    one.__context__, two.__context__ = two, one
    assert classify_exception(one) == ("program", 1)


def test_a_description_says_type_text_and_place() -> None:
    text = describe_exception(raised(ValueError("two\nlines \x1b[2J")))
    assert text.startswith("ValueError: two lines ?[2J (")
    assert text.endswith(")")
    assert describe_exception(ValueError()) == "ValueError"


def test_one_line_is_short_and_printable() -> None:
    text = one_line("a\r\n\x07" * 100_000)
    assert len(text) < 1600
    assert text.isprintable()


def test_an_error_of_ours_shows_the_users_line_and_the_cause_not_our_insides(tmp_path: Path) -> None:
    """Through the guard, as a program meets it: a dataset that is not there, raised from an OSError."""
    program = tmp_path / "train.py"
    program.write_text("import hpc_train\nhpc_train.ShardStream('nowhere', global_batch=1)\n")
    code = (
        "from hpc_train.launch.guard import InProcess, run_guarded\nfrom hpc_train.launch.page import Page\n"
        f"run_guarded(InProcess('script', {str(program)!r}, ()), Page())\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 65
    lines = done.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].startswith(f'  File "{program}", line 2')
    assert [line for line in lines if line.startswith("  File")] == lines[1:2], done.stderr
    assert lines[-2].startswith("hpc_train.errors.DataError: nowhere: no such directory")
    assert lines[-1].startswith("caused by FileNotFoundError: [Errno 2]")


def test_an_error_of_the_users_own_keeps_its_whole_chain() -> None:
    code = (
        "from hpc_train.launch.guard import InProcess, run_guarded\nfrom hpc_train.launch.page import Page\n"
        "run_guarded(InProcess('code', 'try: 1/0\\nexcept Exception as e: raise ValueError(2) from e', ()), Page())\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60)
    assert "ZeroDivisionError" in done.stderr and "direct cause" in done.stderr
