"""A site file is read whole or refused in one line, and every value of a site can be traced to its file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_train.errors import SiteError
from hpc_train.site.loader import list_sites, load_site, site_from_json, site_to_json

WriteSite = Callable[..., Path]
PACKAGED = ["local", "slurm", "slurm-cluster"]


@pytest.mark.parametrize("name", PACKAGED)
def test_packaged_site_loads_and_survives_json(name: str, environ: dict[str, str]) -> None:
    loaded = load_site(name, environ)
    assert loaded.site.name == name
    assert loaded.site.title
    assert site_from_json(site_to_json(loaded.site)) == loaded.site


def test_generic_sites_say_how_jobs_start() -> None:
    local, slurm = load_site("local", {}).site, load_site("slurm", {}).site
    assert (local.scheduler.kind, local.launch.launcher, local.launch.mpi) == ("local", "mpirun", "mpirun")
    assert (slurm.scheduler.kind, slurm.launch.launcher, slurm.launch.mpi) == ("slurm", "srun", "pmix")
    mpi_of = slurm.launch.mpi_of
    assert (mpi_of.openmpi, mpi_of.mpich, mpi_of.impi) == ("pmix", "pmi2", "pmix")
    assert local.launch.extra_of.openmpi and not local.launch.extra_of.mpich
    assert (slurm.continuation, slurm.resources.gpu_request) == ("requeue", "gpus_per_node")


def test_extending_file_wins_and_each_value_names_its_file(environ: dict[str, str], write_site: WriteSite) -> None:
    own = write_site("alpine", 'extends = "slurm"\n[launch]\nmpi = "pmi2"\n[env.set]\nA = "1"\n')
    loaded = load_site("alpine", environ)
    packaged = load_site("slurm", environ).path
    assert (loaded.site.launch.mpi, loaded.site.launch.launcher) == ("pmi2", "srun")
    assert loaded.origins["launch.mpi"] == loaded.origins["env.set.A"] == str(own)
    assert loaded.origins["launch.launcher"] == str(packaged)
    assert loaded.origins["signal.lead"] == "default"


def test_title_and_verification_are_not_inherited(environ: dict[str, str], write_site: WriteSite) -> None:
    write_site("alpine", 'extends = "slurm-cluster"\n')
    site = load_site("alpine", environ).site
    assert site.title == ""
    assert not site.status.verified
    assert [queue.name for queue in site.queues] == [
        queue.name for queue in load_site("slurm-cluster", environ).site.queues
    ]


def test_own_directories_come_before_the_package_in_order(environ: dict[str, str], tmp_path: Path) -> None:
    text = 'extends = "slurm"\ntitle = "{}"\n'
    places = [tmp_path / "a", tmp_path / "b", tmp_path / "home/.config/hpc-train/sites"]
    for place in places:
        place.mkdir(parents=True)
        (place / "alpine.toml").write_text(text.format(place.name))
        (place / "alpine.toml").chmod(0o600)
    environ["HPC_TRAIN_SITES"] = f"{tmp_path}/absent:{places[0]}:{places[1]}"
    assert load_site("alpine", environ).site.title == "a"
    del environ["HPC_TRAIN_SITES"]
    assert load_site("alpine", environ).site.title == "sites"
    assert [entry.name for entry in list_sites(environ)] == ["alpine", *PACKAGED]


def test_unknown_site_lists_the_known_ones(environ: dict[str, str]) -> None:
    with pytest.raises(SiteError, match=r"unknown site 'alpin'; known: local, slurm, slurm-cluster"):
        load_site("alpin", environ)


@pytest.mark.parametrize("name", ["../local", "/etc/passwd", "", "a\nb", "local.toml", "*"])
def test_a_name_is_never_a_path(name: str, environ: dict[str, str]) -> None:
    with pytest.raises(SiteError, match="unknown site"):
        load_site(name, environ)


def test_extends_that_goes_round_is_refused(environ: dict[str, str], write_site: WriteSite) -> None:
    write_site("a", 'extends = "b"\n')
    write_site("b", 'extends = "a"\n')
    with pytest.raises(SiteError, match="a -> b -> a"):
        load_site("a", environ)


def test_extends_of_an_unknown_site_names_the_file(environ: dict[str, str], write_site: WriteSite) -> None:
    path = write_site("a", 'extends = "nowhere"\n')
    with pytest.raises(SiteError, match=f"unknown site 'nowhere', which {path} extends"):
        load_site("a", environ)


@pytest.mark.parametrize("mode", [0o646, 0o666, 0o622])
def test_a_file_that_others_can_write_is_refused(mode: int, environ: dict[str, str], write_site: WriteSite) -> None:
    write_site("alpine", 'extends = "slurm"\n', mode)
    with pytest.raises(SiteError, match="chmod go-w"):
        load_site("alpine", environ)


BASE = '[scheduler]\nkind = "slurm"\n[launch]\nlauncher = "srun"\nmpi = "pmix"\n'

BROKEN = [
    ("titel = 'x'\n" + BASE, "titel: unknown key; did you mean 'title'"),
    (BASE + "[resources]\ngpus = 4\n", r"\[resources\].gpus: unknown key.*gpus_per_node"),
    (BASE + "[[queues]]\nname = 'a'\nmax_node = 3\n", "queues entry 1.*did you mean 'max_nodes'"),
    (BASE + "[[queues]]\nmax_nodes = 3\n", "missing required field name"),
    (BASE + "[[queues]]\nname = 'a'\n[[queues]]\nname = 'a'\n", "appears twice"),
    (BASE + "[[queues]]\nname = 'a'\nmax_walltime = '1 day'\n", r"entry 1 \(a\): max_walltime: wall time '1 day'"),
    (BASE + "queues = 3\n", "unknown key"),  # TOML: it belongs to [launch] here
    ("queues = 3\n" + BASE, "queues = 3: expected a list"),
    (BASE + "[launch.mpi_of]\nopenmp = 'pmix'\n", r"\[launch.mpi_of\].openmp: unknown key; did you mean 'openmpi'"),
    (BASE + "[launch.mpi_of]\nmpich = 'pmi3'\n", r"\[launch.mpi_of\].mpich = 'pmi3': .*pmi2"),
    ("launch = 'srun'\n[scheduler]\nkind = 'slurm'\n", r"launch: must be a table, not a text"),
    ("[scheduler]\nkind = 'slurm'\n", r"\[launch\].launcher, \[launch\].mpi must be set"),
    ("[scheduler]\nkind = 'pbs'\n", "one of slurm, local is allowed"),
    (BASE.replace("pmix", "mpirun"), "does not go with"),
    (BASE.replace("slurm", "local"), "there is no srun"),
    (BASE + "[resources]\ngpu_request = 'gres_typed'\n", "needs .*gpu_type"),
    (BASE + "[resources]\ngpus_per_node = '4'\n", "expected an integer"),
    (BASE + "[resources]\ngpus_per_node = true\n", "expected an integer"),
    (BASE + "[env.set]\nA = '{local_rnk}'\n", r"\{local_rnk\} is not known; allowed: \{rank\}, \{local_rank\}"),
    (BASE + "[env.set]\nA = 1\n", r"\[env.set\].A.*expected a text"),
    (BASE + "[env.set]\n'A B' = '1'\n", "not a variable's name"),
    ("prologue = [\"a\\nb\"]\n" + BASE, "control characters"),
    ('scratch = "a\\u2028b"\n' + BASE, "control characters"),
    ("always_directives = ['--output=x']\n" + BASE, "--output is not allowed"),
    ("always_directives = ['-N2']\n" + BASE, "one long sbatch option"),
    (BASE + "[signal]\nlead = '1'\n", "duration '1' is not understood"),
    (BASE + "[signal]\nlead = '20h'\n", "1 to 65535 seconds"),
    (BASE + "[defaults]\nwalltime = '1.5h'\n", r"\[defaults\].walltime: wall time"),
    (BASE + "[defaults]\nqueue = 'b'\n[[queues]]\nname = 'a'\n", "not among the queues: a"),
    (BASE + "[rendezvous]\ninterfaces = ['ib0; rm']\n", "interface name or glob"),
    ("name = 'other'\n" + BASE, "make them equal"),
    ("title = \n", "not a TOML file"),
    ("a = " + "[" * 5000, "nested too deeply|not a TOML file"),
    ("title = " + "9" * 5000 + "\n", "not a TOML file|expected a text"),
    ("#" * (300 << 10), "larger than"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BROKEN)
def test_a_broken_file_gives_one_line_with_file_and_key(
    text: str, message: str, environ: dict[str, str], write_site: WriteSite
) -> None:
    path = write_site("alpine", text)
    with pytest.raises(SiteError, match=message) as caught:
        load_site("alpine", environ)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 78


def test_text_in_braces_that_is_no_template_is_left_alone(environ: dict[str, str], write_site: WriteSite) -> None:
    write_site("alpine", BASE + "[env.set]\nA = '{\"a\": {}}'\nB = 'mlx5_{local_rank}:1'\n")
    assert load_site("alpine", environ).site.env.set == {"A": '{"a": {}}', "B": "mlx5_{local_rank}:1"}


@pytest.mark.timeout(20)
def test_a_pipe_in_the_place_of_a_file_does_not_hang(environ: dict[str, str]) -> None:
    os.mkfifo(Path(environ["HPC_TRAIN_SITES"]) / "alpine.toml", 0o600)
    with pytest.raises(SiteError, match="not a regular file"):
        load_site("alpine", environ)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": "hpc-train-job", "version": 1}', '{"format": "hpc-train-site", "version": 2}',
     "[" * 10_000,
     '{"format": "hpc-train-site", "version": 1, "name": "x"}',
     '{"format": "hpc-train-site", "version": 1, "color": 1}'],
)  # fmt: skip
def test_other_json_is_not_taken_for_a_site(text: str) -> None:
    with pytest.raises(SiteError, match=r"^site\.json: "):
        site_from_json(text)
