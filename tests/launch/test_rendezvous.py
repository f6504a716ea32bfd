"""A rank that cannot reach rank 0 says so, as what it is: the machine's fault, and not a peer's."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_train.errors import BootstrapError
from hpc_train.files import write_json
from hpc_train.launch.failure import classify_exception
from hpc_train.launch.identity import Identity
from hpc_train.launch.rendezvous import join_rendezvous
from tests.launch.attempts import make_run, run_attempt, write_program
from tests.support.ranks import mpirun_argv


@pytest.fixture
def deaf_port() -> Iterator[int]:
    """A port that is taken, and that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield int(taken.getsockname()[1])


def test_an_address_that_nobody_serves_is_told_with_who_cannot_reach_it(tmp_path: Path, deaf_port: int) -> None:
    record = tmp_path / "rendezvous.json"
    write_json(record, {"address": "127.0.0.1", "port": deaf_port})
    rank_1 = Identity(1, 2, 0, 1, 1, 2)
    with pytest.raises(BootstrapError) as caught:
        join_rendezvous(record, rank_1, wanted=(), hosted=True, reach_s=0.3)
    where = f"rank 1 on {socket.gethostname()} cannot reach rank 0 at 127.0.0.1:{deaf_port} "
    assert str(caught.value).startswith(where)
    assert "site's rendezvous.interfaces" in str(caught.value)
    assert classify_exception(caught.value) == ("infrastructure", 76)


def test_torchs_own_words_for_it_are_no_lost_peer() -> None:
    # torch 2.13, to a port that is closed as to a host that is not there: what a program meets at an address of its own
    text = "The client socket has timed out after 2000ms while trying to connect to (192.0.2.1, 9)."
    assert classify_exception(RuntimeError(text)) == ("program", 1)


# Its main thread alone moves to a network of its own, where nothing answers; MPI's threads stay where they are.
CUT_OFF = """
import ctypes
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 1:
    assert ctypes.CDLL(None, use_errno=True).unshare(0x40000000) == 0, ctypes.get_errno()  # CLONE_NEWNET
import hpc_train
hpc_train.init(timeout_s=2)
"""


@pytest.mark.mpi
def test_a_rank_that_cannot_reach_the_store_over_mpi_is_the_cause(tmp_path: Path) -> None:
    program = write_program(tmp_path / "program.py", CUT_OFF)
    run = make_run(tmp_path / "run", ["python", str(program)], num_ranks=2, ranks_per_node=2)
    namespace = [] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user"]
    ended = run_attempt(run, launcher=[*namespace, *mpirun_argv(2)])
    assert (ended.decision.failure, ended.decision.rank, ended.decision.code) == ("infrastructure", 1, 76), ended.log
    reason = r"BootstrapError: rank 1 on \S+ cannot reach rank 0 at 127\.0\.0\.1:\d+ \("
    assert re.match(reason, ended.decision.reason)
