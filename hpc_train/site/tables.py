"""TOML files that people write: opened only if trusted, every unknown key named, every value under its dotted key.

Apart from the loaders because job and site files promise the same: one clear line for any mistake, and nothing
read that somebody else could have written. Values travel as a flat {"job.nodes": 4}, so that layers can be laid over
each other and each value keeps the place it came from. Light: msgspec and the standard library.
"""

from __future__ import annotations

import difflib
import grp
import os
import pwd
import re
import shlex
import stat
import tomllib
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from hpc_train.errors import HpcTrainError
from hpc_train.files import has_control_characters
from hpc_train.quantities import shown
from hpc_train.site.directives import OWNED_OPTIONS

__all__ = [
    "MAX_FILE_BYTES",
    "convert",
    "flatten",
    "key_types",
    "nest",
    "place",
    "printable",
    "read_toml",
    "refuse_unknown",
    "refuse_untrusted",
    "user_config_dir",
]

MAX_FILE_BYTES = 256 << 10

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY = re.compile(r"[A-Za-z0-9_.-]{1,60}")


def printable(path: str | os.PathLike[str]) -> str:
    """The path as given, or quoted where control characters would break an error's one line."""
    text = os.fspath(path)
    return shown(text, limit=200) if has_control_characters(text) else text


def read_toml(path: str | os.PathLike[str], error: type[HpcTrainError], *, is_packaged: bool = False) -> dict[str, Any]:
    """The tables of a trusted TOML file of at most 256 KiB.

    The checks are made on the opened file, so it cannot be swapped between check and read.
    Args:  error: the type to raise.   is_packaged: it came with our package; its mode is the installer's.
    Raises: `error` if the file is missing, unreadable, not regular, too large, not TOML, writable by others
    (a group that is not the user's own counts), or owned by somebody who is neither the user nor root.
    """
    name = printable(path)
    try:
        # O_NONBLOCK: opening a FIFO somebody put there must not hang.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as cause:
        reason = "no such file" if isinstance(cause, FileNotFoundError) else getattr(cause, "strerror", None) or cause
        raise error(f"{name}: cannot be read: {reason}") from cause
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise error(f"{name}: not a regular file; give a TOML file")
        if not is_packaged:
            refuse_untrusted(path, status, error, has_acl=_has_acl(fd))
            _refuse_open_place(path, error)
        with open(fd, "rb", closefd=False) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as cause:
        raise error(f"{name}: cannot be read: {cause.strerror or cause}") from cause
    finally:
        os.close(fd)
    if len(data) > MAX_FILE_BYTES:
        raise error(f"{name}: larger than {MAX_FILE_BYTES} bytes; this cannot be a file for hpc-train")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise error(f"{name}: not a TOML file: it is UTF-16, and TOML is UTF-8; save it as that")
    try:
        return tomllib.loads(data.decode("utf-8-sig"))  # editors of other systems put a byte order mark before the text
    except RecursionError as cause:
        raise error(f"{name}: nested too deeply") from cause
    except ValueError as cause:  # TOMLDecodeError, UnicodeDecodeError, an integer of thousands of digits
        hint = _unquoted(str(cause), data)
        raise error(f"{name}: not a TOML file: {' '.join(str(cause).split())[:200]}{hint}") from cause


def _unquoted(message: str, data: bytes) -> str:
    """What to do about a text without quotes, as in `walltime = 2:00:00`; "" if it is another mistake."""
    found = re.search(r"^(?:Expected newline|Invalid value).* \(at line (\d{1,9}),", message)
    lines = data.decode("utf-8", "replace").split("\n")
    line = lines[int(found[1]) - 1] if found is not None and int(found[1]) <= len(lines) else ""
    # Only the key is told: a value may be a secret.
    match = re.fullmatch(r"\s*([\w.-]{1,60})\s*=\s*[^\s\"'\[\]{}#=][^\"'\[\]{}#=]{0,200}(?:#.*)?", line.rstrip())
    return f'; a text takes quotes: {match[1]} = "…"' if match else ""


