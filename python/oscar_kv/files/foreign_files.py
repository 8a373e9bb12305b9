"""The only way in which this package opens untrusted files. It accepts only regular files within a size limit, and
reads instead of mapping them. A pipe, a device or a shrinking file therefore gives an error. The C++ reader is
lib/base/files.cpp."""

import hashlib
import os
import pathlib
import stat

from .errors import InputError

CHUNK = 1 << 20
FileName = str | os.PathLike[str]


class RegularFile:
    """An open regular file of `size` bytes at the time of opening. InputError if there is none with this name."""

    def __init__(self, path: FileName) -> None:
        self._fd, self.path = -1, pathlib.Path(path)
        try:
            # O_NONBLOCK, because open() would wait for the writer of a pipe. It has no effect on regular files.
            self._fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            facts = os.fstat(self._fd)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be opened ({error.strerror})") from None
        except ValueError:  # a NUL, or half a surrogate pair
            raise InputError(f"{self.path}: is no name of a file") from None
        if not stat.S_ISREG(facts.st_mode):
            raise InputError(f"{self.path}: is not a regular file")
        self.size, self.identity = facts.st_size, (facts.st_dev, facts.st_ino)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self, begin: int, count: int) -> bytes:
        """`count` bytes starting at `begin`."""
        parts, at = [], begin
        try:
            while at < begin + count:
                part = os.pread(self._fd, min(begin + count - at, 1 << 30), at)
                if not part:
                    raise InputError(f"{self.path}: has become shorter while it was read; copy the file again")
                parts.append(part)
                at += len(part)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({error.strerror})") from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def sha256(self) -> str:
        digest = hashlib.sha256()
        for begin in range(0, self.size, CHUNK):
            digest.update(self.read(begin, min(CHUNK, self.size - begin)))
        return digest.hexdigest()


def read_file(path: FileName, most: int) -> bytes:
    """All bytes of a regular file. InputError if it has more than `most`."""
    file = RegularFile(path)
    if file.size > most:
        raise InputError(f"{file.path}: has {file.size} bytes, expected at most {most}")
    return file.read(0, file.size)


def is_present(path: FileName) -> bool:
    """Whether anything has this name, including a broken link, so that opening it reports the fault."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True
    return True


def is_folder(path: FileName) -> bool:
    """Whether a folder has this name. InputError if that cannot be seen."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except PermissionError as error:
        raise InputError(
            f"{path}: cannot be seen ({error.strerror}); change the permissions of its folder, or run as "
            "a user who may read it"
        ) from None
    except (OSError, ValueError):
        return False
