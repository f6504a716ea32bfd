"""Job file, flags, environment and user config to the frozen JobSpec, with the origin of every value.

Apart from the record because only submit-side commands read those; everything after them has job.json.
"""

from __future__ import annotations

import os
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hpc_train.errors import SpecError, UsageError
from hpc_train.files import parse_record, record_text
from hpc_train.job.checks import check_job_value
from hpc_train.job.precedence import Layer, lay_over
from hpc_train.job.spec import JOB_FORMAT, JOB_VERSION, JobSpec
from hpc_train.site.loader import LoadedSite, load_site
from hpc_train.site.tables import (
    convert,
    flatten,
    key_types,
    nest,
    place,
    printable,
    read_toml,
    refuse_unknown,
    user_config_dir,
)

__all__ = [
    "LoadedJob",
    "RecordedJob",
    "changed_values",
    "flag_of",
    "job_from_json",
    "job_to_json",
    "load_job",
    "revise_job",
    "variable_of",
]

_SITE_DEFAULTS = ("queue", "walltime", "nodes", "ranks_per_node", "gpus_per_rank", "cpus_per_rank", "run_root")


@dataclass(frozen=True)
class LoadedJob:
    """A request ready to be planned.

    Attributes:  origins: for every dotted key of the spec where its value came from: "flag --nodes",
    "job.toml: [job].nodes", "env HPC_TRAIN_JOB_NODES", "CONFIG.toml: [job].nodes", "site NAME (FILE): [defaults].nodes"
    or "default".   directory: where submit was typed; relative paths of the spec start there.
    """

    spec: JobSpec
    site: LoadedSite
    origins: dict[str, str]
    directory: Path

    @property
    def python(self) -> Path | None:
        """The Python that runs the ranks: `env.python`, or `env.venv`'s; None: the submitting one. Links are kept."""
        if self.spec.env.python is not None:
            return self._absolute(self.spec.env.python)
        return self._absolute(self.spec.env.venv) / "bin" / "python" if self.spec.env.venv is not None else None

    @property
    def workdir(self) -> Path:
        """Where the program starts: `program.workdir`, else where submit was typed."""
        return self._absolute(self.spec.program.workdir or ".")

    @property
    def run_root(self) -> Path:
        """The directory in which the run directory is made."""
        return self._absolute(self.spec.job.run_root)

    def _absolute(self, text: str) -> Path:
        # abspath, not resolve: the bin/python of a virtual environment is a link that must not be followed
        return Path(os.path.abspath(self.directory / os.path.expanduser(text)))


def load_job(
    path: str | os.PathLike[str] | None,
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    directory: str | os.PathLike[str] | None = None,
) -> LoadedJob:
    """The request made by a job file (or none) and everything laid over or under it.

    Args:  flags: dotted key ("job.nodes", "program.command", "env.set" as a table) to value; None and empty sequences
    count as not given.   environ: HPC_TRAIN_<TABLE>_<KEY> and the search paths are read from it.
    directory: where submit was typed; default: the current directory.
    Raises: SpecError (one line: file, dotted key, what is allowed) for anything wrong in a file, flag or variable;
    SiteError for the site; UsageError for a flag that this function does not know (a bug of the command).
    """
    layers = [_from_flags(flags), _from_file(path), _from_environ(environ), _from_user_config(environ)]
    asked = lay_over(layers)
    site = load_site(asked.values.get("job.site", "local"), environ)
    merged = lay_over([*layers, _from_site(site), _built_in()])
    if "program.command" not in merged.values:
        where = printable(path) if path is not None else "no job file"
        raise SpecError(f"{where}: [program].command is missing; set it, or give the command after `--`")
    spec = _build(merged.values)
    return LoadedJob(spec, site, _in_order(merged.origins), Path(os.path.abspath(directory or ".")))


@dataclass(frozen=True)
class RecordedJob:
    """A request as an earlier submission recorded it.

    Attributes:  text, where: of its job.json.   submission: its number, for origins.   origins, site, directory: as of
    LoadedJob.
    """

    text: str
    where: str
    submission: int
    origins: Mapping[str, str]
    site: LoadedSite
    directory: Path


