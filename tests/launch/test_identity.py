"""Who this process is, by launcher."""

from __future__ import annotations

import pytest

from hpc_train.errors import SpecError
from hpc_train.launch.identity import Identity, find_identity, guess_launcher, guess_rank

SRUN = {"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_STEP_NUM_TASKS": "6", "SLURM_LOCALID": "1"}
OMPI = {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "6", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
HYDRA = {"PMI_RANK": "5", "PMI_SIZE": "6", "MPI_LOCALRANKID": "1"}
BATCH_STEP = {"SLURM_PROCID": "0", "SLURM_NTASKS": "6", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
FIFTH_OF_SIX = Identity(rank=5, size=6, local_rank=1, local_size=2, node_rank=2, num_nodes=3)


@pytest.mark.parametrize(
    ("launcher", "environ", "per_node", "expected"),
    [
        ("srun", SRUN, 2, FIFTH_OF_SIX),
        ("mpirun", OMPI, 2, FIFTH_OF_SIX),
        ("mpirun", HYDRA, 2, FIFTH_OF_SIX),
        # mpirun inside a Slurm job: the batch step's own variables are there too
        ("mpirun", {**BATCH_STEP, **OMPI}, 2, FIFTH_OF_SIX),
        # srun inside an mpirun's leftovers, likewise
        ("srun", {**SRUN, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, 2, FIFTH_OF_SIX),
        # a step of fewer tasks than the job has
        ("srun", {**SRUN, "SLURM_NTASKS": "12"}, 2, FIFTH_OF_SIX),
        # no local rank from the launcher: ranks lie in blocks
        ("mpirun", {"PMIX_RANK": "5", "PMI_SIZE": "6"}, 2, FIFTH_OF_SIX),
        # the last node has fewer ranks
        ("mpirun", {**OMPI, "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, 4, Identity(5, 6, 1, 2, 1, 2)),
        # another distribution than blocks: Slurm says which node
        ("srun", {**SRUN, "SLURM_NODEID": "1", "SLURM_LOCALID": "0"}, 2, Identity(5, 6, 0, 2, 1, 3)),
        ("none", {}, 1, None),
        ("none", SRUN, 1, None),
    ],
)
def test_the_declared_launchers_variables_count(
    launcher: str, environ: dict[str, str], per_node: int, expected: Identity | None
) -> None:
    size = 1 if expected is None else expected.size
    assert find_identity(launcher, size, per_node, environ) == (expected or Identity(0, 1, 0, 1, 0))


@pytest.mark.parametrize(
    ("launcher", "environ", "words"),
    [
        ("mpirun", {}, "mpirun made it no rank at all, but the submission declared 6 ranks"),
        ("mpirun", SRUN, "mpirun made it no rank at all"),  # Slurm's variables are not looked at
        ("srun", OMPI, "srun made it no rank at all"),
        ("mpirun", {**OMPI, "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, "mpirun made it rank 0 of 1"),
        ("mpirun", {**OMPI, "OMPI_COMM_WORLD_SIZE": "x"}, "no rank at all"),
        ("srun", {**SRUN, "SLURM_PROCID": "6"}, "rank 6 of 6"),
        ("srun", {**SRUN, "SLURM_PROCID": "٥"}, "no rank at all"),  # a digit, but not one of ASCII
        ("none", {}, "launcher 'none' starts 1 rank, but 6 ranks were declared"),
        ("aprun", {}, "launcher 'aprun' is not known; there are srun, mpirun and none"),
    ],
)
def test_the_wrong_company_is_refused_with_cause_and_remedy(launcher: str, environ: dict[str, str], words: str) -> None:
    with pytest.raises(SpecError) as refused:
        find_identity(launcher, 6, 2, environ)
    assert words in str(refused.value)
    assert "start it with" in str(refused.value) or launcher not in ("srun", "mpirun")


@pytest.mark.parametrize(
    ("environ", "launcher", "rank"),
    [
        ({}, "none", 0),
        (OMPI, "mpirun", 5),
        (HYDRA, "mpirun", 5),
        ({**SRUN, "SLURM_STEP_ID": "0"}, "srun", 5),
        (BATCH_STEP, "none", 0),  # inside a batch job, but not in a step of it
    ],
)
def test_a_program_started_by_hand_is_recognised(environ: dict[str, str], launcher: str, rank: int) -> None:
    assert (guess_launcher(environ), guess_rank(environ)) == (launcher, rank)
