"""The root cause comes before its consequences, from one log or from several, whoever printed first."""

from __future__ import annotations

import pytest

from hpc_train.diagnosis.engine import Finding, diagnose, fill_in
from hpc_train.diagnosis.logs import make_log

TIMED_OUT = (
    "[rank3]:[E105 10:11:12.123456789 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=77, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds\n"
)
RAISED = (
    "[rank5]: Traceback (most recent call last):\n"
    '[rank5]:   File "/home/u/train.py", line 12, in <module>\n'
    "[rank5]: KeyError: 'labels'\n"
)
PEER = "[rank1]: RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.5]:41233\n"
ENDED = "srun: error: n2: task 5: Exited with exit code 1\nsrun: error: n1: tasks 0-4: Terminated\n"
KILLED = (
    "slurmstepd-n4: error: Detected 1 oom-kill event(s) in StepId=7.0. Some of your processes may have been killed\n"
)


def first(*texts: str) -> Finding:
    """The best explanation of logs of these texts."""
    logs = [make_log(text.encode(), name=f"logs/n{number}.log") for number, text in enumerate(texts, start=1)]
    return diagnose(logs)[0]


@pytest.mark.parametrize(
    ("texts", "pattern", "rank", "place"),
    [
        # NCCL time-out on rank 3 because rank 5 threw an exception: whoever printed first, in one file or two
        ([RAISED + TIMED_OUT + ENDED], "python-exception", 5, "logs/n1.log:3"),
        ([TIMED_OUT + RAISED + ENDED], "python-exception", 5, "logs/n1.log:4"),
        ([TIMED_OUT, RAISED, ENDED], "python-exception", 5, "logs/n2.log:3"),
        ([PEER + ENDED, "x\n" + RAISED], "python-exception", 5, "logs/n2.log:4"),
        # memory: what was killed explains what others lost
        ([PEER + TIMED_OUT + ENDED + KILLED], "host-out-of-memory", None, "logs/n1.log:5"),
        ([RAISED + ENDED, KILLED], "host-out-of-memory", None, "logs/n2.log:1"),
        # nobody says more: the follower, then the launcher
        ([TIMED_OUT + ENDED], "nccl-timeout", 3, "logs/n1.log:1"),
        ([ENDED], "task-exited", 5, "logs/n1.log:1"),
        # of two causes the earlier
        ([KILLED + "OSError: [Errno 28] No space left on device\n"], "host-out-of-memory", None, "logs/n1.log:1"),
        (["OSError: [Errno 28] No space left on device\n" + KILLED], "disk-full", None, "logs/n1.log:1"),
    ],
)
def test_the_root_cause_comes_first(texts: list[str], pattern: str, rank: int | None, place: str) -> None:
    found = first(*texts)
    assert (found.pattern.id, found.rank, found.place) == (pattern, rank, place)


MISSING = "FileNotFoundError: [Errno 2] No such file or directory: '/scratch/u/books/manifest.json'\n"
CHAINED = """Traceback (most recent call last):
  File "manifest.py", line 3, in read
%s
The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/home/u/train.py", line 12, in <module>
%s
"""


@pytest.mark.parametrize(
    ("last", "pattern"),
    [
        ("hpc_train.errors.DataError: /scratch/u/books: no dataset: it has no manifest.json", "data"),
        ("RuntimeError: cannot start", "file-missing"),  # says less than what it was raised from
    ],
)
def test_an_error_of_ours_tells_more_than_the_missing_file_behind_it(last: str, pattern: str) -> None:
    found = first(CHAINED % (MISSING, last))
    assert found.pattern.id.startswith(pattern)


def test_interleaved_tracebacks_of_labelled_ranks_are_told_apart() -> None:
    lines = []
    for left, right in zip(RAISED.splitlines(), RAISED.replace("rank5", "rank2").replace("labels", "x").splitlines()):
        lines += [left, right]
    found = first("\n".join(lines))
    assert (found.rank, found.text, found.count) == (5, "KeyError: 'labels'", 2)


def test_words_of_another_rank_within_a_traceback_are_not_its_exception() -> None:
    start, place, end = RAISED.splitlines()
    assert first("\n".join([start, place, "[rank2]: Epoch: 3", end])).text == "KeyError: 'labels'"


