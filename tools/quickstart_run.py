"""The main job on real input: pack, submit, kill a rank, watch it go on, and say honestly what happened.

Called by tools/quickstart inside the environment that it made. Uses the public commands and the journal only.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from types import FrameType

from hpc_train.data import expected_digest, read_manifest
from hpc_train.launch.processes import find_ranks
from hpc_train.observe.lineage import Lineage, trace_lineage
from hpc_train.run.index import find_run
from hpc_train.run.journal import Event, read_journal
from hpc_train.run.layout import RunDir

SEQUENCE, GLOBAL_BATCH, SEED, SAVE_EVERY = 128, 32, 1, 20
HPC_TRAIN = (sys.executable, "-m", "hpc_train")
LIMIT_S = 900
MIN_STEPS_OF_FAULT = 3 * SAVE_EVERY  # two commits, a kill between them and the next, and steps to do again
STARTING = "the ranks are starting: they import PyTorch, meet over MPI and build the model; the first step comes next"
ENOUGH_STEPS = 60  # from which on the loss must be below that of single bytes


class Interrupted(Exception):
    """A signal that asks this program to end: Ctrl-C, or SIGTERM."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


def main() -> int:
    """Returns 0 if the model was trained and every claim of the summary holds."""
    options = parse_arguments()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    submitted: list[RunDir] = []
    try:
        return train(options, submitted)
    except Interrupted as stop:
        told = f"{stop}: interrupted; whether a run was submitted says: {_shown('status')}"
        for run in submitted:
            ways = f"see it with: {_shown('status', run.name)}; end it with: {_shown('cancel', run.name)}"
            told = f"{stop}: the watching ends, the run goes on; {ways}"
        print(told, file=sys.stderr)
        return stop.code


def interrupt(number: int, _frame: FrameType | None) -> None:
    """The signals' handler."""
    raise Interrupted(number)


def train(options: argparse.Namespace, submitted: list[RunDir]) -> int:
    """The four parts; the run is noted in `submitted` as soon as it is known. Raises: Interrupted."""
    where = Path(options.dir).resolve()
    data = where / "data"
    print(f"[1/4] data: the sources of Python {sys.version.split()[0]}'s own library, as bytes", flush=True)
    pack(data)
    print("[2/4] submit: 2 ranks of a byte-level GPT on this machine, as a job for the `local` site", flush=True)
    run = submit(where, data, options.steps)
    submitted.append(run)
    print(f"      run {run.name}\n      in  {run.path}", flush=True)
    print(f"[3/4] train: {'undisturbed' if options.no_fault else 'one rank will be killed on purpose'}", flush=True)
    watch(run, wants_fault=not options.no_fault)
    print("[4/4] what happened, from the run's own journal", flush=True)
    return summarise(run, data, options)


def parse_arguments() -> argparse.Namespace:
    """The command line of tools/quickstart."""
    parser = argparse.ArgumentParser(prog="tools/quickstart")
    parser.add_argument("--no-fault", action="store_true", help="leave the deliberate kill of a rank out")
    steps = f"steps to train (default: 120); {MIN_STEPS_OF_FAULT} or more, unless with --no-fault"
    parser.add_argument("--steps", type=int, default=120, metavar="N", help=steps)
    parser.add_argument("--dir", default="quickstart", help="where data and runs go (default: ./quickstart)")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error(f"--steps = {options.steps}: give 1 or more")
    if options.steps < MIN_STEPS_OF_FAULT and not options.no_fault:
        why = "so that there is something to resume after the kill, or add --no-fault"
        parser.error(f"--steps = {options.steps}: give {MIN_STEPS_OF_FAULT} or more, {why}")
    return options


def pack(data: Path) -> None:
    """Pack the standard library once."""
    if (data / "manifest.json").exists():
        print(f"      packed already: {data}", flush=True)
        return
    library = sysconfig.get_path("stdlib")
    argv = [*HPC_TRAIN, "data", "pack", str(data), library, "--sequence", str(SEQUENCE), "--glob", "*.py"]
    subprocess.run(argv, check=True, timeout=LIMIT_S)


def submit(where: Path, data: Path, steps: int) -> RunDir:
    """`hpc-train submit`, as a user would type it."""
    job = where / "job.toml"
    job.write_text(
        f"""# The job that tools/quickstart runs. Try: hpc-train submit {job} --dry-run
[job]
name = "quickstart"
site = "local"
ranks_per_node = 2
run_root = {json.dumps(str(where / "runs"))}

[program]
command = ["python", "-m", "hpc_train.examples.byte_gpt", "--data", {json.dumps(str(data))}, "--steps", "{steps}",
           "--global-batch", "{GLOBAL_BATCH}", "--seed", "{SEED}", "--save-every", "{SAVE_EVERY}"]
rendezvous = "none"   # hpc_train.init() makes the ranks meet over MPI

[data]
path = [{json.dumps(str(data))}]

[recovery]
backoff = "1s"
hang_timeout = "5m"
"""
    )
    job.chmod(0o600)
    argv = [*HPC_TRAIN, "submit", str(job)]
    done = subprocess.run(argv, check=False, timeout=60, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}")
    return find_run(str(where / "runs" / done.stdout.split()[1]), os.environ)


