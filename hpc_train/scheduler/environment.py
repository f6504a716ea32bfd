"""What of the submitting shell's environment travels with a job. Pure.

Apart because it is a list with reasons: each name that is on it, or is not, cost somebody days.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["job_environment"]

# What a batch script may need of the login shell. Everything else passes by name only ([env] pass): an inherited
# SLURM_CPU_BIND or PMIX_RANK of the shell one submits from breaks the job in ways that take days to find. Not
# LOADEDMODULES: where it stays and the variables that the modules had set go, `module load` in the job does nothing.
_KEPT = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TERM", "TZ", "TMPDIR", "LD_LIBRARY_PATH",
    "MANPATH", "MODULEPATH", "MODULESHOME", "BASH_ENV", "SLURM_CONF", "HPC_TRAIN_SITES", "XDG_STATE_HOME",
    "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY",
    "NO_PROXY",
})  # fmt: skip
# `module` and `ml` are exported functions, which call the others.
_KEPT_PREFIXES = ("LC_", "LMOD_", "MODULES_", "BASH_FUNC_module", "BASH_FUNC__module_raw", "BASH_FUNC_ml")


def job_environment(environ: Mapping[str, str], pass_names: Sequence[str]) -> dict[str, str]:
    """The part of the submitting shell's environment that travels with a job: a base set, and what is named.

    Args:  pass_names: [env] pass of the job file; names that are not set are left out.
    """
    return {
        name: value
        for name, value in environ.items()
        if name in _KEPT or name.startswith(_KEPT_PREFIXES) or name in pass_names
    }