@pytest.mark.parametrize(
    ("label", "rank"), [("5: ", 5), ("  5: ", 5), ("[1,5]<stderr>: ", 5), ("[rank5]: ", 5), ("", None)]
)
def test_labels_of_srun_mpirun_and_torch_tell_the_rank(label: str, rank: int | None) -> None:
    plain = RAISED.replace("[rank5]: ", "")
    text = "".join(f"{label}{line}\n" for line in ["started", "step 1", *plain.splitlines()])
    found = first(text)
    assert (found.pattern.id, found.rank, found.text) == ("python-exception", rank, "KeyError: 'labels'")


def test_srun_s_own_words_do_not_hide_that_lines_are_labelled() -> None:
    # as a real srun --label printed it
    text = (
        "1: Traceback (most recent call last):\nsrun: error: n2: task 1: Exited with exit code 1\n1:   File x\n"
        "1: KeyError: 'labels'\nsrun: First task exited 1s ago\nsrun: StepId=81.0 task 0: running\n"
        "srun: launch/slurm: _step_signal: Terminating StepId=81.0\nsrun: error: n1: task 0: Killed\n"
    )
    found = first(text)
    assert (found.pattern.id, found.rank, found.text) == ("python-exception", 1, "KeyError: 'labels'")


def test_a_number_and_a_colon_alone_are_no_rank() -> None:
    text = "training\nstep one\nstep two\n12: ModuleNotFoundError: No module named 'x'\n" + RAISED
    assert first(text).rank == 5


def test_the_log_of_a_node_tells_the_host() -> None:
    found = first(RAISED)
    assert found.host == "n1"
    assert first(ENDED.replace("n2:", "gpu-7.cluster:")).host == "gpu-7.cluster"


def test_lines_of_slurm_between_do_not_end_a_traceback() -> None:
    plain = RAISED.replace("[rank5]: ", "").splitlines()
    assert first("\n".join([plain[0], "srun: error: n2: task 1: Exited with exit code 1", *plain[1:]])).text == plain[2]


def test_a_traceback_that_was_cut_off_is_still_an_exception() -> None:
    # seen with srun --kill-on-bad-exit: the rest of the rank's words is lost
    found = first("step 1\nTraceback (most recent call last):\n" + ENDED)
    assert (found.pattern.id, found.place) == ("python-exception", "logs/n1.log:2")


@pytest.mark.parametrize(
    "name", ["KeyError", "socket.timeout", "my.pkg.error", "zmq.error.ZMQError", "Stop", "E", "_E"]
)
def test_names_of_exceptions(name: str) -> None:
    for line in (name, f"{name}: why: so", f"{name}:"):
        assert first(f"Traceback (most recent call last):\n  File x\n{line}\nbye\n").text == line


def test_the_last_of_chained_exceptions_is_the_one_that_ended_the_program() -> None:
    chain = (
        "Traceback (most recent call last):\n  File \"a\", line 1, in f\n    x\nKeyError: 'a'\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        'Traceback (most recent call last):\n  File "a", line 2, in g\n    y\nmy.package.LoadError: bad: file\n'
    )
    assert first(chain).text == "my.package.LoadError: bad: file"
    assert first(chain).count == 1


def test_a_known_cause_within_a_chain_wins_over_the_exception_that_hides_it() -> None:
    chain = (
        'Traceback (most recent call last):\n  File "a", line 1\nOSError: [Errno 28] No space left on device\n\n'
        "During handling of the above exception, another exception occurred:\n\n"
        'Traceback (most recent call last):\n  File "a", line 2\nRuntimeError: save failed\n'
    )
    assert first(chain).pattern.id == "disk-full"


def test_an_exception_that_only_reports_a_lost_peer_is_no_exception_of_its_own() -> None:
    text = (
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "a", line 1\n'
        "[rank1]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a"
        " network error, NCCL version 2.21\n[rank1]: ncclRemoteError: A call failed possibly due to a network error\n"
    )
    assert [found.pattern.id for found in diagnose([make_log(text.encode(), name="x")])] == ["peer-lost"]


