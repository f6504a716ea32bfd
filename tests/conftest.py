"""What holds for every test: its suite, the order of suites, a clean environment, and no silent skips.

A suite is `unit`, `mpi`, `slurm` or `e2e`: by folder (tests/slurm, tests/e2e), else by the marker `mpi`, else unit.
With HPC_TRAIN_EXPECT_SUITES="unit mpi" the run fails where one of these had no passed test or a skipped one.
Where files are spread over workers (pytest -n 2 --dist loadfile), each worker has a cluster of its own.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# The fixture `cluster`, of the slurm and e2e suites alike; absent where only this file is tried out.
pytest_plugins = ["tests.support.cluster"] if Path(__file__).with_name("support").is_dir() else []

SUITES = ("unit", "mpi", "slurm", "e2e")  # in the order they run: quick and telling first
# Workers begin with what tells most, too; then long files before short ones, so that they end together.
_SUITES_OF_WORKERS = ("unit", "e2e", "slurm", "mpi")

# How long one example takes says more of the machine than of the code; what must be quick has a test that says so.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")

# Read before the environment is scrubbed; tools/test sets it.
_EXPECTED = tuple(os.environ.get("HPC_TRAIN_EXPECT_SUITES", "").split())
# What a surrounding job or shell must not lend to the tests.
_SCRUBBED = ("SLURM_", "SBATCH_", "SRUN_", "PMIX_", "PMI_", "OMPI_", "MPICH_", "PRTE_", "HPC_TRAIN_", "HYDRA_")
_SCRUBBED_NAMES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NO_COLOR",
    "PYTHONUNBUFFERED",
)
# Where the tools put what an unprivileged user must reach; the Slurm suite builds there.
_KEPT = ("HPC_TRAIN_TEST_DIR", "HPC_TRAIN_CLUSTER_DIR", "HPC_TRAIN_KEEP_CLUSTER")


def _suite_of_path(path: Path) -> str:
    parts = path.relative_to(Path(__file__).parent).parts if path.is_relative_to(Path(__file__).parent) else ()
    return parts[0] if parts and parts[0] in ("slurm", "e2e") else "unit"


def _suite(item: pytest.Item) -> str:
    by_folder = _suite_of_path(item.path)
    if by_folder != "unit":
        return by_folder
    return next((name for name in ("e2e", "slurm", "mpi") if item.get_closest_marker(name)), "unit")


class _SuiteGate:
    """Counts outcomes per suite and fails the run over an expected suite that did not really run."""

    def __init__(self) -> None:
        self.passed: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        suite = str(dict(report.user_properties)["suite"])
        if report.passed and report.when == "call":
            self.passed[suite] += 1
        elif report.skipped and not hasattr(report, "wasxfail"):
            self.skipped[suite] += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:  # a whole module: importorskip, or skip at module level
            self.skipped[_suite_of_path(Path(__file__).parents[1] / report.nodeid)] += 1

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if _worker(session.config):
            return  # it has only a part; whoever spread the files sees all reports
        for suite in _EXPECTED:
            problem = None
            if not self.passed[suite]:
                problem = "no test of this suite passed"
            elif self.skipped[suite]:
                problem = f"{self.skipped[suite]} tests of this suite were skipped"
            if problem:
                _report_error(session, f"suite {suite}", problem)


def _worker(config: pytest.Config) -> str:
    """The worker of pytest-xdist that this process is, like gw1, or ""."""
    return str(getattr(config, "workerinput", {}).get("workerid", ""))


def _report_error(session: pytest.Session, where: str, problem: str) -> None:
    """Let the run fail, and count it as an error in the closing line, where people and CI look."""
    session.exitstatus = pytest.ExitCode.TESTS_FAILED
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        report = pytest.CollectReport(where, "failed", f"expected to run in full, but {problem}", [])
        terminal.stats.setdefault("error", []).append(report)


def pytest_configure(config: pytest.Config) -> None:
    """Register the gate, and make the environment one that every machine shares."""
    unknown = set(_EXPECTED) - set(SUITES)
    if unknown:
        raise pytest.UsageError(f"HPC_TRAIN_EXPECT_SUITES names {sorted(unknown)}; there are {', '.join(SUITES)}")
    config.pluginmanager.register(_SuiteGate(), "suite gate")
    config.pluginmanager.register(_Order(), "suite order")
    for name in list(os.environ):
        if name.startswith(_SCRUBBED) and name not in _KEPT:
            del os.environ[name]
    for name in _SCRUBBED_NAMES:
        os.environ.pop(name, None)
    if (worker := _worker(config)) not in ("", "gw0"):
        place = os.environ.get("HPC_TRAIN_CLUSTER_DIR", "/var/tmp/slurm-cluster")
        os.environ["HPC_TRAIN_CLUSTER_DIR"] = f"{place}-{worker}"
    # Several ranks share few cores here; more threads than cores would only slow them down.
    os.environ["OMP_NUM_THREADS"] = "1"
    if os.geteuid() == 0:
        os.environ["OMPI_ALLOW_RUN_AS_ROOT"] = os.environ["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"


class _Order:
    """A plugin of its own, since one module can hold a hook only once."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Put the suites in their order; within one, files keep theirs."""
        order = _SUITES_OF_WORKERS if _worker(config) else SUITES
        items.sort(key=lambda item: order.index(_suite(item)))


@pytest.hookimpl(tryfirst=True)  # before -m looks at the markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark by folder, and leave out what needs a GPU where there is none."""
    for item in items:
        suite = _suite(item)
        item.user_properties.append(("suite", suite))
        if suite != "unit" and item.get_closest_marker(suite) is None:
            item.add_marker(suite)
    if not Path("/dev/nvidiactl").exists():
        needing = [item for item in items if item.get_closest_marker("gpu")]
        if needing:
            config.hook.pytest_deselected(items=needing)
            items[:] = [item for item in items if item not in needing]


@pytest.fixture(scope="session", autouse=True)
def _state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The index of runs goes to a folder of this session, not to the home of who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name.lower())))
        yield
