"""What `init()` makes of the ways to start a program: one row a way."""

from __future__ import annotations

import pytest

from hpc_train.bootstrap.choice import Choice, choose
from hpc_train.errors import HpcTrainError

TORCH = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
TORCHRUN = {**TORCH, "TORCHELASTIC_RUN_ID": "x"}
HYDRA = {"PMI_RANK": "0", "PMI_SIZE": "4"}
OMPI = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}
STEP = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "8"}
BATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}  # a batch script, outside any step
RUN = {"WORLD_SIZE": "8", "RANK": "0", "TORCHELASTIC_RUN_ID": "run", "HPC_TRAIN_RUN_DIR": "/x/run"}  # the shim's


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        # under hpc-train submit, the submission decides, whatever else is there
        ({**RUN, "HPC_TRAIN_MPI": "pmix", **STEP}, Choice("mpi", 8, "pmix")),
        ({**RUN, "HPC_TRAIN_MPI": "mpirun", **HYDRA}, Choice("mpi", 8, "mpirun")),
        ({**RUN, "HPC_TRAIN_MPI": "none", "MASTER_ADDR": "n1", **STEP}, Choice("torch", 8)),
        ({"WORLD_SIZE": "1", "HPC_TRAIN_MPI": "none"}, Choice("alone")),
        ({"WORLD_SIZE": "1", "HPC_TRAIN_MPI": "pmi2"}, Choice("mpi", 1, "pmi2")),
        # torchrun; also one torchrun a node inside mpirun or srun
        (TORCHRUN, Choice("torch", 2)),
        ({**TORCHRUN, **HYDRA}, Choice("torch", 2)),
        ({**TORCHRUN, **STEP, "PMIX_RANK": "0"}, Choice("torch", 2)),
        ({**TORCHRUN, "WORLD_SIZE": "1"}, Choice("alone")),
        ({**RUN, "HPC_TRAIN_MPI": "pmix", "PMIX_RANK": "0", **TORCHRUN}, Choice("torch", 2)),
        # mpirun and srun by hand
        (OMPI, Choice("mpi", 4, "mpirun")),
        (HYDRA, Choice("mpi", 4, "mpirun")),
        ({**OMPI, **BATCH}, Choice("mpi", 4, "mpirun")),
        ({**STEP, "PMIX_RANK": "0"}, Choice("mpi", 4, "srun")),
        ({**STEP, **HYDRA}, Choice("mpi", 4, "mpirun")),  # srun --mpi=pmi2 sets what hydra sets
        ({**STEP, **TORCH}, Choice("torch", 2)),  # srun --mpi=none, and the script exports what env:// needs
        ({**STEP, "SLURM_STEP_NUM_TASKS": "1"}, Choice("alone")),
        # alone, or env:// by hand
        ({}, Choice("alone")),
        (BATCH, Choice("alone")),
        (TORCH, Choice("torch", 2)),
        ({"WORLD_SIZE": "٢"}, Choice("alone")),
    ],
)
def test_a_program_gets_the_world_of_what_started_it(environ: dict[str, str], expected: Choice) -> None:
    assert choose(environ, has_mpi4py=True, has_torch=True) == expected


def test_a_group_that_the_program_made_is_the_world_whatever_the_environment_says() -> None:
    for environ in ({}, HYDRA, {"WORLD_SIZE": "1"}):  # torch.multiprocessing.spawn sets nothing at all
        assert choose(environ, has_mpi4py=True, has_torch=True, group_size=3) == Choice("torch", 3)
    declared = {**RUN, "HPC_TRAIN_MPI": "pmix"}
    assert choose(declared, has_mpi4py=True, has_torch=True, group_size=8).kind == "mpi"


@pytest.mark.parametrize(
    ("environ", "has_mpi4py", "has_torch", "said"),
    [
        (OMPI, False, True, "mpirun started 4 ranks, but nothing joins them: mpi4py is not installed"),
        (HYDRA, False, False, "mpirun started 4 ranks"),
        (STEP, True, True, "srun started 4 ranks, but nothing joins them: srun was told --mpi=none"),
        ({**STEP, "RANK": "0", "WORLD_SIZE": "4"}, False, True, "MASTER_ADDR and MASTER_PORT are not all set"),
        ({**STEP, **TORCH}, False, False, "srun started 4 ranks"),
        ({**RUN, "HPC_TRAIN_MPI": "none"}, True, True, '[program] rendezvous = "torch"'),
        ({**RUN, "HPC_TRAIN_MPI": "none"}, False, True, "or install mpi4py into the job's environment"),
        ({**RUN, "HPC_TRAIN_MPI": "none", **TORCH}, True, False, "pip install torch"),
    ],
)
def test_one_of_several_ranks_never_becomes_a_world_of_one(
    environ: dict[str, str], has_mpi4py: bool, has_torch: bool, said: str
) -> None:
    with pytest.raises(HpcTrainError) as refused:
        choose(environ, has_mpi4py=has_mpi4py, has_torch=has_torch)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