ENDED_BY_SLURM = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-05T10:11:12 DUE TO {} ***\n"


@pytest.mark.parametrize("why", ["NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS", "PREEMPTION", "JOB REQUEUE"])
def test_an_earlier_start_s_error_in_an_appended_log_is_not_the_last_one_s(why: str) -> None:
    before = "OSError: [Errno 28] No space left on device\n" + ENDED_BY_SLURM.format(why)
    found = first(before + "step 1\nstep 2\n" + RAISED)
    assert (found.pattern.id, found.place) == ("python-exception", "logs/n1.log:7")
    # only dying words follow: it is the last start
    assert first(before + ENDED + "bye\n").pattern.id == "disk-full"


def test_values_of_the_line_stand_in_the_words() -> None:
    found = first(TIMED_OUT)
    assert "(ALLREDUCE, number 77)" in fill_in(found.pattern.meaning, found)
    assert "--exclude=gpu7" in fill_in("sbatch --exclude={host} of {job}", None, host="gpu7")
    assert fill_in("{job} {size}", None) == "JOB SIZE"


def test_nothing_known_is_nothing_said() -> None:
    assert diagnose([make_log(b"step 1 loss 2.0\nall is well\n", name="x")]) == []
    assert diagnose([make_log(b"", name="x")]) == []
    assert diagnose([]) == []


def test_a_path_in_a_command_is_quoted() -> None:
    text = "hpc_train.errors.DataError: /d/it's mine: damaged: shard-1.h5: No such file or directory; restore it\n"
    (found,) = diagnose([make_log(text.encode(), name="job.out")])
    assert fill_in(found.pattern.next, found).startswith("hpc-train data verify '/d/it'\"'\"'s mine' names")


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: 'nosuch.pt'", "nosuch.pt"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/a b/x.pt'", "'/a b/x.pt'"),
        ('FileNotFoundError: [Errno 2] No such file or directory: "/it\'s"', "'/it'\"'\"'s'"),
        ("FileNotFoundError: [Errno 2] No such file or directory: b'/raw'", "/raw"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/a' -> '/b'", "/a"),
        ("FileNotFoundError: Couldn't find a dataset at /data/books.", "/data/books"),
        ("FileNotFoundError: /data/x.pt does not exist, see 'help'", "/data/x.pt"),
        ("FileNotFoundError: the vocabulary is missing", ""),
        ("/job/slurm_script: line 3: cd: /nosuchdir: No such file or directory", "/nosuchdir"),
        ("cp: cannot stat '/a b': No such file or directory", "'/a b'"),
        ("ls: cannot access '/x': No such file or directory", "/x"),
        ("tar: x.tar: Cannot open: No such file or directory", "x.tar"),
        ("python3: can't open file '/x.py': [Errno 2] No such file or directory", "/x.py"),
        ("bash: run.sh: No such file or directory", "run.sh"),
    ],
)
def test_a_missing_file_is_named_as_it_may_be_typed_or_not_at_all(line: str, path: str) -> None:
    found = first(f"{line}\n")
    assert (found.pattern.id, found.values.get("path", "")) == ("file-missing", path)
    look = "look for it where the job ran" + (f": srun -N1 -w n1 ls -ld {path}" if path else "") + "; relative"
    assert fill_in(found.pattern.next, found, host="n1").startswith(look)
    assert found.count == 1  # however many texts of the pattern the line fits


def test_a_part_of_which_nothing_is_known_is_left_out() -> None:
    text = "look[[: a[[ -w {host}]] b {path}]]; {job}"
    assert fill_in(text, None, host="h", path="]]{host}[[", job="7") == "look: a -w h b ]]{host}[[; 7"
    assert fill_in(text, None, path="p") == "look: a b p; JOB"
    assert fill_in(text, None, host="h") == "look; JOB"


def test_what_srun_says_of_ranks_that_had_run_is_no_failed_launch() -> None:
    aborted = "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
    lost = first(f"step 68 loss 2.3\n{aborted}srun: error: Timed out waiting for job step to complete\n")
    assert (lost.pattern.id, lost.pattern.tier) == ("step-end-unseen", "summary")
    assert "HOST" not in fill_in(lost.pattern.next + lost.pattern.run, lost)
