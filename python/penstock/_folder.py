"""Temporary folders that do not outlive a killed process for long."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import stat
import tempfile
import time

#: How names of folders begin; 8 characters follow.
NAME = f"penstock-{os.getuid()}-"
_UNLOCKED = 60  # seconds: a folder without a lock may be one that is being made


class Folder:
    """A temporary folder in ``base``, mode 0700, until :meth:`close`. As long as this process lives it holds the lock of its folder.

    What killed processes of this user left in ``base`` is removed first. A run's controller (trainer/folder.go) locks and removes folders in the same way: each removes what the other left.
    """

    def __init__(self, base: str) -> None:
        _sweep(base)
        while True:
            self.path = tempfile.mkdtemp(prefix=NAME, dir=base)
            try:
                fd = _lock(self.path)
            except BaseException:
                shutil.rmtree(self.path, ignore_errors=True)
                raise
            if fd is not None:
                self._fd = fd
                return

    def close(self, remove: bool = True) -> None:
        """Removes the folder, or (a fork's copy) only lets go of its lock. Idempotent."""
        if self._fd < 0:
            return
        if remove:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _lock(folder: str) -> int | None:
    """Makes and locks the lock file of a new folder. None where another process took the folder for one that was left, between the two."""
    path = os.path.join(folder, "lock")
    try:
        fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), os.stat(path)):
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def _sweep(base: str) -> None:
    """Removes what killed processes of this user left in ``base``. What cannot be removed is left to the next one."""
    for folder in glob.glob(os.path.join(glob.escape(base), NAME + "*")):
        with contextlib.suppress(OSError):
            is_ = os.lstat(folder)
            if not stat.S_ISDIR(is_.st_mode) or is_.st_uid != os.getuid():
                continue
            try:
                fd = os.open(os.path.join(folder, "lock"), os.O_RDWR)
            except FileNotFoundError:
                if time.time() - is_.st_mtime > _UNLOCKED:
                    shutil.rmtree(folder, ignore_errors=True)
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: its process lives
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(fd)
