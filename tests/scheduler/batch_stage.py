"""A rendered batch script under real bash, with small programs in place of srun, scontrol, squeue and the interpreter.

Apart from the tests because two files of them play on it.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from hpc_train.run.layout import RunDir
from hpc_train.scheduler.script import render_script
from tests.scheduler.making import bare_environment, load, plan_of, recorded

ROOT = Path(__file__).parents[2]
# begin makes the attempt as the real one does; what it and the others answer stands in files beside it. Their answers
# go to descriptor 3; 4 is the interpreter's own standard output.
INTERPRETER = """
here=${0%/*}
[[ "${*: -2}" != "--answer-fd 3" ]] || { exec 4>&1 1>&3; set -- "${@:1:$#-2}"; }
[ "$1" != -u ] || shift
[ "$1 $2" = "-m hpc_train" ] || exit 99
case $3 in
  begin) : >"$here/begun"; [ -e "$4/cancelled" ] || mkdir -p "$4/attempt-000/ready"; . "$here/begin" ;;
  decide) . "$here/decide" ;;
  run) . "$here/rank" ;;
  succeed) echo "succeed ${*: -1}" >>"$here/calls"; . "$here/succeed" ;;
esac
"""
# A rank that takes the warning and leaves as one does that has saved.
SAVES = """
trap 'echo warned >>"$here/calls"; exit 75' USR2
trap 'echo ended >>"$here/calls"; exit 143' TERM
touch "$4/attempt-000/ready/0"
for ((i = 0; i < 200; i++)); do sleep 0.05; done
"""


@dataclass
class Stage:
    """A rendered script with everything that it calls, and what was called."""

    run: RunDir
    bin: Path
    script: Path
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def calls(self) -> list[str]:
        """What the stand-ins noted, in order, without the log path and the run's own, and without mere questions."""
        noted = (line.replace(str(self.run.path), "RUN") for line in recorded(self.bin / "calls"))
        return [line for line in noted if "--Format=" not in line]

    def render(self, program: str = "", *, walltime: str = "10", continuation: str = "requeue") -> None:
        """Write the script of a job whose [program] says this besides its command."""
        text = f'[job]\nwalltime = "{walltime}"\n[program]\ncommand = ["true"]\n{program}\n'
        site = f'extends = "slurm"\ncontinuation = "{continuation}"\n'
        loaded = load(self.run.path.parent / "job", text, site=site)
        self.script.write_text(render_script(plan_of(loaded, self.run, python=str(self.bin / "python"))))

    def hurry(self) -> None:
        """Let the script ask Slurm again after less than its 3 s."""
        text = self.script.read_text()
        assert "\n    sleep 3\n" in text
        self.script.write_text(text.replace("\n    sleep 3\n", "\n    sleep 0.05\n"))

    def answers(
        self,
        *,
        begin: str = "echo go 0 t0k3n",
        decide: str = "echo done 0 -",
        rank: str = "exit 0",
        succeed: str = "echo 78",
    ) -> None:
        """What begin, decide, succeed and the ranks do, as lines of bash."""
        for name, text in {"begin": begin, "decide": decide, "rank": rank, "succeed": succeed}.items():
            (self.bin / name).write_text(f"{text}\n")

    def start(self, **variables: str) -> subprocess.Popen[str]:
        """Start the script as Slurm does: a session of its own."""
        environment = {**bare_environment(self.bin, SLURM_JOB_ID="77", SLURM_JOB_NUM_NODES="2"), **variables}
        process = subprocess.Popen(
            ["bash", str(self.script)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.running.append(process)
        return process

    def finish(self, process: subprocess.Popen[str] | None = None) -> tuple[int, str]:
        """Exit code and the script's own words."""
        process = process or self.start()
        out, said = process.communicate(timeout=90)
        assert out == ""
        return process.returncode, said