def revise_job(recorded: RecordedJob, flags: Mapping[str, Any], environ: Mapping[str, str]) -> LoadedJob:
    """A recorded request with what is given anew laid over it; everything else stays as it was.

    Neither the job file nor HPC_TRAIN_* nor the user config is read again. A site named anew is: then what came from
    the old site or was a built-in default comes from the new one, and only what a person had asked for stays.

    Args:  flags, environ: as of `load_job`.
    Raises: as `load_job`.
    """
    given = _from_flags(flags)
    record = parse_record(recorded.text, recorded.where, kind=JOB_FORMAT, version=JOB_VERSION, error=SpecError)
    kept = _from_table(record, recorded.where, recorded.where).values
    origins = {key: _aged(recorded.origins.get(key, "default"), recorded.submission) for key in kept}
    site = recorded.site
    layers = [given, Layer(kept, origins)]
    if "job.site" in given.values:
        site = load_site(given.values["job.site"], environ)
        asked = {key: value for key, value in kept.items() if not origins[key].startswith(("site ", "default"))}
        layers = [given, Layer(asked, origins), _from_site(site), _built_in()]
    merged = lay_over(layers)
    return LoadedJob(_build(merged.values), site, _in_order(merged.origins), recorded.directory)


def _aged(origin: str, submission: int) -> str:
    """The origin of a value that an earlier submission was asked for."""
    is_marked = origin == "default" or origin.startswith("site ") or " (submission " in origin
    return origin if is_marked else f"{origin} (submission {submission})"


def changed_values(old: JobSpec, new: JobSpec) -> list[tuple[str, Any, Any]]:
    """(dotted key, old value, new value) of everything that differs, in the record's order."""
    before, after = msgspec.to_builtins(old), msgspec.to_builtins(new)
    pairs = ((key, before, after) for key in key_types(JobSpec))
    values = ((key, _at(one, key), _at(other, key)) for key, one, other in pairs)
    return [(key, one, other) for key, one, other in values if one != other]


def _at(tree: Any, dotted: str) -> Any:
    for key in dotted.split("."):
        tree = tree[key]
    return tree


def flag_of(dotted: str) -> str:
    """The flag of a key: "job.ranks_per_node" gives "--ranks-per-node"; the command stands after `--`."""
    return "command line" if dotted == "program.command" else "--" + dotted.split(".")[1].replace("_", "-")


def variable_of(dotted: str) -> str:
    """The environment variable of a key: "job.nodes" gives "HPC_TRAIN_JOB_NODES"."""
    return "HPC_TRAIN_" + dotted.replace(".", "_").upper()


def job_to_json(spec: JobSpec) -> str:
    """The request as the JSON record job.json, with format and version."""
    return record_text(JOB_FORMAT, JOB_VERSION, msgspec.to_builtins(spec))


def job_from_json(text: str, where: str = "job.json") -> JobSpec:
    """The inverse of `job_to_json`, with all the checks of a job file.

    Raises: SpecError for anything that is not such a record.
    """
    record = parse_record(text, where, kind=JOB_FORMAT, version=JOB_VERSION, error=SpecError)
    layer = _from_table(record, where, where)
    if "program.command" not in layer.values:
        raise SpecError(f"{where}: [program].command is missing")
    return _build(layer.values)


def _from_flags(flags: Mapping[str, Any]) -> Layer:
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for key, given in flags.items():
        if given is None or given in ((), {}):
            continue  # click gives None or an empty tuple for an option that was not used; [] was asked for
        if _type_of(key) is None:
            raise UsageError(f"flag for unknown key {key!r}")
        flat = flatten(nest({key: given}), JobSpec, flag_of(key), SpecError)
        for dotted, value in flat.items():
            values[dotted] = _checked(dotted, value, f"{flag_of(key)} {dotted.removeprefix(key).strip('.')}".strip())
            origins[dotted] = f"flag {flag_of(key)}" if key != "program.command" else flag_of(key)
    return Layer(values, origins)


def _from_file(path: str | os.PathLike[str] | None) -> Layer:
    if path is None:
        return Layer()
    return _from_table(read_toml(path, SpecError), printable(path), printable(path))


def _from_user_config(environ: Mapping[str, str]) -> Layer:
    config = user_config_dir(environ)
    path = config / "config.toml" if config else None
    if path is None or not os.path.lexists(path):
        return Layer()
    table = read_toml(path, SpecError)
    if "program" in table:
        raise SpecError(f"{path}: [program] belongs into a job file; the user config holds [job], [env] and [recovery]")
    return _from_table(table, printable(path), printable(path))


