"""Checks whether the command can be executed, and raises errors with the exit codes that a shell uses."""

from __future__ import annotations

import errno
import os
import shutil

from tfdist.launch.spec import LaunchSpec

NOT_FOUND_CODE = 127
NOT_EXECUTABLE_CODE = 126


class CommandError(ValueError):
    """Raised when the command cannot be executed.

    Args:
        message: one sentence that names the program.
        exit_code: the exit code that a shell gives for this failure: 127 for a program that does not exist, 126 for a
            file that cannot be executed.

    Example:
        >>> from tfdist.launch import CommandError, LaunchSpec, launch
        >>> try:
        ...     launch(LaunchSpec(command=("no-such-program",)))
        ... except CommandError as error:
        ...     print(error.exit_code)
        127
    """

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def check_command(spec: LaunchSpec) -> None:
    """Raises CommandError if the command's program does not exist or cannot be executed."""
    path = spec.env.get("PATH", os.environ.get("PATH", os.defpath))
    if shutil.which(spec.argv[0], path=path):
        return
    exists = shutil.which(spec.argv[0], mode=os.F_OK, path=path)
    raise command_error(spec.argv[0], errno.EACCES if exists else errno.ENOENT)


def command_error(program: str, number: int | None) -> CommandError:
    """Returns the error for a program whose execution failed with the `errno` number."""
    if number in (errno.ENOENT, errno.ENOTDIR):
        return CommandError(
            f"expected a command that exists, received {program!r}; check its spelling and PATH.",
            exit_code=NOT_FOUND_CODE,
        )
    return CommandError(
        f"expected a command that can be executed, received {program!r}; run it with its interpreter, or make it "
        "executable with `chmod +x`.",
        exit_code=NOT_EXECUTABLE_CODE,
    )
