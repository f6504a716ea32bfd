"""Options of a request and the command after `--`, for submit and resume alike, and what both say of it.

Apart so that whatever can be asked at first can be asked anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from hpc_train.quantities import format_duration, parse_walltime

if TYPE_CHECKING:
    from hpc_train.job.spec import JobSection
    from hpc_train.scheduler.script import Plan

__all__ = [
    "OPTIONS",
    "RequestCommand",
    "describe_request",
    "echo_script",
    "echo_warnings",
    "given",
    "program_of",
    "with_options",
]

OPTIONS: list[tuple[str, str, Any, str]] = [
    ("--name", "job.name", str, "Name of the run."),
    ("--site", "job.site", str, "Site file by name; `hpc-train site list` shows them."),
    ("--queue", "job.queue", str, "Queue (Slurm partition)."),
    ("--account", "job.account", str, "Project that pays."),
    ("--qos", "job.qos", str, "Quality of service."),
    ("--walltime", "job.walltime", str, "Time limit of one attempt: minutes, H:M:S or D-H."),
    ("--nodes", "job.nodes", int, "Nodes."),
    ("--ranks-per-node", "job.ranks_per_node", int, "Ranks on each node."),
    ("--gpus-per-rank", "job.gpus_per_rank", int, "GPUs for each rank."),
    ("--cpus-per-rank", "job.cpus_per_rank", int, "Cores for each rank."),
    ("--memory", "job.memory", str, "Memory of each node, e.g. 480G."),
    ("--exclude", "job.exclude", str, "Nodes not to use."),
    ("--run-root", "job.run_root", str, "Directory in which the run directory is made."),
    ("--venv", "env.venv", str, "Virtual environment of the program."),
    (
        "--modules",
        "env.modules",
        list,
        "Module to load, in place of the job file's; may be given several times; '': none.",
    ),
    ("--setup", "program.setup", list, "Shell line before the ranks; as --modules."),
    ("--rendezvous", "program.rendezvous", str, "torch: serve env:// programs; none: the program needs none."),
    ("--global-batch", "data.global_batch", int, "Samples of a global batch: other numbers of ranks are refused."),
    ("--stop-lead", "recovery.stop_lead", str, "How long before the time limit to ask the program to stop."),
    ("--hang-timeout", "recovery.hang_timeout", str, "A step that takes longer is ended as hung."),
    ("--backoff", "recovery.backoff", str, "Wait before the next attempt after a failure."),
    ("--max-failures", "recovery.max_failures", int, "Failures in a row without a new checkpoint."),
]
_PROGRAM = "hpc_train.program"
_OF_SBATCH = {
    "--partition": "--queue", "-p": "--queue", "--time": "--walltime", "-t": "--walltime", "-N": "--nodes",
    "-A": "--account", "--ntasks-per-node": "--ranks-per-node",
}  # fmt: skip


class RequestCommand(click.Command):
    """Takes the words after `--` away before click sees them: they are the program's, options and all."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, without the program's words."""
        if "--" in args:
            at = args.index("--")
            args, ctx.meta[_PROGRAM] = args[:at], args[at + 1 :]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if (ours := _OF_SBATCH.get(error.option_name)) and any(ours in known.opts for known in self.params):
                raise click.UsageError(f"No such option: {error.option_name}. Here it is {ours}.", ctx) from error
            if _PROGRAM in ctx.meta:
                raise
            # most likely the program's own: `submit python train.py --data DIR`
            run = " RUN" if any(parameter.name == "reference" for parameter in self.params) else ""
            raise click.UsageError(
                f"{error.format_message()} If it is for your program: a command goes after `--`: "
                f"{ctx.command_path}{run} -- python train.py",
                ctx,
            ) from error


def program_of(ctx: click.Context) -> list[str] | None:
    """The words after `--`, None where there is no `--`."""
    program: list[str] | None = ctx.meta.get(_PROGRAM)
    return program


def given(options: Mapping[str, Any], program: list[str] | None) -> dict[str, Any]:
    """What was given, under the dotted keys of a job file."""
    flags = {name.replace("__", "."): value for name, value in options.items() if value not in (None, ())}
    flags = {
        key: [word for word in value if word] if isinstance(value, tuple) else value for key, value in flags.items()
    }
    return {**flags, "program.command": tuple(program)} if program else flags


def with_options(*, without: tuple[str, ...] = ()) -> Callable[[Any], Any]:
    """A decorator that gives a command these options, all but those in `without`."""

    def decorate(function: Any) -> Any:
        for flag, dotted, kind, text in reversed(OPTIONS):
            if flag not in without:
                name, is_list = dotted.replace(".", "__"), kind is list
                option = click.option(
                    flag, name, type=str if is_list else kind, multiple=is_list, default=None, help=text
                )
                function = option(function)
        return function

    return decorate


def describe_request(job: JobSection) -> str:
    """Size, time and queue as they were read: 2:00 is two minutes, and who meant hours finds out before the queue."""
    ranks = job.nodes * job.ranks_per_node
    counts = {"node": job.nodes, "rank": ranks, "GPU": ranks * job.gpus_per_rank}
    parts = [f"{count} {what}{'' if count == 1 else 's'}" for what, count in counts.items() if count]
    limit = None if job.walltime is None else parse_walltime(job.walltime)
    untimed = "no wall time given" if job.walltime is None else "no limit of time"
    parts.append(untimed if limit is None else f"a wall time of {format_duration(limit)}")
    if job.queue is not None:
        parts.append(f"queue {job.queue}")
    return ", ".join(parts)


def echo_script(plan: Plan) -> None:
    """A dry run: the script alone on standard output, and on standard error what a submission would warn of."""
    from hpc_train.scheduler.remarks import remarks_on
    from hpc_train.scheduler.script import render_script

    click.echo(render_script(plan).encode(), nl=False)  # bytes: the script is UTF-8 whatever the terminal is
    echo_warnings(remarks_on(plan, os.environ))  # after it, where they are not scrolled away


def echo_warnings(warnings: Sequence[str]) -> None:
    """On standard error, a line each."""
    for warning in warnings:
        click.echo(f"hpc-train: warning: {warning}", err=True)