def _from_table(table: Mapping[str, Any], where: str, source: str) -> Layer:
    flat = flatten(table, JobSpec, where, SpecError)
    values = {
        dotted: _checked(dotted, raw, f"{where}: {place(dotted)}") for dotted, raw in flat.items() if raw is not None
    }
    return Layer(values, {dotted: f"{source}: {place(dotted)}" for dotted in values})


def _from_environ(environ: Mapping[str, str]) -> Layer:
    """HPC_TRAIN_<TABLE>_<KEY>: texts as they are, everything else as TOML writes it (`4`, `true`, `["a", "b"]`)."""
    keys = {variable_of(dotted): dotted for dotted in key_types(JobSpec)}
    tables = tuple(f"HPC_TRAIN_{field.name.upper()}_" for field in msgspec.structs.fields(JobSpec))
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(tables):
            continue
        refuse_unknown(variable, keys, f"environment variable {printable(variable)}", SpecError)
        where = f"environment variable {variable}"
        value = _value_of_text(keys[variable], text, where)
        flat = flatten(nest({keys[variable]: value}), JobSpec, where, SpecError)
        for dotted, raw in flat.items():
            values[dotted] = _checked(dotted, raw, where)
            origins[dotted] = f"env {variable}"
    return Layer(values, origins)


def _value_of_text(dotted: str, text: str, where: str) -> Any:
    if _takes_text(_type_of(dotted)):
        return text
    try:
        # one value only: a newline could smuggle in a second key
        if "\n" not in text and "\r" not in text:
            return tomllib.loads(f"value = {text}")["value"]
        cause: Exception | None = None
    except (ValueError, RecursionError) as error:
        cause = error
    examples = {"program.command": '["python", "train.py"]', "env.set": '{A = "1"}'}
    example = examples.get(dotted, '`4`, `true` or `["a", "b"]`')
    raise SpecError(f"{where}: is not understood; write the value as in a job file: {example}") from cause


def _from_site(loaded: LoadedSite) -> Layer:
    values, origins = {}, {}
    for key in _SITE_DEFAULTS:
        value = loaded.site.default_queue() if key == "queue" else getattr(loaded.site.defaults, key)
        if value is None:
            continue
        source = f"defaults.{key}" if getattr(loaded.site.defaults, key) is not None else "queues"
        values[f"job.{key}"] = value
        origins[f"job.{key}"] = f"site {loaded.site.name} ({loaded.origins[source]}): {place(source)}"
    return Layer(values, origins)


def _built_in() -> Layer:
    """The defaults of the record itself; keys without one (the command) and tables of variables have none."""
    values = {
        f"{section.encode_name}.{field.encode_name}": field.default
        for section in msgspec.structs.fields(JobSpec)
        for field in msgspec.structs.fields(section.type)
        if field.default is not msgspec.NODEFAULT
    }
    return Layer(values, dict.fromkeys(values, "default"))


def _checked(dotted: str, raw: Any, where: str) -> Any:
    is_variable = dotted.startswith("env.set.")
    if is_variable:
        check_job_value(dotted, raw, where)  # before any error could show the value of a secret
    value = convert(
        list(raw) if isinstance(raw, tuple) else raw, _type_of(dotted), where, SpecError, hides_value=is_variable
    )
    if not is_variable:
        check_job_value(dotted, value, where)
    return value


def _type_of(dotted: str) -> Any:
    """The type of a dotted key, str for a variable of a table of variables, None for an unknown key."""
    return str if dotted.startswith("env.set.") else key_types(JobSpec).get(dotted)


def _takes_text(kind: Any) -> bool:
    """True where a value of this type is a plain text, as opposed to a number, truth value, list or table."""
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        return _takes_text(typing.get_args(kind)[0])
    if origin in (typing.Union, types.UnionType):
        return any(_takes_text(part) for part in typing.get_args(kind))
    return kind is str or origin is typing.Literal


def _build(values: Mapping[str, Any]) -> JobSpec:
    return msgspec.convert(nest({key: value for key, value in values.items() if value is not None}), JobSpec)


def _in_order(origins: Mapping[str, str]) -> dict[str, str]:
    """Origins in the record's order; variables in place of their table."""
    full: dict[str, str] = {}
    for key in key_types(JobSpec):
        members = {dotted: origin for dotted, origin in origins.items() if dotted.startswith(f"{key}.")}
        full.update(members or {key: origins.get(key, "default")})
    return full
