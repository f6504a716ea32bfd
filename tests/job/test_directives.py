"""An extra sbatch option adds something, or is refused: it never undoes what hpc-train sets."""

from __future__ import annotations

import pytest

from hpc_train.errors import SpecError
from hpc_train.site.directives import OWNED_OPTIONS, check_directive

GOOD = [
    "--exclusive", "--gres=nvme:100", "--network=disable_rdzv_get", "--mcs-label=a b, 'c' %", "--switches=1@5:00",
    "--gpus=4",
    "--get-user-env=60L", "--mem-per-cpu=4G", "--hint=nomultithread", "--begin=now+1hour", "--nice",
    "--mail-type=END,FAIL", "--threads-per-core=1", "--some-option-of-a-newer-slurm=x", "--nodelist=n1",
]  # fmt: skip


@pytest.mark.parametrize("text", GOOD)
def test_other_options_are_taken(text: str) -> None:
    check_directive(text, "here", SpecError)


@pytest.mark.parametrize("option", sorted(OWNED_OPTIONS))
def test_our_options_are_refused_with_and_without_a_value(option: str) -> None:
    for text in (f"--{option}", f"--{option}=x"):
        with pytest.raises(SpecError, match=f"--{option} is not allowed here"):
            check_directive(text, "here", SpecError)


# sbatch takes any unambiguous beginning of an option for the option
@pytest.mark.parametrize(
    "text", ["--outp=x", "--err=x", "--sig=TERM", "--no-req", "--nod=5", "--part=x", "--dep=singleton", "--o=x"]
)
def test_abbreviations_of_our_options_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="is not allowed here"):
        check_directive(text, "here", SpecError)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-N2",
        "-N 2",
        "nodes=2",
        "--",
        "--=x",
        "-- nodes=2",
        "--exclusive user",
        "--Key=x",
        " --nice",
        "--a_b=1",
        "---x",
    ],
)
def test_what_is_not_one_long_option_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="one long sbatch option"):
        check_directive(text, "here", SpecError)


@pytest.mark.parametrize("word", ["hetjob", "packjob"])
def test_words_that_split_a_job_are_refused(word: str) -> None:
    with pytest.raises(SpecError, match="separator of jobs"):  # esm_tools#933
        check_directive(f"--mcs-label=/data/{word}/x", "here", SpecError)
