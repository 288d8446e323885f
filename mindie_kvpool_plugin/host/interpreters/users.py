"""As whom the service runs: what one user can read and find, another cannot."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class UserError(Exception):
    """A user who does not exist, or whom only root can ask as; ``args[0]`` is a text's key, ``args[1]`` the name."""


@dataclass(frozen=True, slots=True)
class User:
    """Attributes: ``name``; ``uid``, ``gid`` and ``groups``, all ids; ``home``, as the password file says."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str

    @property
    def is_us(self) -> bool:
        """Whether this process runs as that user."""
        return self.uid == os.getuid()

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """``env`` as a service of that user has it: the user site lies below ``HOME``."""
        return dict(env) if self.is_us else {**env, "HOME": self.home, "USER": self.name, "LOGNAME": self.name}

    def process_options(self) -> dict[str, Any]:
        """Arguments of ``subprocess.Popen`` for a child that runs as that user."""
        return {} if self.is_us else {"user": self.uid, "group": self.gid, "extra_groups": self.groups}

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Files are found and opened with that user's rights; of the whole process, so keep it short."""
        if self.is_us:
            yield
            return
        groups, gid = os.getgroups(), os.getegid()
        os.setgroups(self.groups)
        os.setegid(self.gid)
        os.seteuid(self.uid)
        try:
            yield
        finally:
            os.seteuid(os.getuid())
            os.setegid(gid)
            os.setgroups(groups)


def current() -> User:
    """The user of this process."""
    return _user(os.getuid())


def named(name: str) -> User:
    """A user by name or number.

    Raises:
        UserError: nobody is called that, or this process may not act as them.
    """
    try:
        user = _user(int(name)) if name.isdecimal() else _of(pwd.getpwnam(name))
    except KeyError:
        raise UserError("status.user.unknown", name) from None
    if not user.is_us and os.getuid() != 0:
        raise UserError("status.user.needs_root", name)
    return user


def owner(path: Path) -> User:
    """Who owns a file, if this process may act as them; else the user of this process."""
    uid = path.stat().st_uid
    return _user(uid) if os.getuid() == 0 else current()


def _user(uid: int) -> User:
    """Containers run ids that the password file does not know."""
    try:
        return _of(pwd.getpwuid(uid))
    except KeyError:
        gid = os.getgid() if uid == os.getuid() else uid
        return User(str(uid), uid, gid, (gid,), "/")


def _of(entry: pwd.struct_passwd) -> User:
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return User(entry.pw_name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir)


def may(user: User, status: os.stat_result, bit: int) -> bool:
    """Whether the mode grants a user one of r (4), w (2), x (1); root may everything."""
    shift = 6 if status.st_uid == user.uid else 3 if status.st_gid in {user.gid, *user.groups} else 0
    return user.uid == 0 or bool(status.st_mode >> shift & bit)
