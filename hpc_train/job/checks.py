"""What a job may say beyond types: times, sizes, names of variables, options that are not ours.

Apart from the loader so that the rules can be read in one place, and hold for flags, files and job.json alike. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from hpc_train.errors import SpecError
from hpc_train.quantities import parse_duration, parse_memory, parse_walltime, shown
from hpc_train.site.checks import MAX_LEAD_S
from hpc_train.site.directives import check_directive, check_directive_text

__all__ = ["check_job_value", "is_secret_name"]

MAX_TEXT = 4096  # one value in a directive; also the longest path
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_WORDS = {
    "APIKEY", "CREDENTIAL", "CREDENTIALS", "KEY", "PASSPHRASE", "PASSWD", "PASSWORD", "SECRET", "TOKEN",
}  # fmt: skip


def is_secret_name(name: str) -> bool:
    """True for a variable whose value must not be stored: one of its words is TOKEN, KEY, SECRET, PASSWORD or the like.

    Words are what underscores part: HF_TOKEN is one, TOKENIZERS_PARALLELISM is not.
    """
    return bool(_SECRET_WORDS & set(name.upper().split("_")))


def check_job_value(dotted: str, value: Any, where: str) -> None:
    """Refuse a value of the right type that the key cannot have.

    Args:  dotted: "job.walltime"; variables as "env.set.NAME".   where: file and key as the error shows them.
    Raises: SpecError.
    """
    if dotted.startswith("env.set."):
        _check_variable(dotted.removeprefix("env.set."), where)
    elif dotted in _CHECKS and value is not None:
        _CHECKS[dotted](value, where)


def _check_variable(name: str, where: str) -> None:
    if is_secret_name(name):
        raise SpecError(
            f"{where}: looks like a secret, and job files are copied into run directories; "
            f'export it in your shell and list its name in [env].pass: pass = ["{name}"]'
        )
    _check_name_is_free(name, where)


def _check_name_is_free(name: str, where: str) -> None:
    if name.upper().startswith("HPC_TRAIN_"):
        raise SpecError(f"{where}: {name}: names in HPC_TRAIN_ are set by hpc-train itself; choose another")


def _check_pass(names: tuple[str, ...], where: str) -> None:
    for name in names:
        if not _VARIABLE.fullmatch(name):
            raise SpecError(f"{where} = {shown(name)}: only names of variables are allowed here, no values")
        _check_name_is_free(name, where)


def _text(value: str, where: str) -> None:
    """A text that goes into a directive or is a path."""
    if not value.strip():
        raise SpecError(f"{where} is empty; leave it out, or give it a value")
    if len(value) > MAX_TEXT:
        raise SpecError(f"{where} has {len(value)} characters; at most {MAX_TEXT} are allowed")
    check_directive_text(value, where, SpecError)


def _path(value: str, where: str) -> None:
    if not value.strip() or len(value) > MAX_TEXT:
        raise SpecError(f"{where} must be a path of 1 to {MAX_TEXT} characters")


def _paths(values: tuple[str, ...], where: str) -> None:
    for value in values:
        _path(value, where)


def _parsed(parse: Callable[[str], object]) -> Callable[[str, str], None]:
    def check(value: str, where: str) -> None:
        try:
            parse(value)
        except SpecError as cause:
            raise SpecError(f"{where}: {cause}") from cause

    return check


def _duration(lowest_s: int, highest_s: int) -> Callable[[str, str], None]:
    def check(value: str, where: str) -> None:
        _parsed(parse_duration)(value, where)
        if not lowest_s <= parse_duration(value) <= highest_s:
            raise SpecError(f"{where} = {shown(value)}: {lowest_s} to {highest_s} seconds are allowed")

    return check


def _modules(values: tuple[str, ...], where: str) -> None:
    for value in values:
        if not re.fullmatch(r"[^-\s]\S*", value):
            raise SpecError(f"{where} = {shown(value)}: one module name per entry, without blanks")


def _directives(values: tuple[str, ...], where: str) -> None:
    for value in values:
        check_directive(value, where, SpecError)


def _command(values: tuple[str, ...], where: str) -> None:
    if not values or not values[0].strip():
        raise SpecError(f'{where} is empty; give the program and its arguments: command = ["python", "train.py"]')


_CHECKS: dict[str, Callable[[Any, str], None]] = {
    **dict.fromkeys(
        ("job.name", "job.site", "job.account", "job.queue", "job.qos", "job.constraint", "job.reservation",
         "job.licenses"),
        _text,
    ),
    **dict.fromkeys(("job.run_root", "env.venv", "env.python", "program.workdir"), _path),
    "job.walltime": _parsed(parse_walltime),
    "job.memory": _parsed(parse_memory),
    "job.exclude": _text,  # the host list itself is read by plan_placement
    "job.extra_directives": _directives,
    "data.path": _paths,
    "env.modules": _modules,
    "env.pass": _check_pass,
    "program.command": _command,
    "recovery.hang_timeout": _duration(1, 30 * 86400),
    "recovery.stop_lead": _duration(1, MAX_LEAD_S),
    "recovery.backoff": _duration(0, 86400),
}  # fmt: skip