def refuse_untrusted(
    path: str | os.PathLike[str], status: os.stat_result, error: type[HpcTrainError], *, has_acl: bool = False
) -> None:
    """Refuse a file of commands that somebody else can write: whoever can write it would run them as the user.

    Args:  status: of the opened file.   has_acl: it has an access control list, whose mask the group's bits are then.
    Raises: `error` with the remedy.
    """
    name = printable(path)
    is_by_group = status.st_mode & stat.S_IWGRP and (has_acl or not _is_private(status.st_gid))
    if status.st_mode & stat.S_IWOTH or is_by_group:
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        remedy = f"chmod go-w {shlex.quote(name)}"
        raise error(f"{name}: group or others can write this file (mode {mode}), and it holds commands; `{remedy}`")
    if status.st_uid not in (os.geteuid(), 0):
        raise error(
            f"{name}: belongs to user id {status.st_uid}, and it holds commands; only your own files and root's are "
            "read: make a copy"
        )


def _refuse_open_place(path: str | os.PathLike[str], error: type[HpcTrainError]) -> None:
    """Refuse a file that anybody could put another one in place of: ssh and sudo do so too.

    A directory that a project's group may write is no reason: what a colleague puts there belongs to the colleague, and
    is refused for that.
    """
    name = printable(path)
    for place in dict.fromkeys((os.path.dirname(os.path.abspath(path)), os.path.dirname(os.path.realpath(path)))):
        mode = os.stat(place).st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            remedy = f"chmod o-w {shlex.quote(printable(place))}"
            raise error(f"{name}: everybody can replace this file, since its directory is open to all; `{remedy}`")
    link = os.lstat(path)
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (os.geteuid(), 0):
        raise error(f"{name}: a link that belongs to user id {link.st_uid}; name the file itself")


def _is_private(gid: int) -> bool:
    """The group is the user's own (or root's), as many systems give everyone one, and nobody else is in it.

    It must bear the user's name: a shared first group such as `users` lists no members either.
    """
    for uid in (os.geteuid(), 0):
        try:
            user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
        except KeyError:
            continue
        is_own = user.pw_gid == gid and group.gr_name == user.pw_name
        others = [other.pw_uid for other in pwd.getpwall() if other.pw_gid == gid and other.pw_uid != uid]
        if is_own and not set(group.gr_mem) - {user.pw_name} and not others:
            return True
    return False


def _has_acl(fd: int) -> bool:
    try:
        return "system.posix_acl_access" in os.listxattr(fd)
    except OSError:  # a file system without them
        return False


def place(dotted: str) -> str:
    """How a file writes the key: "env.set.A" gives "[env.set].A", a top-level key stays as it is."""
    table, _, key = dotted.rpartition(".")
    return f"[{table}].{key}" if table else key


def refuse_unknown(key: str, allowed: Iterable[str], where: str, error: type[HpcTrainError]) -> None:
    """Raise `error` with the nearest and all allowed keys unless `key` is one of them; for sbatch's word with ours."""
    names = list(allowed)
    if key in names:
        return
    ours = OWNED_OPTIONS.get(key.replace("_", "-"), "").rpartition(".")[2]
    near = [ours] if ours in names else difflib.get_close_matches(key, names, n=1, cutoff=0.6)
    hint = f"did you mean '{near[0]}'? " if near else ""
    raise error(f"{where}: unknown key; {hint}allowed: {', '.join(names)}")


def flatten(
    table: Mapping[str, Any], record: type[msgspec.Struct], where: str, error: type[HpcTrainError]
) -> dict[str, Any]:
    """The values of nested tables under dotted keys, as raw as they came.

    Fields that are records become dotted keys; a table of variables one key per variable; lists stay whole.
    Args:  where: the file's name as errors show it.
    Raises: `error` for unknown keys (in lists of tables too), for a value where a table belongs, and for variable
    names that no shell takes.
    """
    return dict(_walk(table, record, "", where, error))


def _walk(
    table: Mapping[str, Any], record: type[msgspec.Struct], prefix: str, where: str, error: type[HpcTrainError]
) -> Iterator[tuple[str, Any]]:
    fields = {field.encode_name: _bare(field.type) for field in msgspec.structs.fields(record)}
    for key, value in table.items():
        dotted = prefix + (key if _KEY.fullmatch(key) else shown(key))
        spot = f"{where}: {place(dotted)}"
        refuse_unknown(key, fields, spot, error)
        kind = fields[key]
        if (_is_record(kind) or typing.get_origin(kind) is dict) and not isinstance(value, Mapping):
            raise error(f"{spot}: must be a table, not {_kind_of(value)}; write [{dotted}] and its keys below")
        if _is_record(kind):
            yield from _walk(value, kind, f"{dotted}.", where, error)
        elif typing.get_origin(kind) is dict:
            for name, text in value.items():
                if not _VARIABLE.fullmatch(name):
                    raise error(f"{spot}: {shown(name)} is not a variable's name; letters, digits and _ are allowed")
                yield f"{dotted}.{name}", text
        else:
            _check_entries(value, kind, spot, error)
            yield dotted, value


