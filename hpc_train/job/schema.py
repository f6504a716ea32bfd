"""The job and site files described for machines (JSON Schema) and for the documentation (a table).

Apart from the records because both descriptions are made of them: neither can drift from what the loader takes.
"""

from __future__ import annotations

import json
import typing
from typing import Any

import msgspec

from hpc_train.job.spec import JobSpec
from hpc_train.site.spec import Site

__all__ = ["RECORDS", "key_table", "schema_text"]

RECORDS: dict[str, type[msgspec.Struct]] = {"job": JobSpec, "site": Site}


def schema_text(name: str) -> str:
    """JSON Schema (draft 2020-12) of the files called `name`: "job" or "site". Editors check TOML files with it."""
    schema = msgspec.json.schema(RECORDS[name])
    for part in ("Site", "Scheduler", "Launch"):
        # a site file may leave out what the file that it extends says
        schema["$defs"].get(part, {}).pop("required", None)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"hpc-train {name} file"}
    return json.dumps({**head, **schema}, indent=2, ensure_ascii=False) + "\n"


def key_table(name: str) -> str:
    """All keys of the files called `name` as Markdown tables, one for each TOML table: key, type, default, meaning."""
    return "\n\n".join(_tables(RECORDS[name], "", "Outside tables")) + "\n"


def _tables(record: type[msgspec.Struct], prefix: str, heading: str) -> list[str]:
    fields = msgspec.structs.fields(record)
    plain = [field for field in fields if _record_of(field.type) is None]
    parts = ["\n".join([heading, "", *_rows(plain)])] if plain else []
    for field in fields:
        inner, name = _record_of(field.type), prefix + field.encode_name
        if inner is not None:
            is_list = typing.get_origin(_bare(field.type)) is tuple
            parts += _tables(inner, f"{name}.", f"`[[{name}]]`" if is_list else f"`[{name}]`")
    return parts


def _rows(fields: typing.Iterable[msgspec.structs.FieldInfo]) -> list[str]:
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for field in fields:
        meaning = _description(field.type).replace("|", "\\|")
        rows.append(f"| `{field.encode_name}` | {_type_name(field.type)} | {_default(field)} | {meaning} |")
    return rows


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default is None:
        return ""
    if field.default is not msgspec.NODEFAULT:
        value = list(field.default) if isinstance(field.default, tuple) else field.default
        return f"`{json.dumps(value)}`"
    return "required" if field.default_factory is msgspec.NODEFAULT else "`{}`"


def _type_name(kind: Any) -> str:
    kind = _bare(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return ", ".join(f"`{json.dumps(option)}`" for option in arguments)
    if origin is tuple:
        return "list of texts" if arguments[0] is str else "list of tables"
    if origin is dict:
        return "table of texts"
    if arguments:  # X | None
        return _type_name(next(part for part in arguments if part is not type(None)))
    return {str: "text", int: "integer", bool: "true or false"}[kind]


def _description(kind: Any) -> str:
    """The description of an Annotated type, "" without one."""
    notes = [note for note in getattr(kind, "__metadata__", ()) if isinstance(note, msgspec.Meta)]
    return next((note.description for note in notes if note.description), "")


def _record_of(kind: Any) -> type[msgspec.Struct] | None:
    """The record behind a table or a list of tables, None for any other type."""
    bare = _bare(kind)
    candidate = (typing.get_args(bare) or (None,))[0] if typing.get_origin(bare) is tuple else bare
    return candidate if isinstance(candidate, type) and issubclass(candidate, msgspec.Struct) else None


def _bare(kind: Any) -> Any:
    return typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind
