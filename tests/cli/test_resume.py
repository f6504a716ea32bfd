"""`hpc-train resume` on the command line: what it takes, what it prints, and what it refuses in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_train.files import read_json, write_json
from hpc_train.run.journal import Journal, read_journal
from hpc_train.run.layout import RunDir
from tests.cli.conftest import Shell
from tests.scheduler.making import make_attempt, write_program


@pytest.fixture
def run(shell: Shell) -> RunDir:
    """A run of two ranks that has ended, and a Slurm that has forgotten its job."""
    out = shell.ok("submit", "--site", "slurm-cluster", "--nodes", "2", "--", "python", "train.py", "--steps", "10")
    made = RunDir(Path(out.splitlines()[2].split(maxsplit=1)[1]))
    make_attempt(made, word="done", failure="done", reason="all ranks ended cleanly")
    write_program(shell.bin, "sbatch", "echo 4712")
    return made


def test_a_finished_run_goes_on_with_more_steps(shell: Shell, run: RunDir) -> None:
    out = shell.ok(
        "resume", run.name, "--nodes", "4", "--walltime", "1:00:00", "--", "python", "train.py", "--steps", "20"
    )
    assert out.splitlines() == [
        f"run     {run.name}",
        "job     4712",
        f"in      {run.path}",
        "asks    4 nodes, 4 ranks, a wall time of 1h, queue main",
        "changed walltime none -> 1:00:00",
        "changed nodes 2 -> 4",
        "changed command python train.py --steps 10 -> python train.py --steps 20",
        "changed 2 -> 4 ranks: how it deals the samples to them is up to the program",
        f"watch   hpc-train status {run.name}; hpc-train logs -f {run.name}; hpc-train why {run.name}",
    ]
    shell.queue("4712|PENDING||Priority")
    (status,) = shell.json("status", "4712")
    assert (status["run"], status["state"], status["job_id"], status["attempts"]) == (run.name, "pending", "4712", 1)
    assert "pending" in shell.ok("why", run.name)
    # a job id of an earlier submission still names the run
    assert shell.json("status", "4711")[0]["job_id"] == "4712"


def test_a_dry_run_prints_the_script_and_changes_nothing(shell: Shell, run: RunDir) -> None:
    before = shell.contents()
    words = ["--nodes", "1", "--walltime", "2:00:00", "--dry-run", "--", "python", "train.py", "--steps", "20"]
    done = shell.run("resume", run.name, *words)
    assert done.returncode == 0 and "#SBATCH --nodes=1" in done.stdout and "submission-01" in done.stdout
    assert done.stderr.splitlines() == [
        "hpc-train: changed walltime none -> 2:00:00",
        "hpc-train: changed nodes 2 -> 1",
        "hpc-train: changed command python train.py --steps 10 -> python train.py --steps 20",
        "hpc-train: changed 2 -> 1 ranks: how it deals the samples to them is up to the program",
    ]
    assert shell.contents() == before


def test_what_a_submit_warns_of_a_resume_and_its_dry_run_say_too(shell: Shell) -> None:
    (shell.directory / "job.toml").write_text('[env]\npass = ["HF_TOKEN"]\n[program]\ncommand = ["python", "train.py"]')
    out = shell.run("submit", "job.toml", "--site", "slurm-cluster").stdout
    name = out.splitlines()[0].split()[1]
    lacks = "hpc-train: warning: [env].pass names what is not set here, so the job will lack it: HF_TOKEN\n"
    said = [shell.run("resume", name, *words).stderr for words in (["--dry-run"], [])]
    assert said == [f"hpc-train: changed nothing\n{lacks}", lacks]


def test_a_dry_run_says_where_nothing_changes(shell: Shell, run: RunDir) -> None:
    done = shell.run("resume", run.name, "--dry-run")
    assert (done.returncode, done.stderr) == (0, "hpc-train: changed nothing\n")


def test_of_long_commands_the_part_that_differs_is_shown(shell: Shell, run: RunDir) -> None:
    long = ["--", "python", "train.py", "--data", "/a/path/that/is/as/long/as/paths/of/data/on/clusters/are/mostly"]
    shell.ok("resume", run.name, *long, "--steps", "10")
    shell.queue()
    done = shell.run("resume", run.name, "--dry-run", *long, "--steps", "20")
    assert done.stderr == "hpc-train: changed command … 10 -> … 20\n"


@pytest.mark.parametrize(
    ("queued", "said"),
    [
        ("4711|RUNNING|n1|None", "its job 4711 is running; to run it otherwise, first: hpc-train cancel "),
        ("4711|PENDING||Priority", "its job 4711 is pending; to run it otherwise, first: hpc-train cancel "),
        ("4711|COMPLETING|n1|None", "its job 4711 is completing; ask again once it has ended"),
    ],
)
def test_a_run_whose_job_is_alive_is_refused_with_what_to_do(shell: Shell, run: RunDir, queued: str, said: str) -> None:
    shell.queue(queued)
    assert said in shell.fails(78, "resume", run.name, "--nodes", "4")
    assert [event.event for event in read_journal(run)] == ["submitted"]


def test_a_scheduler_that_does_not_answer_is_no_leave_to_go_on(shell: Shell, run: RunDir) -> None:
    write_program(shell.bin, "squeue", "echo 'Socket timed out on send/recv operation' >&2; exit 1")
    assert "Socket timed out" in shell.fails(69, "resume", run.name)
    assert [each.number for each in run.submissions()] == [0]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--nodes", "3"], 78, "allowed ranks 1, 2, 4; asked 3 (3 nodes x 1 ranks_per_node)"),
        (["--global-batch", "9", "--nodes", "2"], 78, "global batch 9: allowed ranks 1, 3, 9; asked 2"),
        (["--nodes", "9"], 78, "allows at most"),
        (["--site", "nowhere"], 78, "unknown site 'nowhere'"),
        (["--queue", "nowhere"], 78, "has no such queue"),
        (["--walltime", "soon"], 78, "--walltime"),
        (["--", "python", "gone.py"], 78, "there is no 'gone.py'"),
        (["--"], 2, "there is no command after `--`"),
    ],
)
def test_what_cannot_run_is_refused_before_it_is_submitted(
    shell: Shell, run: RunDir, words: list[str], code: int, said: str
) -> None:
    Journal(run, "rank0", 0).append("stream", global_batch=4, lanes=4)
    assert said in shell.fails(code, "resume", run.name, *words)
    assert [each.number for each in run.submissions()] == [0]
    assert not any(event.event == "resume_asked" for event in read_journal(run))


@pytest.mark.parametrize("words", [["--run-root", "x"], ["--name", "x"], ["--steps", "9"]])
def test_an_option_that_is_not_resumes_gets_the_usage(shell: Shell, run: RunDir, words: list[str]) -> None:
    done = shell.run("resume", run.name, *words)
    assert done.returncode == 2
    assert "No such option" in done.stderr and "hpc-train resume RUN -- python train.py" in done.stderr


def test_modules_and_setup_lines_may_be_others_or_none(shell: Shell, run: RunDir) -> None:
    words = ["--modules", "cuda/13", "--modules", "nccl", "--setup", "export A=1"]
    assert "changed modules none -> cuda/13 nccl\n" in shell.run("resume", run.name, "--dry-run", *words).stderr
    shell.ok("resume", run.name, *words)
    newest = read_json(run.submission(1).job)
    assert (newest["env"]["modules"], newest["program"]["setup"]) == (["cuda/13", "nccl"], ["export A=1"])
    script = run.submission(1).script.read_text()
    assert "module load cuda/13 ||" in script and "\nexport A=1\n" in script
    shell.queue("4712|FAILED|n1|None")
    shell.ok("resume", run.name, "--modules", "", "--setup", "")
    newest = read_json(run.submission(2).job)
    assert (newest["env"]["modules"], newest["program"]["setup"]) == ([], [])
    assert "is not complete shell code" in shell.fails(78, "resume", run.name, "--setup", "if true", "--dry-run")


def test_requeue_of_a_completed_run_names_resume(shell: Shell, run: RunDir) -> None:
    assert f"to train it further: hpc-train resume {run.name} -- COMMAND" in shell.fails(78, "requeue", run.name)


def test_a_completed_run_that_is_resumed_as_it_was_warns_of_training_all_again(shell: Shell, run: RunDir) -> None:
    done = shell.run("resume", run.name)
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("hpc-train: warning: the run had completed, and nothing is changed: ")
    assert f"to train further: hpc-train resume {run.name} -- COMMAND" in line


def test_a_cancelled_run_goes_on_in_another_queue(shell: Shell, run: RunDir) -> None:
    shell.ok("cancel", run.name)  # it had completed: nothing to cancel
    run.cancelled.touch()
    queue = shell.ok("submit", "--site", "slurm-cluster", "--dry-run", "--", "python", "train.py")
    named = next(line.partition("=")[2] for line in queue.splitlines() if "--partition" in line)
    shell.ok("resume", run.name, "--queue", named, "--walltime", "5")
    assert not run.cancelled.exists()


def test_submit_says_with_how_many_ranks_a_declared_batch_can_go_on(shell: Shell) -> None:
    words = ["submit", "--site", "slurm-cluster", "--nodes", "2", "--global-batch", "12"]
    out = shell.ok(*words, "--", "python", "train.py")
    assert "ranks   2; global batch 12 can go on with 1, 2, 3, 4, 6, 12" in out.splitlines()
    line = shell.fails(78, *words[:4], "5", *words[5:], "--", "python", "train.py")
    assert "flag --global-batch: global batch 12: allowed ranks 1, 2, 3, 4, 6, 12; asked 5" in line


@pytest.mark.parametrize(("steps", "shown", "done"), [("20", "10/20", "50%"), ("8", "10/8", "100%")])
def test_status_has_the_new_total_at_once(shell: Shell, run: RunDir, steps: str, shown: str, done: str) -> None:
    journal = Journal(run, "rank0", 0)
    journal.append("progress", total_steps=10)
    journal.append("step", step=10)
    write_json(run.attempt(0).started, {"submission": 0})
    shell.ok("resume", run.name, "--", "python", "train.py", "--steps", steps)
    shell.queue("4712|PENDING||Priority")
    table = [line.split("\t") for line in shell.ok("status").splitlines()]
    row = dict(zip(*table, strict=True))
    assert (row["step"], row["done"]) == (shown, done)
    told = "10 of 20" if steps == "20" else "10, past the 8 asked for"
    assert f"step      {told};" in shell.ok("why", run.name)
    # what the program says itself counts
    write_json(make_attempt(run, 1).started, {"submission": 1})
    Journal(run, "rank0", 1).append("progress", total_steps=12)
    assert shell.json("status", run.name)[0]["total_steps"] == 12
