"""Host lists in Slurm's notation, such as `rack[1-2]n[1-4],login`, in the order of `scontrol show hostnames`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

_LARGEST = 65536
_PART = re.compile(r"\[(?P<ranges>[^][]*)\]|(?P<literal>[^][,\s]+)")
_RANGE = re.compile(r"(?P<low>\d+)(?:-(?P<high>\d+))?")


def hosts_of(text: str) -> tuple[str, ...]:
    """Returns the hosts of a list.

    Brackets contain numbers and ranges, whose leading zeros are kept. With several brackets in a name, the last one
    changes first.

    Args:
        text: the list.

    Raises:
        ValueError: if the text is no list of hosts, or one of more than 65,536 hosts.

    Source:
        The man page of scontrol, `show hostnames`.

    Example:
        >>> hosts_of("n[8-11]")
        ('n8', 'n9', 'n10', 'n11')
        >>> hosts_of("rack[1-2]n[01,03-04]-ib,login")
        ('rack1n01-ib', 'rack1n03-ib', 'rack1n04-ib', 'rack2n01-ib', 'rack2n03-ib', 'rack2n04-ib', 'login')
    """
    hosts: list[str] = []
    for item in _items(text):
        for parts in itertools.product(*_choices(item, text)):
            hosts.append("".join(parts))
            if len(hosts) > _LARGEST:
                raise ValueError(f"expected at most {_LARGEST} hosts, received {text!r}.")
    return tuple(hosts)


def _items(text: str) -> list[str]:
    """Returns the parts between the commas that are not in brackets."""
    items = re.split(r",(?![^[]*\])", text.strip())
    if not all(items):
        raise ValueError(f"expected hosts between the commas, received {text!r}.")
    return items


def _choices(item: str, text: str) -> Iterator[list[str]]:
    """Yields the possible texts of each part of a name: one text, or the numbers in brackets."""
    end = 0
    for part in _PART.finditer(item):
        if part.start() != end:
            break
        end = part.end()
        yield [part["literal"]] if part["ranges"] is None else list(_numbers(part["ranges"], text))
    if end != len(item):
        raise ValueError(f"expected names such as n1 and n[1-3], received {text!r}.")


def _numbers(ranges: str, text: str) -> Iterator[str]:
    for one in ranges.split(","):
        found = _RANGE.fullmatch(one)
        low, high = (found["low"], found["high"] or found["low"]) if found else ("1", "0")
        if int(high) < int(low):
            raise ValueError(f"expected ranges such as [1-3] or [1,3], received {text!r}.")
        if int(high) - int(low) >= _LARGEST:
            raise ValueError(f"expected at most {_LARGEST} hosts, received {text!r}.")
        for number in range(int(low), int(high) + 1):
            yield str(number).zfill(len(low))
