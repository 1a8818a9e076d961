"""Runs a program on a host that is a network namespace: python on_host.py NAMESPACE HOSTNAME HOSTS PROGRAM [ARGS...].

The process enters the namespace, has its own host name, and finds the names of the other hosts in HOSTS, which lies
over /etc/hosts for this process alone. Unlike `ip netns exec`, this keeps a warm process warm.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import socket
import sys

_NEW_MOUNTS, _NEW_NAME, _NEW_NETWORK = 0x00020000, 0x04000000, 0x40000000
_BIND, _PRIVATE = 0x1000, 0x44000


def enter(namespace: str, hostname: str, hosts: str) -> None:
    """Enters a network namespace; needs root.

    Args:
        namespace: the name of the namespace.
        hostname: the name of the host.
        hosts: a file in the form of /etc/hosts.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments: object) -> None:
        if getattr(libc, name)(*arguments):
            error = ctypes.get_errno()
            raise OSError(error, f"{name}: {os.strerror(error)}")

    with open(f"/run/netns/{namespace}") as network:
        call("setns", network.fileno(), _NEW_NETWORK)
    call("unshare", _NEW_MOUNTS | _NEW_NAME)
    # Mounts of this process stay its own.
    call("mount", None, b"/", None, _PRIVATE, None)
    call("mount", hosts.encode(), b"/etc/hosts", None, _BIND, None)
    socket.sethostname(hostname)


if __name__ == "__main__":
    enter(*sys.argv[1:4])
    sys.argv = sys.argv[4:]
    runpy.run_path(sys.argv[0], run_name="__main__")
