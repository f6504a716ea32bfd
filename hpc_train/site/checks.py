"""What a site file may say beyond types: times, names, templates, and keys that must fit together.

Apart from the loader so that the rules can be read in one place, and hold for site.json as for a file. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from hpc_train.errors import SiteError, SpecError
from hpc_train.quantities import parse_duration, parse_walltime, shown
from hpc_train.site.directives import check_directive
from hpc_train.site.spec import Queue, Site

__all__ = ["MAX_LEAD_S", "TEMPLATE_NAMES", "check_site", "check_site_value"]

MAX_LEAD_S = 65_535  # sbatch --signal takes no more
TEMPLATE_NAMES = ("rank", "local_rank", "node_rank")  # what the launcher shim fills in

_TEMPLATE = re.compile(r"\{([A-Za-z_]\w*)\}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INTERFACE = re.compile(r"[A-Za-z0-9._:*?-]{1,32}")


def check_site_value(dotted: str, value: Any, where: str) -> None:
    """Refuse a value of the right type that the key cannot have.

    Args:  dotted: "defaults.walltime"; variables as "env.set.NAME".   where: file and key as the error shows them.
    Raises: SiteError.
    """
    if dotted.startswith("env.set."):
        _check_template(value, where)
    elif dotted in _CHECKS and value is not None:
        try:
            _CHECKS[dotted](value, where)
        except SpecError as cause:  # a quantity: the text is the site's, not the user's
            raise SiteError(f"{where}: {cause}") from cause


def check_site(site: Site, where: str) -> None:
    """Refuse keys that contradict each other.

    Raises: SiteError.
    """
    names = [queue.name for queue in site.queues]
    if len(set(names)) != len(names):
        raise SiteError(f"{where}: queues: a name appears twice; give each queue one entry")
    if sum(queue.default for queue in site.queues) > 1:
        raise SiteError(f"{where}: queues: more than one is marked default; mark one")
    if names and site.defaults.queue not in (None, *names):
        raise SiteError(
            f"{where}: [defaults].queue = {shown(site.defaults.queue)} is not among the queues: {', '.join(names)}"
        )
    if site.resources.gpu_request == "gres_typed" and not site.resources.gpu_type:
        raise SiteError(f"{where}: [resources].gpu_request = 'gres_typed' needs [resources].gpu_type")
    if (site.launch.launcher == "mpirun") != (site.launch.mpi == "mpirun"):
        raise SiteError(
            f"{where}: [launch].launcher = {site.launch.launcher!r} does not go with mpi = {site.launch.mpi!r}; "
            "mpirun goes with mpi = 'mpirun', srun with pmix, pmi2, cray_shasta or none"
        )
    if site.scheduler.kind == "local" and site.launch.launcher != "mpirun":
        raise SiteError(f"{where}: [scheduler].kind = 'local' needs [launch].launcher = 'mpirun': there is no srun")


def _check_template(value: str, where: str) -> None:
    for name in _TEMPLATE.findall(value):
        if name not in TEMPLATE_NAMES:
            allowed = ", ".join(f"{{{known}}}" for known in TEMPLATE_NAMES)
            raise SiteError(f"{where} = {shown(value)}: {{{name}}} is not known; allowed: {allowed}")


def _check_queues(queues: tuple[Queue, ...], where: str) -> None:
    for number, queue in enumerate(queues, 1):
        _not_empty(queue.name, f"{where} entry {number}: name")
        times = {"max_walltime": (parse_walltime, queue.max_walltime)}
        times["preempt_grace"] = (parse_duration, queue.preempt_grace)
        for key, (parse, value) in times.items():
            try:
                _ = value is None or parse(value)
            except SpecError as cause:
                raise SiteError(f"{where} entry {number} ({queue.name}): {key}: {cause}") from cause


def _check_lead(value: str, where: str) -> None:
    if not 1 <= parse_duration(value) <= MAX_LEAD_S:
        raise SiteError(f"{where} = {shown(value)}: 1 to {MAX_LEAD_S} seconds are allowed")


def _not_empty(value: str, where: str) -> None:
    if not value.strip():
        raise SiteError(f"{where} is empty; leave the key out, or give it a value")


def _each(check: Callable[[str, str], None]) -> Callable[[tuple[str, ...], str], None]:
    def check_all(values: tuple[str, ...], where: str) -> None:
        for value in values:
            check(value, where)

    return check_all


def _matches(pattern: re.Pattern[str], what: str) -> Callable[[str, str], None]:
    def check(value: str, where: str) -> None:
        if not pattern.fullmatch(value):
            raise SiteError(f"{where} = {shown(value)}: {what}")

    return check


_CHECKS: dict[str, Callable[[Any, str], object]] = {
    "defaults.queue": _not_empty,
    "defaults.run_root": _not_empty,
    "defaults.walltime": lambda value, where: parse_walltime(value),
    "signal.lead": _check_lead,
    "queues": _check_queues,
    "resources.gpu_type": _matches(re.compile(r"[A-Za-z0-9._-]+"), "letters, digits, '.', '_' and '-' are allowed"),
    "rendezvous.interfaces": _each(_matches(_INTERFACE, "an interface name or glob is allowed: hsn0, ib*")),
    "env.unset": _each(_matches(_VARIABLE, "a variable's name is allowed")),
    "env.modules": _each(_matches(re.compile(r"[^-\s]\S*"), "a module's name is allowed, without blanks")),
    "always_directives": _each(lambda value, where: check_directive(value, where, SiteError)),
}
