"""Simulates several hosts on one machine: network namespaces, joined by veth pairs and a bridge, shaped by `tc tbf`.

It needs Linux, root and iproute2. Links are full duplex, as in a switched network: each direction has the given rate.

    with hosts(2, rate="1gbit") as machines:
        machines[0].popen([sys.executable, "-m", "tfdist.bench", ...])
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Small enough that bursts do not raise the measured bandwidth, and large enough for a 64 KiB segment at 1 Gbit/s.
BURST = "256kb"
LATENCY = "50ms"
_ETC = Path("/etc/netns")


@dataclasses.dataclass(frozen=True)
class Host:
    """A network namespace with one network interface.

    Attributes:
        namespace: name of the namespace.
        address: IP address of the interface.
        interface: name of the interface within the namespace.
    """

    namespace: str
    address: str
    interface: str = "eth0"

    def command(self, command: list[str]) -> list[str]:
        """Returns the command line that runs a command on this host."""
        return ["ip", "netns", "exec", self.namespace, *command]

    def popen(self, command: list[str], **options: Any) -> subprocess.Popen[str]:
        """Starts a command on this host."""
        return subprocess.Popen(self.command(command), text=True, **options)

    def bytes_sent(self) -> int:
        """Returns how many bytes the interface has sent since it was made, including headers."""
        path = f"/sys/class/net/{self.interface}/statistics/tx_bytes"
        return int(subprocess.run(self.command(["cat", path]), check=True, capture_output=True, text=True).stdout)


@contextlib.contextmanager
def hosts(count: int, *, rate: str | None) -> Iterator[list[Host]]:
    """Makes hosts for the body of a `with` statement; then kills the processes on them and removes the hosts.

    Args:
        count: number of hosts.
        rate: rate of each direction of each link in the notation of `tc`, such as "100mbit"; None for unshaped links.

    Raises:
        RuntimeError: without root or iproute2, and if a command fails.
    """
    if os.geteuid() or not shutil.which("ip") or not shutil.which("tc"):
        raise RuntimeError("expected root and the commands ip and tc; install iproute2 and run as root.")
    prefix = f"tfd{os.getpid() % 10000}"
    switch = f"{prefix}-sw"
    machines = [Host(f"{prefix}-{i}", f"10.77.0.{i + 1}") for i in range(count)]
    try:
        _run("ip", "netns", "add", switch)
        _in(switch, "ip", "link", "add", "br0", "type", "bridge")
        _in(switch, "ip", "link", "set", "br0", "up")
        for i, host in enumerate(machines):
            port = f"port{i}"
            _run("ip", "netns", "add", host.namespace)
            # `ip netns exec` uses this file as /etc/hosts, so that the machine's name resolves to the host's address.
            folder = _ETC / host.namespace
            folder.mkdir(parents=True)
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n{host.address} {socket.gethostname()}\n")
            _in(switch, "ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
            _in(switch, "ip", "link", "set", port, "master", "br0")
            _in(switch, "ip", "link", "set", port, "up")
            _in(host.namespace, "ip", "address", "add", f"{host.address}/24", "dev", "eth0")
            for name in ("lo", "eth0"):
                _in(host.namespace, "ip", "link", "set", name, "up")
            if rate:
                shape = ("root", "tbf", "rate", rate, "burst", BURST, "latency", LATENCY)
                _in(host.namespace, "tc", "qdisc", "add", "dev", "eth0", *shape)
                _in(switch, "tc", "qdisc", "add", "dev", port, *shape)
        yield machines
    finally:
        for name in (*(host.namespace for host in machines), switch):
            pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split()
            if pids:
                subprocess.run(["kill", "-KILL", *pids], capture_output=True)
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)
            shutil.rmtree(_ETC / name, ignore_errors=True)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"expected `{' '.join(command)}` to succeed, received: {done.stderr.strip()}")


def _in(namespace: str, *command: str) -> None:
    _run("ip", "netns", "exec", namespace, *command)
