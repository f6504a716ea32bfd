"""Site files to the frozen Site: the search path, `extends`, the checks, and where each value came from.

Apart from the record because only submit-side commands read files; everything after them has site.json.
"""

from __future__ import annotations

import importlib.resources
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hpc_train.errors import SiteError
from hpc_train.files import parse_record, record_text
from hpc_train.quantities import shown
from hpc_train.site.checks import check_site, check_site_value
from hpc_train.site.spec import SITE_FORMAT, SITE_VERSION, Site
from hpc_train.site.tables import convert, flatten, key_types, nest, place, printable, read_toml, user_config_dir

__all__ = ["LoadedSite", "SiteEntry", "list_sites", "load_site", "site_from_json", "site_to_json"]

MAX_EXTENDS = 8
SYSTEM_DIR = Path("/etc/hpc-train/sites")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_OWN_KEYS = ("name", "title", "extends")  # with [status]: true of one file only, never inherited


@dataclass(frozen=True)
class SiteEntry:
    """A site file found along the search path; `is_packaged`: it came with hpc-train."""

    name: str
    path: Path
    is_packaged: bool


@dataclass(frozen=True)
class LoadedSite:
    """A Site, the file it was asked for in, and for every dotted key the file its value came from ("default": none)."""

    site: Site
    path: Path
    origins: dict[str, str]


def list_sites(environ: Mapping[str, str]) -> list[SiteEntry]:
    """All sites along the search path, the first of a name only, by name.

    The path: directories in $HPC_TRAIN_SITES (separated by ':'), $XDG_CONFIG_HOME/hpc-train/sites,
    /etc/hpc-train/sites, the package's own. Directories that do not exist or cannot be read hold nothing.
    """
    found: dict[str, SiteEntry] = {}
    packaged = _packaged_dir()
    for directory in [*_own_dirs(environ), packaged]:
        try:
            paths = sorted(directory.glob("*.toml"))
        except OSError:
            continue
        for path in paths:
            if _NAME.fullmatch(path.stem):
                found.setdefault(path.stem, SiteEntry(path.stem, path, directory == packaged))
    return [found[name] for name in sorted(found)]


def load_site(name: str, environ: Mapping[str, str]) -> LoadedSite:
    """The site of that name with everything it extends.

    Values of a file win over those of the file it extends, key by key; lists are replaced whole; name, title and
    [status] are never inherited.
    Raises: SiteError for an unknown name (with the known ones), a cycle, or whatever is wrong in a file.
    """
    entries = {entry.name: entry for entry in list_sites(environ)}
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    chain: list[str] = []
    next_name: str | None = name
    while next_name is not None:
        if next_name in chain or len(chain) == MAX_EXTENDS:
            raise SiteError(f"site {shown(name)}: `extends` goes round or too far: {' -> '.join([*chain, next_name])}")
        entry = entries.get(next_name)
        if entry is None:
            asked = f", which {printable(entries[chain[-1]].path)} extends" if chain else ""
            raise SiteError(f"unknown site {shown(next_name)}{asked}; known: {', '.join(entries) or 'none'}")
        flat = _read_site(entry)
        chain.append(next_name)
        next_name = flat.get("extends")
        for dotted, value in flat.items():
            is_own = dotted in _OWN_KEYS or dotted.startswith("status.")
            if dotted not in values and not (is_own and len(chain) > 1):
                values[dotted] = value
                origins[dotted] = str(entry.path)
    where = printable(entries[name].path)
    values.setdefault("name", name)
    origins.setdefault("name", where)
    return LoadedSite(_build(values, where), entries[name].path, _complete(origins))


def site_to_json(site: Site) -> str:
    """The site as the JSON record site.json, with format and version."""
    return record_text(SITE_FORMAT, SITE_VERSION, msgspec.to_builtins(site))


def site_from_json(text: str, where: str = "site.json") -> Site:
    """The inverse of `site_to_json`, with all the checks of a site file.

    Raises: SiteError for anything that is not such a record.
    """
    record = parse_record(text, where, kind=SITE_FORMAT, version=SITE_VERSION, error=SiteError)
    flat = flatten(record, Site, where, SiteError)
    return _build({key: value for key, value in flat.items() if value is not None}, where)


def _own_dirs(environ: Mapping[str, str]) -> list[Path]:
    listed = [Path(part) for part in environ.get("HPC_TRAIN_SITES", "").split(os.pathsep) if part]
    config = user_config_dir(environ)
    return [*listed, *([config / "sites"] if config else []), SYSTEM_DIR]


def _packaged_dir() -> Path:
    # setup.cfg maps the folder site_configs/ to this package, in the wheel and in an editable install alike
    return Path(str(importlib.resources.files("hpc_train.site_configs")))


def _read_site(entry: SiteEntry) -> dict[str, Any]:
    """The converted values of one file under dotted keys; required keys may be missing: the base may have them."""
    where = printable(entry.path)
    flat = flatten(read_toml(entry.path, SiteError, is_packaged=entry.is_packaged), Site, where, SiteError)
    values = _converted(flat, where)
    if values.get("name", entry.name) != entry.name:
        raise SiteError(f"{where}: name = {shown(values['name'])}, but the file is {entry.name}.toml; make them equal")
    return values


def _converted(flat: Mapping[str, Any], where: str) -> dict[str, Any]:
    types = key_types(Site)
    values = {}
    for dotted, raw in flat.items():
        spot = f"{where}: {place(dotted)}"
        kind = str if dotted.startswith("env.set.") else types[dotted]
        values[dotted] = convert(raw, kind, spot, SiteError)
        check_site_value(dotted, values[dotted], spot)
    return values


def _build(values: Mapping[str, Any], where: str) -> Site:
    missing = [key for key in ("scheduler.kind", "launch.launcher", "launch.mpi") if key not in values]
    if missing:
        keys = ", ".join(place(key) for key in missing)
        raise SiteError(f"{where}: {keys} must be set, here or in a file that this one extends")
    try:
        site = msgspec.convert(nest(_converted(values, where)), Site)
    except msgspec.ValidationError as cause:  # a record with a key set to null
        raise SiteError(f"{where}: {cause}") from cause
    check_site(site, where)
    return site


def _complete(origins: Mapping[str, str]) -> dict[str, str]:
    """Origins for every key of the record, in its order; those that no file sets are "default"."""
    full: dict[str, str] = {}
    for key in key_types(Site):
        members = {dotted: origin for dotted, origin in origins.items() if dotted.startswith(f"{key}.")}
        full.update(members or {key: origins.get(key, "default")})
    return full
