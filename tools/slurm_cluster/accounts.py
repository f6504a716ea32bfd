"""The unprivileged user whose jobs run here: on the machine, in the accounting, and for `run`."""

import os
import pwd
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from slurm_cluster.config_files import CLUSTER_NAME
from slurm_cluster.daemons import slurm_command
from slurm_cluster.errors import EXIT_NOT_PERMITTED, ClusterError
from slurm_cluster.layout import USER, Cluster, Layout
from slurm_cluster.processes import SYSTEM_PATH, checked_command

ACCOUNT = "hpctrain"
# They tell of the session that calls `run`, not of the user; and no job may be taken for a part of an outer one.
SESSION_VARIABLES = ("XDG_", "SUDO_", "DBUS_", "SSH_", "SLURM_", "PMIX_", "PMI_", "MAIL", "OLDPWD")
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127


def create_user(layout: Layout) -> pwd.struct_passwd:
    """The system user, created if missing and never removed, with the shared directory and home of this cluster."""
    try:
        user = pwd.getpwnam(USER)
    except KeyError:
        options = ["--system", "--user-group", "--shell", "/bin/bash", "--home-dir", str(layout.home)]
        checked_command(["useradd", *options, "--no-create-home", USER])
        user = pwd.getpwnam(USER)
    for directory, mode in ((layout.shared, 0o755), (layout.home, 0o700)):
        directory.mkdir(exist_ok=True)
        directory.chmod(mode)
        os.chown(directory, user.pw_uid, user.pw_gid)
    return user


def grant_account(cluster: Cluster) -> None:
    """Let the user submit: cluster, account and user in the accounting. Repeating it changes nothing."""
    for request in (("cluster", CLUSTER_NAME), ("account", ACCOUNT), ("user", USER, f"account={ACCOUNT}")):
        # sacctmgr says 1 also for what is there already: the question below decides.
        slurm_command(cluster, "sacctmgr", "--immediate", "add", *request)
    where = [f"user={USER}", f"account={ACCOUNT}", f"cluster={CLUSTER_NAME}"]
    question = ["--noheader", "--parsable2", "show", "associations", *where, "format=account"]
    answer = slurm_command(cluster, "sacctmgr", *question)
    if answer.stdout.split() != [ACCOUNT]:
        raise ClusterError(f"slurmdbd did not take user {USER} into account {ACCOUNT}: {answer.stderr.strip()}")


def environment(layout: Layout) -> dict[str, str]:
    """What a user of this cluster needs in the environment."""
    return {
        "SLURM_CONF": str(layout.slurm_conf),
        "SLURM_CLUSTER_DIR": str(layout.root),
        "SLURM_CLUSTER_USER": USER,
        "SLURM_CLUSTER_SHARED": str(layout.shared),
    }


def user_environment(layout: Layout, inherited: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment as the user shall have it: own home and name, nothing of the caller's session.

    To be called as the user: folders of PATH that this user cannot enter (root's own) are left out.
    """
    kept = {name: value for name, value in inherited.items() if not name.startswith(SESSION_VARIABLES)}
    path = [folder for folder in inherited.get("PATH", SYSTEM_PATH).split(":") if os.access(folder, os.X_OK)]
    own = {"HOME": str(layout.home), "USER": USER, "LOGNAME": USER, "SHELL": "/bin/bash"}
    return {**kept, **own, "PATH": ":".join(path), "PWD": str(Path.cwd()), **environment(layout)}


def become_and_execute(layout: Layout, argv: Sequence[str]) -> NoReturn:
    """Replace this process by the command, run as the user; ClusterError when it cannot be executed."""
    user = pwd.getpwnam(USER)
    directory = Path.cwd()
    if os.geteuid() == 0:
        os.initgroups(USER, user.pw_gid)
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
    elif os.geteuid() != user.pw_uid:
        raise ClusterError(
            f"'run' becomes user {USER}, so it needs root; run it with sudo", exit_code=EXIT_NOT_PERMITTED
        )
    try:
        os.chdir(directory)
    except PermissionError:
        os.chdir(layout.shared)
    try:
        os.execvpe(argv[0], list(argv), user_environment(layout, os.environ))
    except OSError as error:
        code = EXIT_NOT_FOUND if isinstance(error, FileNotFoundError) else EXIT_NOT_EXECUTABLE
        raise ClusterError(f"cannot run {argv[0]!r} as user {USER}: {error.strerror}", exit_code=code) from error