def _check_entries(value: Any, kind: Any, spot: str, error: type[HpcTrainError]) -> None:
    """Unknown keys within a list of tables (the queues of a site)."""
    entry = (typing.get_args(kind) or (None,))[0]
    if not _is_record(entry) or not isinstance(value, list):
        return
    for number, item in enumerate(value, 1):
        for key in item if isinstance(item, Mapping) else ():
            names = [field.encode_name for field in msgspec.structs.fields(entry)]
            refuse_unknown(key, names, f"{spot} entry {number}: {shown(key)}", error)


def key_types(record: type[msgspec.Struct], prefix: str = "") -> dict[str, Any]:
    """The type of every dotted key of a record; a table of variables stands as one key of type dict."""
    types: dict[str, Any] = {}
    for field in msgspec.structs.fields(record):
        dotted = prefix + field.encode_name
        if _is_record(_bare(field.type)):
            types.update(key_types(_bare(field.type), f"{dotted}."))
        else:
            types[dotted] = field.type
    return types


def convert(value: Any, kind: Any, where: str, error: type[HpcTrainError], *, hides_value: bool = False) -> Any:
    """The value as `kind`, strictly: a text is no number and a number no text.

    Args:  hides_value: errors do not show it (variables may hold secrets).
    Raises: `error` naming place, value and what is allowed; also for control characters in any text (a newline inside
    a value would become a line of its own in the batch script), and for text that is not UTF-8.
    """
    for text in _texts(value):
        found = "" if hides_value else f" in {shown(text)}"
        if has_control_characters(text):
            raise error(f"{where}: control characters (newline, tab, escape, …) are not allowed{found}; remove them")
        if not _is_unicode(text):
            raise error(f"{where}: bytes that are not UTF-8{found}; records and scripts are UTF-8")
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as cause:
        options = _options_of(_bare(kind))
        rule = f"one of {', '.join(map(str, options))} is allowed" if options else _in_words(str(cause))
        found = "" if hides_value else f" = {shown(value)}"
        raise error(f"{where}{found}: {rule}") from cause


def _options_of(kind: Any) -> tuple[Any, ...]:
    """The values of a Literal, or of the Literal in `Literal[…] | None`; none for other types."""
    parts = [kind, *typing.get_args(kind)]
    return next((typing.get_args(part) for part in parts if typing.get_origin(part) is typing.Literal), ())


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys back to nested tables; the inverse of `flatten` for records and tables of variables."""
    tree: dict[str, Any] = {}
    for dotted, value in flat.items():
        *parents, key = dotted.split(".")
        table = tree
        for parent in parents:
            table = table.setdefault(parent, {})
        table[key] = value
    return tree


def user_config_dir(environ: Mapping[str, str]) -> Path | None:
    """$XDG_CONFIG_HOME/hpc-train, else ~/.config/hpc-train; None where neither variable is an absolute path."""
    base = environ.get("XDG_CONFIG_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "hpc-train"
    home = environ.get("HOME", "")
    return Path(home) / ".config" / "hpc-train" if os.path.isabs(home) else None


def _texts(value: Any) -> Iterator[str]:
    """Every text within a value, keys of tables included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield str(key)
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def _in_words(message: str) -> str:
    """msgspec's message in the words of people who write TOML: "Expected `array`" gives "expected a list"."""
    names = {"int": "an integer", "str": "a text", "array": "a list", "bool": "true or false", "object": "a table"}
    names |= {"time": "a time of day: a text takes quotes", "date": "a date: a text takes quotes"}
    words = re.sub(r"`([^`]*)`", lambda match: names.get(match[1].removesuffix(" | null"), match[1]), message)
    return words[0].lower() + words[1:]


def _is_unicode(text: str) -> bool:
    """False for the surrogates that stand for undecodable bytes of the command line or the environment."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _bare(kind: Any) -> Any:
    """The type without its Annotated description."""
    return typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _kind_of(value: Any) -> str:
    names = {bool: "true or false", int: "an integer", float: "a number", str: "a text", list: "a list"}
    return names.get(type(value), f"a {type(value).__name__}")
