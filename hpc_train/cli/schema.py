"""`hpc-train schema`: the JSON Schema of job and site files, for editors, or all keys as a table, for people.

Apart because it needs no site, scheduler or run: it only prints what the records say of themselves.
"""

from __future__ import annotations

import click

__all__ = ["command"]


@click.command("schema")
@click.argument("name", type=click.Choice(["job", "site"]))
@click.option("--table", "is_table", is_flag=True, help="Print the keys as Markdown tables instead.")
def command(name: str, is_table: bool) -> None:
    """Print the JSON Schema of job or site files."""
    from hpc_train.job.schema import key_table, schema_text

    click.echo(key_table(name) if is_table else schema_text(name), nl=False)
