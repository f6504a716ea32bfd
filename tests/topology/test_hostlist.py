"""Host lists mean to us what they mean to Slurm: compared with the real scontrol, which must be installed."""

from __future__ import annotations

import os
import subprocess
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpc_train.errors import SpecError
from hpc_train.topology.hostlist import MAX_NAMES, expand, expand_counts, fold

Scontrol = Callable[[str, str], list[str]]


@pytest.fixture(scope="module")
def scontrol(tmp_path_factory: pytest.TempPathFactory) -> Scontrol:
    """`scontrol show WHAT TEXT` as lines; it asks no controller for host lists, but wants a configuration."""
    config = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    config.write_text("ClusterName=none\nSlurmctldHost=localhost\n")
    environ = {**os.environ, "SLURM_CONF": str(config)}

    def run(what: str, text: str) -> list[str]:
        command = ["scontrol", "show", what, text]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=20, check=True)
        assert not done.stderr, done.stderr
        return done.stdout.split()

    return run


# Public reports first: Lightning#14896, Megatron-Bridge#3807, dinov2#495, then forms that sites use.
LISTS = {
    "linux[1,2]": ["linux1", "linux2"],
    "a,b[001,003],c": ["a", "b001", "b003", "c"],
    "p[0010,0011],q0005,r0007": ["p0010", "p0011", "q0005", "r0007"],
    "n1": ["n1"],
    "n[08-10]": ["n08", "n09", "n10"],
    "n[099-101]": ["n099", "n100", "n101"],
    "n[008-10]": ["n008", "n009", "n010"],
    "n[8-010]": ["n8", "n9", "n10"],  # the first number sets the padding
    "n[3,1-2]": ["n3", "n1", "n2"],  # order is kept
    "n[1-2,1]": ["n1", "n2", "n1"],  # duplicates are kept
    "n3,n1,n1": ["n3", "n1", "n1"],
    "tux[1-3]x[1-2]": ["tux1x1", "tux1x2", "tux2x1", "tux2x2", "tux3x1", "tux3x2"],
    "a[1-2][3-4]": ["a13", "a14", "a23", "a24"],
    # Slurm's own order for three brackets: the middle one is the slowest
    "a[1-2]b[3-4]c[5-6]": ["a1b3c5", "a1b3c6", "a2b3c5", "a2b3c6", "a1b4c5", "a1b4c6", "a2b4c5", "a2b4c6"],
    "gpu-a[1-2],x.y-z_1": ["gpu-a1", "gpu-a2", "x.y-z_1"],
    "a, b": ["a", "b"],
    "[1-3]": ["1", "2", "3"],
}


@pytest.mark.parametrize("text", LISTS)
def test_hosts_are_those_of_scontrol(text: str, scontrol: Scontrol) -> None:
    assert expand(text) == LISTS[text] == scontrol("hostnames", text)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n[08-10]-ib0", ["n08-ib0", "n09-ib0", "n10-ib0"]),
        ("n[1-2].cluster,m1", ["n1.cluster", "n2.cluster", "m1"]),
        ("r[1-2]n[1-2]-hsn0", ["r1n1-hsn0", "r1n2-hsn0", "r2n1-hsn0", "r2n2-hsn0"]),
    ],
)
def test_text_after_a_bracket_is_part_of_the_name(text: str, names: list[str]) -> None:
    assert expand(text) == names  # scontrol 22.05.8 refuses these, site files and users write them


