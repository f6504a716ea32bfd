"""One rank under the real shim, without MPI: what the program sees, and what is left when it has ended."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc_train.files import write_json
from hpc_train.run.layout import AttemptDir
from tests.launch.attempts import (
    ALONE,
    PYTHON,
    await_death,
    is_alive,
    make_run,
    run_attempt,
    run_command,
    run_one,
    send,
    write_program,
)
from tests.support.ranks import mpi_environment

pytestmark = pytest.mark.mpi


def test_a_clean_end_is_done_once_everything_has_ended(tmp_path: Path) -> None:
    ended = run_one(
        tmp_path,
        """
        import atexit, threading, time
        atexit.register(print, "hook ran")
        threading.Thread(target=lambda: (time.sleep(0.3), print("thread ran"))).start()
        """,
    )
    assert (ended.code, ended.word, ended.attempt.done.exists()) == (0, "done", True)
    assert ended.log.splitlines() == ["thread ran", "hook ran"]


def test_sys_exit_of_main_is_a_clean_end_for_none_and_zero(tmp_path: Path) -> None:
    for number, value in enumerate(("None", "0", "False")):
        ended = run_one(tmp_path, f"import sys\ndef main(): return {value}\nsys.exit(main())", name=f"run{number}")
        assert ended.word == "done"


def test_a_text_given_to_sys_exit_is_the_cause(tmp_path: Path) -> None:
    ended = run_one(tmp_path, "import sys; sys.exit('no learning rate given')")
    assert ended.decision.reason.startswith("the program left with sys.exit(1): no learning rate given")
    assert "no learning rate given" in ended.log


@pytest.mark.parametrize("end", ["sys.exit(3)", "raise KeyError('x')"])
def test_a_bad_end_is_written_down_before_the_program_is_gone(tmp_path: Path, end: str) -> None:
    # Slurm's PMIx ends the step, monitors too, as soon as it sees that an MPI process has gone without MPI_Finalize.
    look = "atexit.register(lambda: print('mark:', os.path.exists(mark), flush=True))"
    mark = "mark = os.environ['HPC_TRAIN_RUN_DIR'] + '/attempt-000/exit/rank-0.json'"
    ended = run_one(tmp_path, f"import atexit, os, sys\n{mark}\n{look}\n{end}")
    assert "mark: True" in ended.log
    assert ended.log.count("hpc-train: rank 0 on ") == 1
    assert ended.decision.failure == "program"


def test_a_bad_end_says_nothing_of_torchs_old_names(tmp_path: Path) -> None:
    # To flush the files, every object is looked at; torch.distributed.reduce_op warns when it is asked for its class.
    ended = run_one(tmp_path, "import torch.distributed\nraise KeyError('x')")
    assert "KeyError" in ended.log and "FutureWarning" not in ended.log


def test_what_was_written_before_a_bad_end_is_in_the_files(tmp_path: Path) -> None:
    ended = run_one(
        tmp_path,
        """
        import atexit, hpc_train
        table = open("table.csv", "w")
        table.write("1,2,3\\n")
        atexit.register(lambda: open("hook", "w").write("ran"))
        raise hpc_train.Stopped("saved at step 7")
        """,
    )
    work = ended.run.path / "work"
    assert (ended.word, ended.decision.failure, ended.code) == ("again", "stopped", 75)
    assert (work / "table.csv").read_text() == "1,2,3\n"
    assert (work / "hook").read_text() == "ran"
    assert "Traceback" not in ended.log


def test_an_exit_hook_that_hangs_after_a_failure_is_cut_short(tmp_path: Path) -> None:
    ended = run_one(tmp_path, "import atexit, time\natexit.register(time.sleep, 1000)\nraise ValueError('first')")
    assert ended.seconds < 30
    assert ended.decision.reason.startswith("ValueError: first")


def test_an_exit_hook_that_hangs_after_the_end_is_cut_short_and_the_run_is_done(tmp_path: Path) -> None:
    text = "import atexit, time\natexit.register(time.sleep, 1000)"
    ended = run_one(tmp_path, text, hang_timeout_s=1)
    assert (ended.word, ended.seconds < 30) == ("done", True)


def test_a_crash_in_clean_up_after_the_end_loses_nothing(tmp_path: Path) -> None:
    text = "import atexit, os, signal\natexit.register(lambda: os.kill(os.getpid(), signal.SIGSEGV))"
    assert run_one(tmp_path, text).word == "done"


def test_a_very_long_and_wild_exception_text_becomes_one_short_line(tmp_path: Path) -> None:
    ended = run_one(tmp_path, r"raise RuntimeError('\x1b[2J' + 'ü\n' * 3_000_000 + '\udce4')")
    (mark,) = ended.marks
    assert mark.cause.startswith("RuntimeError: ?[2Jü ü ü")
    assert len(mark.cause) < 2500
    assert "\n" not in mark.cause


def test_an_exception_that_cannot_be_described_still_ends_the_program(tmp_path: Path) -> None:
    ended = run_one(
        tmp_path,
        """
        class Bad(Exception):
            def __str__(self):
                raise SystemExit(0)
        raise Bad
        """,
    )
    assert (ended.word, ended.code) == ("stop", 1)


def test_output_that_is_no_utf8_reaches_the_log_unchanged(tmp_path: Path) -> None:
    ended = run_one(tmp_path, r"import sys; sys.stdout.buffer.write(b'\xff\xfe\n'); raise ValueError('end')")
    assert next(ended.attempt.logs.iterdir()).read_bytes().startswith(b"\xff\xfe\n")


def test_a_program_may_close_its_output_and_change_its_directory(tmp_path: Path) -> None:
    ended = run_one(
        tmp_path, "import os, sys\nos.chdir('/')\nsys.stdout.close()\nsys.stderr.close()\nsys.stdout = None"
    )
    assert ended.word == "done"


def test_standard_input_is_at_its_end(tmp_path: Path) -> None:
    assert "[]" in run_one(tmp_path, "import sys; print(sys.stdin.readlines())").log


def test_the_users_own_excepthook_is_heard(tmp_path: Path) -> None:
    text = "import sys\nsys.excepthook = lambda kind, error, trace: print('mine:', error)\nraise ValueError('x')"
    assert "mine: x" in run_one(tmp_path, text).log


def test_a_traceback_shows_the_program_alone(tmp_path: Path) -> None:
    ended = run_one(tmp_path, "def f():\n    raise ValueError('x')\nf()")
    assert ended.log.count('File "') == 2
    assert "hpc_train" not in ended.log.split("hpc-train: rank")[0]


def test_the_program_is_main_as_in_plain_python(tmp_path: Path) -> None:
    text = """
    import json, sys
    main = sys.modules["__main__"]
    print(json.dumps([__name__, __file__, main.__file__, str(__spec__), sys.argv, sys.path[0], sys.orig_argv[1:],
                      main.__dict__ is globals(), __builtins__.__name__, type(__loader__).__name__]))
    """
    program = write_program(tmp_path / "plain.py", text)
    plain = subprocess.run([PYTHON, str(program), "a", "b"], capture_output=True, text=True, timeout=60)
    ended = run_command(tmp_path, ["python", "-u", str(program), "a", "b"])
    assert json.loads(ended.log) == json.loads(plain.stdout)


def test_a_module_and_a_code_text_are_main_too(tmp_path: Path) -> None:
    text = "import sys, pickle\nclass A: pass\npickle.loads(pickle.dumps(A()))\nprint(__name__, sys.argv)"
    by_code = run_command(tmp_path, ["python", "-c", text, "x"], name="code")
    by_module = run_command(tmp_path, ["python", "-m", "this"], name="module")
    assert by_code.log == "__main__ ['-c', 'x']\n"
    assert by_module.log.startswith("The Zen of Python")


def test_a_missing_script_is_a_wrong_job_file(tmp_path: Path) -> None:
    ended = run_command(tmp_path, ["python", "train.py"])
    assert (ended.word, ended.decision.failure, ended.code) == ("stop", "config", 78)
    assert "there is no train.py in" in ended.decision.reason


@pytest.mark.parametrize(
    ("program", "changes"),
    [
        ("no-such-program", {}),
        ("true", {"workdir": "/no/such/directory"}),
    ],
)
def test_what_cannot_be_started_is_a_wrong_job_file(tmp_path: Path, program: str, changes: dict[str, Any]) -> None:
    ended = run_command(tmp_path, [program], **changes)
    assert (ended.word, ended.decision.failure, ended.code) == ("stop", "config", 78)
    assert ended.decision.reason.startswith("the program could not be started: FileNotFoundError")
    assert f": {changes.get('workdir', program)!r}" in ended.decision.reason  # what is missing is named


def test_a_rank_alone_where_more_were_declared_stops_at_once_and_says_why(tmp_path: Path) -> None:
    ended = run_command(tmp_path, ["python", "-c", "pass"], launcher="mpirun", num_ranks=4, ranks_per_node=4)
    (mark,) = ended.marks
    assert (ended.code, mark.failure, ended.word) == (78, "launch", "stop")
    assert "alone" in mark.cause
    assert "the submission declared 4 ranks; start it with the mpirun of the MPI" in mark.cause
    assert ended.seconds < 20


def test_a_launch_record_that_cannot_be_read_is_told_by_the_rank(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ["true"])
    (run.submission(0).launch).write_text("{")
    attempt = run.attempt(0)
    attempt.path.mkdir()
    argv = [PYTHON, "-m", "hpc_train", "run", str(run.path), "--submission", "0", "--attempt", "0"]
    done = subprocess.run(argv, env=mpi_environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 74
    assert "this rank could not start" in json.loads((attempt.exits / "rank-0.json").read_text())["cause"]


def test_any_program_runs_with_the_contract_and_keeps_its_code(tmp_path: Path) -> None:
    script = write_program(tmp_path / "x.sh", "#!/bin/bash\necho $RANK/$WORLD_SIZE $HPC_TRAIN_ATTEMPT\nexit 5\n")
    ended = run_command(tmp_path, ["bash", str(script)])
    assert ended.log.startswith("0/1 0\n")
    assert (ended.code, ended.decision.failure, ended.decision.reason[:27]) == (
        5,
        "program",
        "the program left with code ",
    )


def test_a_shells_code_for_a_killed_child_is_that_death(tmp_path: Path) -> None:
    ended = run_command(tmp_path, ["bash", "-c", "bash -c 'kill -KILL $$'"])
    assert (ended.code, ended.decision.failure) == (137, "killed")


def test_pipes_end_as_in_a_shell(tmp_path: Path) -> None:
    ended = run_command(tmp_path, ["bash", "-c", "yes | head -n 1; echo ${PIPESTATUS[0]}"])
    assert ended.log == "y\n141\n"


def test_python_with_other_options_is_the_recorded_interpreter(tmp_path: Path) -> None:
    ended = run_command(tmp_path, ["python", "-O", "-c", "import sys; print(sys.executable)"])
    assert ended.log == f"{sys.executable}\n"


LEFTOVERS = """
import os, subprocess, sys, time
same = subprocess.Popen(["sleep", "300"])
other = subprocess.Popen(["setsid", "sleep", "300"])
time.sleep(0.3)
open("pids", "w").write(f"{same.pid} {other.pid}")
"""


@pytest.mark.parametrize("end", ["", "import signal; os.kill(os.getpid(), signal.SIGKILL)", "os._exit(0)"])
def test_nothing_lives_on_after_the_program_whatever_its_end(tmp_path: Path, end: str) -> None:
    ended = run_one(tmp_path, LEFTOVERS + end)
    pids = (ended.run.path / "work" / "pids").read_text().split()
    assert [pid for pid in map(int, pids) if is_alive(pid)] == []


def test_the_program_dies_with_its_monitor(tmp_path: Path) -> None:
    pids: list[int] = []

    def kill(pid: int, attempt: AttemptDir) -> None:
        send(signal.SIGKILL, after="up")(pid, attempt)
        pids.append(int((attempt.path.parent / "work" / "up").read_text()))

    text = "import os, time; open('.up', 'w').write(str(os.getpid())); os.rename('.up', 'up'); time.sleep(60)"
    run_attempt(make_run(tmp_path / "run", ["python", "-c", text], **ALONE), launcher=[], meanwhile=kill)
    await_death(pids[0])


def test_a_program_that_goes_to_the_background_is_not_done(tmp_path: Path) -> None:
    ended = run_one(
        tmp_path,
        """
        import os, time
        if os.fork():
            os._exit(0)
        os.setsid()
        if os.fork():
            os._exit(0)
        time.sleep(60)
        """,
    )
    assert (ended.decision.failure, ended.word) == ("config", "stop")
    assert "run it in the foreground" in ended.decision.reason


def test_a_forked_child_that_exits_is_not_the_end_of_the_program(tmp_path: Path) -> None:
    ended = run_one(
        tmp_path,
        """
        import os, sys
        for code in (0, 3):
            child = os.fork()
            if child == 0:
                sys.exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code
        raise ValueError("the parent's own end")
        """,
    )
    assert ended.decision.reason.startswith("ValueError: the parent's own end")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_works_by_every_method(tmp_path: Path, method: str) -> None:
    ended = run_one(
        tmp_path,
        f"""
        import multiprocessing, os, sys
        import hpc_train.launch.page as page
        def square(x):
            return x * x, os.getpid(), "hpc_train.launch.main" in sys.modules
        class Item:
            def __init__(self, x): self.x = x
        def open_item(item): return item.x
        if __name__ == "__main__":
            with multiprocessing.get_context({method!r}).Pool(2) as pool:
                found = pool.map(square, range(4), chunksize=1)
                print([y for y, *_ in found], os.getpid() in [pid for _, pid, _ in found],
                      any(shim for *_, shim in found) if {method!r} != "fork" else False)
                print(pool.map(open_item, [Item(7)]))
        """,
    )
    assert ended.lines == ["[0, 1, 4, 9] False False", "[7]"], ended.log
    assert ended.word == "done"


def test_faulthandler_shows_the_stack_and_the_crash_keeps_its_class(tmp_path: Path) -> None:
    text = "import faulthandler, os, signal\nfaulthandler.enable()\nos.kill(os.getpid(), signal.SIGSEGV)"
    ended = run_one(tmp_path, text)
    assert "Fatal Python error: Segmentation fault" in ended.log
    assert (ended.decision.failure, ended.code) == ("crash", 139)


def test_an_exit_mark_that_cannot_be_written_does_not_lose_the_class(tmp_path: Path) -> None:
    text = """
    import os, sys, time
    while not os.path.exists("occupied"):
        time.sleep(0.02)
    sys.exit(73)
    """
    run = make_run(tmp_path / "run", ["python", str(write_program(tmp_path / "program.py", text))], **ALONE)

    def occupy(pid: int, attempt: AttemptDir) -> None:
        (attempt.exits / "rank-0.json").mkdir(parents=True)  # a rename cannot replace a directory
        (run.path / "work" / "occupied").touch()

    ended = run_attempt(run, launcher=[], meanwhile=occupy)
    assert (ended.code, ended.decision.failure, ended.word) == (73, "no_space", "hold")


def test_the_sites_templates_set_a_ranks_environment(tmp_path: Path) -> None:
    templates = {"CUDA_VISIBLE_DEVICES": "{local_rank}", "NAME": "r{rank}-n{node_rank}-{other}"}
    ended = run_command(
        tmp_path, ["bash", "-c", "echo $CUDA_VISIBLE_DEVICES $NAME $OMP_NUM_THREADS"], environment=templates
    )
    assert ended.log == "0 r0-n0-{other} 1\n"


def test_attempts_go_on_after_a_failure_with_the_next_number(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ["python", "-c", "import os; os.kill(os.getpid(), 11)"], **ALONE)
    first, second = (run_attempt(run, launcher=[]) for _ in range(2))
    assert (first.word, second.word) == ("again", "stop")
    assert "the same end as before" in second.decision.reason
    write_json(run.path / "unrelated.json", {})
    assert [attempt.number for attempt in run.attempts()] == [0, 1]


def test_an_end_inside_the_start_of_mpi_is_not_the_programs_own(tmp_path: Path) -> None:
    # As Open MPI leaves when the launcher or a node goes away meanwhile: code 14, and no Python code runs any more.
    stand_in = tmp_path / "mpi4py"
    stand_in.mkdir()
    (stand_in / "__init__.py").write_text("class rc:\n    initialize, finalize = True, None\n")
    (stand_in / "MPI.py").write_text("import os; os._exit(14)")
    text = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport hpc_train; hpc_train.init()"
    ended = run_one(tmp_path, text, mpi="mpirun")
    assert (ended.decision.failure, ended.word) == ("peer_lost", "again")
