"""What who typed a command gets to read: one line for what they or their machine got wrong, a traceback for a bug."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable

from zerokl.errors import CallerError, NoRoom

OF_THE_MACHINE = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EISDIR, errno.ENOTDIR),
}


def in_one_line(command: Callable[[], int | None]) -> int:
    """The command's exit status; 2 for what isn't a bug, after a line on standard error."""
    try:
        return command() or 0
    except (CallerError, NoRoom) as error:
        said = str(error)
    except OSError as error:
        if error.errno not in OF_THE_MACHINE:
            raise
        said = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    sys.stderr.write(f"Error: {said}\n")
    return 2