@pytest.mark.parametrize(
    "text",
    ["", " ", ",", "a,", ",a", "a,,b", "n[1-2", "n1]", "n]1[", "n[2-1]", "n[]", "n[1,]", "n[,1]", "n[1-]", "n[-1]",
     "n[1-2-3]", "n[a-b]", "n[1x2]", "n[[1]]", "n[1-[2]]", "n[1-2]]", "n[ 1-2 ]", "a b", "a\nb", "a;b", "$(id)",
     "`id`", "a/b",
     "../a", "-x", "--help", "(null)", "n[1-2]{x}", "é[1-2]", "n[１-２]", "n[1-2],n[3",
     "n[1" + "0" * 30 + "]", "a\x00b", "n*"],
)  # fmt: skip
def test_malformed_lists_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(SpecError, match="host list") as caught:
        expand(text)
    assert "\n" not in str(caught.value)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    ["n[0-999999999]", "n[1-65537]", "n[1-300]x[1-300]", "a" + "[0-9]" * 200, "n[1-40000],m[1-40000]", "x" * (5 << 20)],
)
def test_a_size_bomb_is_refused_before_it_is_unpacked(text: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(SpecError, match=r"at most|too long") as caught:
            expand(text)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 16 << 20
    assert len(str(caught.value)) < 300


def test_the_largest_list_is_taken() -> None:
    assert len(expand(f"n[1-{MAX_NAMES}]")) == MAX_NAMES


numbers = st.integers(0, 1200)


@st.composite
def ranges(draw: st.DrawFn) -> str:
    low, width = draw(numbers), draw(st.integers(1, 5))
    text = f"{low:0{width}}"
    return draw(st.sampled_from([text, f"{text}-{low + draw(st.integers(0, 12)):0{width}}"]))


brackets = st.lists(ranges(), min_size=1, max_size=3).map(lambda parts: "[" + ",".join(parts) + "]")
words = st.from_regex(r"[a-z][a-z0-9._-]{0,5}", fullmatch=True)
items = st.one_of(words, st.lists(st.tuples(words, brackets).map("".join), min_size=1, max_size=3).map("".join))
host_lists = st.lists(items, min_size=1, max_size=4).map(",".join)
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(text=host_lists)
def test_any_well_formed_list_gives_the_hosts_of_scontrol(text: str, scontrol: Scontrol) -> None:
    assert expand(text) == scontrol("hostnames", text)


names = st.lists(
    st.one_of(
        words,
        st.tuples(st.sampled_from(["n", "n0", "gpu-", "a1b", "x.y"]), st.integers(0, 120), st.integers(1, 4)).map(
            lambda parts: f"{parts[0]}{parts[1]:0{parts[2]}}"
        ),
    ),
    min_size=1,
    max_size=30,
)


@given(names)
def test_folding_loses_neither_order_nor_duplicates_nor_padding(hosts: list[str]) -> None:
    assert expand(fold(hosts)) == hosts


@quick
@given(hosts=names)
def test_scontrol_reads_our_folded_lists_and_we_read_its(hosts: list[str], scontrol: Scontrol) -> None:
    assert scontrol("hostnames", fold(hosts)) == hosts
    assert expand(scontrol("hostlist", ",".join(hosts))[0]) == hosts


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        (["n1", "n2", "n3", "n5"], "n[1-3,5]"),
        (["n08", "n09", "n10"], "n[08-10]"),
        (["n9", "n10"], "n[9-10]"),
        (["n1", "n02"], "n[1,02]"),  # another padding is another range
        (["b", "a1", "b"], "b,a1,b"),
        (["n" + "9" * 20], "n" + "9" * 20),
        ([], ""),
    ],
)
def test_neighbours_fold_into_ranges(hosts: list[str], text: str) -> None:
    assert fold(hosts) == text


@pytest.mark.parametrize("name", ["", "a,b", "n[1]", "a b", "-x", "a\nb", "é", "x" * 300])
def test_folding_refuses_what_is_no_host_name(name: str) -> None:
    with pytest.raises(SpecError, match="host name"):
        fold([name])


@pytest.mark.parametrize(
    ("text", "counts"),
    [("2(x3),1", [2, 2, 2, 1]), ("1(x2)", [1, 1]), ("40,8", [40, 8]), ("4", [4]), ("2(x1),2", [2, 2])],
)
def test_compressed_counts_give_one_number_per_node(text: str, counts: list[int]) -> None:
    assert expand_counts(text) == counts  # dmlcloud#39, enroot#93, charliecloud#107


@pytest.mark.parametrize(
    "text", ["", "2(x3", "2x3", "a", "2(x0)", "0", "-1", "2(x3),", "2 (x3)", "1(x99999999)", "２", "1" * 20]
)
def test_other_counts_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="counts"):
        expand_counts(text)
