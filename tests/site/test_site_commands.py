"""`hpc-train site` and `hpc-train schema` say what support staff need, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner

from hpc_train.cli.schema import command as schema_command
from hpc_train.cli.site import command as site_command
from hpc_train.job.schema import schema_text

WriteSite = Callable[..., Path]


def test_list_names_every_site_and_marks_broken_ones(environ: dict[str, str], write_site: WriteSite) -> None:
    write_site("alpine", "titel = 1\n")
    result = CliRunner(env=environ).invoke(site_command, ["list"])
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.output.splitlines()}
    assert set(lines) == {"alpine", "local", "slurm", "slurm-cluster"}
    assert "broken" in lines["alpine"] and "titel" in lines["alpine"]
    assert "unverified" in lines["slurm"]


def test_list_is_json_for_programs(environ: dict[str, str]) -> None:
    records = json.loads(CliRunner(env=environ).invoke(site_command, ["list", "--json"]).output)
    assert [record["name"] for record in records] == ["local", "slurm", "slurm-cluster"]
    assert all(Path(record["path"]).is_file() for record in records)


def test_show_gives_the_file_of_each_value(environ: dict[str, str], write_site: WriteSite) -> None:
    path = write_site("alpine", 'extends = "slurm-cluster"\n[rendezvous]\ninterfaces = ["ib*"]\n')
    result = CliRunner(env=environ).invoke(site_command, ["show", "alpine"])
    rows = {line.split()[0]: line for line in result.output.splitlines()}
    assert '["ib*"]' in rows["rendezvous.interfaces"] and str(path) in rows["rendezvous.interfaces"]
    assert rows["queues.main"].endswith("slurm-cluster.toml")
    assert rows["signal.lead"].endswith("default")


def test_show_is_json_for_programs(environ: dict[str, str]) -> None:
    record = json.loads(CliRunner(env=environ).invoke(site_command, ["show", "slurm-cluster", "--json"]).output)
    assert record["site"]["queues"][1]["max_walltime"] == "10"
    assert record["origins"]["launch.mpi"].endswith("slurm.toml")


def test_schema_command_prints_the_schema_and_the_table() -> None:
    assert CliRunner().invoke(schema_command, ["job"]).output == schema_text("job")
    assert "| `interfaces` |" in CliRunner().invoke(schema_command, ["site", "--table"]).output
