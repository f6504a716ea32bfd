"""A job file holds commands: one that others can change, or put there, is refused with the remedy."""

from __future__ import annotations

import grp
import os
import pwd
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_train.errors import SpecError
from hpc_train.job.loader import load_job
from hpc_train.site.tables import refuse_untrusted

WriteJob = Callable[..., Path]


def has_own_group() -> bool:
    user = pwd.getpwuid(os.geteuid())
    is_shared = [each.pw_name for each in pwd.getpwall() if each.pw_gid == user.pw_gid] != [user.pw_name]
    return grp.getgrgid(user.pw_gid).gr_name == user.pw_name and not is_shared


needs_own_group = pytest.mark.skipif(not has_own_group(), reason="this user's first group is shared")


@pytest.mark.parametrize("mode", [0o666, 0o646, 0o622])
def test_a_job_file_that_others_can_write_is_refused_with_the_remedy(
    mode: int, environ: dict[str, str], write_job: WriteJob
) -> None:
    path = write_job("", mode)
    with pytest.raises(SpecError, match=f"chmod go-w {path}"):
        load_job(path, {}, environ)


def test_a_job_file_in_a_directory_open_to_all_is_refused(environ: dict[str, str], write_job: WriteJob) -> None:
    path = write_job("")
    place = path.parent
    before = place.stat().st_mode
    try:
        place.chmod(0o777)
        with pytest.raises(SpecError, match=f"everybody can replace this file.*chmod o-w {place}"):
            load_job(path, {}, environ)
        for mode in (0o1777, 0o2775, 0o775):  # /tmp; a project's directory: what others put there is theirs
            place.chmod(mode)
            assert load_job(path, {}, environ).spec.name == "train"
    finally:
        place.chmod(before)


def test_a_link_is_judged_by_where_it_leads_and_where_it_lies(
    environ: dict[str, str], write_job: WriteJob, tmp_path: Path
) -> None:
    path = write_job("")
    place = tmp_path / "links"
    place.mkdir()
    link = place / "job.toml"
    link.symlink_to(path)
    assert load_job(link, {}, environ).spec.name == "train"
    place.chmod(0o777)
    with pytest.raises(SpecError, match=f"chmod o-w {place}"):
        load_job(link, {}, environ)
    place.chmod(0o755)
    path.chmod(0o666)
    with pytest.raises(SpecError, match="chmod go-w"):
        load_job(link, {}, environ)
    if os.geteuid() == 0:  # only root can give a link away
        path.chmod(0o644)
        os.chown(link, 65534, 65534, follow_symlinks=False)
        with pytest.raises(SpecError, match="a link that belongs to user id 65534"):
            load_job(link, {}, environ)


def test_a_job_file_that_a_shared_group_can_write_is_refused(write_job: WriteJob) -> None:
    path = write_job("", 0o664)
    shared = [
        each.gr_gid for each in grp.getgrall() if each.gr_name not in (pwd.getpwuid(os.geteuid()).pw_name, "root")
    ]
    for gid in (*shared[:5], 2**31 - 9):  # the last one has no name
        fields = list(path.stat())
        fields[5] = gid
        with pytest.raises(SpecError, match=f"chmod go-w {path}"):
            refuse_untrusted(path, os.stat_result(fields), SpecError)


@needs_own_group
def test_a_job_file_that_only_the_users_own_group_can_write_is_read(
    environ: dict[str, str], write_job: WriteJob
) -> None:
    path = write_job("", 0o664)
    os.chown(path, -1, pwd.getpwuid(os.geteuid()).pw_gid)
    assert load_job(path, {}, environ).spec.name == "train"


@needs_own_group
def test_a_job_file_whose_access_list_lets_somebody_write_is_refused(
    environ: dict[str, str], write_job: WriteJob
) -> None:
    path = write_job("", 0o664)
    os.chown(path, -1, pwd.getpwuid(os.geteuid()).pw_gid)
    # version 2; user, user 65534 (may write), group, mask, others: tag, permissions, id
    entries = [(1, 6, 2**32 - 1), (2, 6, 65534), (4, 4, 2**32 - 1), (16, 6, 2**32 - 1), (32, 4, 2**32 - 1)]
    try:
        os.setxattr(
            path, "system.posix_acl_access", struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *e) for e in entries)
        )
    except OSError:
        pytest.skip("this file system has no access control lists")
    with pytest.raises(SpecError, match=f"chmod go-w {path}"):
        load_job(path, {}, environ)


def test_a_job_file_of_another_user_is_refused(environ: dict[str, str], write_job: WriteJob) -> None:
    path = write_job("")
    fields = list(path.stat())
    fields[4] = 65534  # st_uid, as a file of that user would have it
    with pytest.raises(SpecError, match="belongs to user id 65534"):
        refuse_untrusted(path, os.stat_result(fields), SpecError)
    if os.geteuid() == 0:  # only root can give a file away
        os.chown(path, 65534, 65534)
        with pytest.raises(SpecError, match="belongs to user id 65534"):
            load_job(path, {}, environ)
