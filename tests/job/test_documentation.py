"""What the documentation says of job and site files is what the program takes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hpc_train.job.loader import load_job
from hpc_train.job.schema import key_table, schema_text
from hpc_train.site.loader import load_site
from hpc_train.site.tables import place
from hpc_train.topology.placement import plan_placement

DOCS = Path(__file__).parents[2] / "docs"


def example(document: str) -> str:
    found = re.search(r"^```toml\n(.*?)^```$", (DOCS / document).read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def test_the_committed_schema_is_todays() -> None:
    assert (DOCS / "schema/job.schema.json").read_text() == schema_text("job"), "run: hpc-train schema job"


@pytest.mark.parametrize(("name", "document"), [("job", "job-file.md"), ("site", "sites.md")])
def test_the_documented_keys_are_todays(name: str, document: str) -> None:
    found = re.search(
        rf"<!-- keys of {name} files.*?-->\n(.*?)<!-- end of keys -->", (DOCS / document).read_text(), re.DOTALL
    )
    assert found is not None
    assert found[1].strip() == key_table(name).strip(), f"paste the output of: hpc-train schema {name} --table"


def test_the_schema_names_every_key_with_its_meaning() -> None:
    definitions = json.loads(schema_text("job"))["$defs"]
    sections = {name: part for name, part in definitions.items() if name.endswith("Section")}
    assert set(sections) == {"JobSection", "EnvSection", "ProgramSection", "DataSection", "RecoverySection"}
    for section in sections.values():
        assert section["additionalProperties"] is False
        assert all(key["description"] for key in section["properties"].values())
    assert sections["ProgramSection"]["required"] == ["command"]


def test_the_example_of_a_job_file_loads(environ: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(example("job-file.md"))
    path.chmod(0o600)
    loaded = load_job(path, {}, environ)
    placement = plan_placement(loaded.spec, loaded.site.site, origins=loaded.origins)
    assert (placement.num_ranks, placement.gpus_per_node, placement.stop_lead_s) == (16, 4, 600)
    assert loaded.spec.program.command[-1] == "/scratch/data set"


def test_the_example_of_a_site_file_loads(environ: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "alpine.toml"
    path.write_text(example("sites.md"))
    path.chmod(0o600)
    environ["HPC_TRAIN_SITES"] = str(tmp_path)
    loaded = load_site("alpine", environ)
    assert loaded.site.launch.launcher == "srun"
    job = load_job(None, {"program.command": ["a"], "job.site": "alpine", "job.nodes": 2}, environ)
    placement = plan_placement(job.spec, loaded.site, origins=job.origins)
    assert (placement.queue, placement.walltime_s, placement.cpus_per_rank, placement.stop_lead_s) == (
        "gpu",
        7200,
        16,
        600,
    )
    assert job.origins["job.walltime"] == f"site alpine ({path}): [defaults].walltime"


def test_places_are_written_as_in_a_file() -> None:
    assert [place(key) for key in ("title", "job.nodes", "env.set.A")] == ["title", "[job].nodes", "[env.set].A"]