def watch(run: RunDir, *, wants_fault: bool) -> None:
    """Print steps as they come; kill rank 1 between two commits, once; end when the run has ended."""
    shown, killed, last_word = 0, False, time.monotonic()
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        events = read_journal(run)
        steps = [event for event in events if event.event == "step"]
        for event in steps[shown:]:
            step = event.fields["step"]
            if step == 1 or step % 10 == 0:
                print(f"      step {step:4d}  loss {event.fields['loss']:.4f}  (attempt {event.attempt})", flush=True)
                last_word = time.monotonic()
        shown = len(steps)
        if time.monotonic() - last_word > 10:
            print(f"      {len(steps)} steps so far" if steps else f"      {STARTING}", flush=True)
            last_word = time.monotonic()
        if wants_fault and not killed:
            killed = kill_between_commits(run, events)
        if (decision := _final_word(events)) is not None:
            print(f"      the run has ended: {decision}", flush=True)
            return
        time.sleep(0.2)
    sys.exit(f"the run did not end within {LIMIT_S} s; see: hpc-train logs {run.path}")


def _final_word(events: list[Event]) -> str | None:
    decisions = [event for event in events if event.event == "decision"]
    word = decisions[-1].fields["word"] if decisions else "again"
    started = sum(event.event == "attempt_started" for event in events)
    return word if word not in ("again", "again-elsewhere") and len(decisions) == started else None


def kill_between_commits(run: RunDir, events: list[Event]) -> bool:
    """SIGKILL the program of rank 1 a few steps after a commit; True once it is done."""
    commits = [event.fields["step"] for event in events if event.event == "commit"]
    steps = [event.fields["step"] for event in events if event.event == "step"]
    if not commits or commits[-1] < 2 * SAVE_EVERY or not 5 <= steps[-1] - commits[-1] < SAVE_EVERY - 3:
        return False
    for found in find_ranks(run.path):
        if found.rank == 1:
            os.kill(found.program, signal.SIGKILL)
            print(f"      >>> rank 1 (process {found.program}) killed with SIGKILL after step {steps[-1]}", flush=True)
            return True
    return False


def summarise(run: RunDir, data: Path, options: argparse.Namespace) -> int:
    """The summary; every figure is computed from the journal, the manifest and the seed."""
    events = read_journal(run)
    lineage = trace_lineage(events)
    manifest = read_manifest(data)
    entropy = float(manifest.statistics["byte_entropy_nats"])
    wrong = check_batches(lineage, data)
    num_attempts = sum(event.event == "attempt_started" for event in events)
    first, last = lineage.steps[0].loss or 0.0, lineage.steps[-1].loss or 0.0
    lost, doubled = len(lineage.missing) * GLOBAL_BATCH, len(lineage.doubled) * GLOBAL_BATCH
    resumed = [f"step {step}" for step in lineage.resumed.values() if step]
    is_short = options.steps < ENOUGH_STEPS
    wanted = "too few steps to ask for less" if is_short else "the model must end below it"
    print(f"""
  loss          {first:.4f} at step 1, {last:.4f} at step {lineage.steps[-1].step} (nats per byte)
  baseline      {entropy:.4f}: entropy of single bytes of these data; {wanted}
  attempts      {num_attempts}{"; resumed from " + ", ".join(resumed) if resumed else ""}
  recomputed    {lineage.num_recomputed} steps, lost with the killed attempt and done again
  samples       {lost} lost, {doubled} repeated, {len(wrong)} of {len(lineage.steps)} global batches other than planned
                (digest of each batch's sample ids in the journal, against manifest and seed)
  run           {run.path}
  data          {data}

  try next
    {_shown("why", run.name)}
    {_shown("checkpoint", "verify", str(run.path))}
    {_shown("submit", str(run.path.parent.parent / "job.toml"), "--dry-run")}
""")
    is_resumed = options.no_fault or (num_attempts == 2 and bool(resumed) and lineage.num_recomputed > 0)
    is_whole = not (lost or doubled or wrong) and lineage.steps[-1].step == options.steps
    if is_resumed and is_whole and (is_short or last < entropy):
        return 0
    print("  NOT as promised: see the figures above", file=sys.stderr)
    return 1


def check_batches(lineage: Lineage, data: Path) -> list[int]:
    """Steps whose journalled digest is not that of the planned global batch."""
    manifest = read_manifest(data)
    per_epoch = manifest.num_samples // GLOBAL_BATCH
    wrong = []
    for record in lineage.steps:
        epoch, step = divmod(record.step - 1, per_epoch)
        planned = expected_digest(manifest, global_batch=GLOBAL_BATCH, seed=SEED, epoch=epoch, step=step)
        if record.digest != planned:
            wrong.append(record.step)
    return wrong


def _shown(*words: str) -> str:
    program = shutil.which("hpc-train") or str(Path(sys.executable).with_name("hpc-train"))
    here = os.path.relpath(program)
    return " ".join([here if not here.startswith("..") else program, *words])


if __name__ == "__main__":
    sys.exit(main())
