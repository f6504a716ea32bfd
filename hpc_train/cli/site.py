"""`hpc-train site`: which sites are known, and what each one says and where it says it.

Apart because support staff use these commands alone, while they write a site file.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hpc_train.site.loader import LoadedSite
    from hpc_train.site.spec import Status

__all__ = ["command"]


@click.group("site")
def command() -> None:
    """List the known sites, or show one with the origin of each value."""


@command.command("list")
@click.option("--json", "is_json", is_flag=True, help="Print a JSON list of objects: name, title, path, verified.")
def list_command(is_json: bool) -> None:
    """List the sites along the search path.

    A site file that cannot be used is listed with its error.
    """
    from hpc_train.errors import SiteError
    from hpc_train.site.loader import list_sites, load_site

    records: list[dict[str, object]] = []
    for entry in list_sites(os.environ):
        try:
            site = load_site(entry.name, os.environ).site
            says: dict[str, object] = {"title": site.title, "verified": site.status.verified, "error": None}
        except SiteError as error:
            says = {"title": "", "verified": False, "error": str(error)}
        records.append({"name": entry.name, **says, "path": str(entry.path)})
    if is_json:
        click.echo(json.dumps(records, indent=1, ensure_ascii=False))
        return
    width = max((len(str(record["name"])) for record in records), default=0)
    for record in records:
        word = "broken" if record["error"] else "verified" if record["verified"] else "unverified"
        click.echo(f"{record['name']:<{width}}  {word:<10}  {record['error'] or record['title']}")


@command.command("show")
@click.argument("name")
@click.option("--json", "is_json", is_flag=True, help="Print a JSON object: site, origins (key to file), path.")
def show_command(name: str, is_json: bool) -> None:
    """Show one site: every value, and the file it comes from."""
    from hpc_train.site.loader import load_site, site_to_json

    loaded = load_site(name, os.environ)
    if is_json:
        record = {
            "site": json.loads(site_to_json(loaded.site)),
            "origins": loaded.origins,
            "path": str(loaded.path),
        }
        click.echo(json.dumps(record, indent=1, ensure_ascii=False))
        return
    click.echo(f"{loaded.site.name}: {loaded.site.title or 'no title'} ({_status_words(loaded.site.status)})")
    rows = _rows(loaded)
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for key, value, origin in rows:
        click.echo(f"  {key:<{widths[0]}}  {value:<{min(widths[1], 60)}}  {origin}")


def _rows(loaded: LoadedSite) -> list[tuple[str, str, str]]:
    """Key, value as JSON, origin; one row for each value, queues apart."""
    from hpc_train.site.loader import site_to_json

    record = json.loads(site_to_json(loaded.site))
    rows = []
    for dotted, origin in loaded.origins.items():
        value = record
        for key in dotted.split("."):
            value = value[key]
        entries = {dotted: value}
        if dotted == "queues" and value:
            entries = {f"queues.{queue['name']}": queue for queue in value}
        for key, entry in entries.items():
            rows.append((key, json.dumps(entry, ensure_ascii=False), origin))
    return rows


def _status_words(status: Status) -> str:
    if not status.verified:
        return "unverified: nobody has said that jobs run through this file"
    return "verified" + "".join(f" {word} {text}" for word, text in (("by", status.by), ("on", status.on)) if text)
