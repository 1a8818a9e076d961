"""Exclusions: regular expressions that are searched for in the paths of variables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def check_patterns(patterns: Iterable[str] | None, option: str) -> tuple[str, ...] | None:
    """Returns the patterns as a tuple; None stays None.

    Raises:
        ValueError: for a bare string, whose letters would be the patterns; for an empty string in the list; and for a
            string that is not a regular expression.

    Example:
        >>> from tfdist.optimizers.exclusions import check_patterns
        >>> check_patterns(["bias$"], "exclude_from_weight_decay")
        ('bias$',)
    """
    if patterns is None:
        return None
    # An iterator can be read only once.
    given = patterns if isinstance(patterns, str) or not isinstance(patterns, Iterable) else tuple(patterns)
    if not isinstance(given, tuple) or not all(isinstance(pattern, str) for pattern in given):
        received = list(given) if isinstance(given, tuple) else given
        raise ValueError(
            f"expected {option} to be a list of regular expressions, received {received!r}"
            f"{f'; write [{patterns!r}]' if isinstance(patterns, str) else ''}."
        )
    for pattern in given:
        if not pattern:
            raise ValueError(
                f"expected {option} to hold regular expressions, received '', which matches every path; "
                "leave it out, or write '.*'."
            )
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"expected {option} to hold regular expressions, received {pattern!r} ({error})."
            ) from error
    return given


def excluded(patterns: Sequence[str], paths: Sequence[str], option: str) -> frozenset[int]:
    """Returns the indices of the paths that match any of the patterns.

    Args:
        patterns: regular expressions, searched for anywhere in a path.
        paths: paths of all variables, such as "sequential/dense/bias".
        option: name of the option that holds the patterns, for the error.

    Raises:
        ValueError: for a pattern that no path matches, because it would have no effect.

    Example:
        >>> from tfdist.optimizers.exclusions import excluded
        >>> sorted(excluded(["bias$", "norm"], ["dense/kernel", "dense/bias", "norm/gamma"], "exclude"))
        [1, 2]
    """
    if not paths:
        # Keras builds the optimizer of some saved models before their variables exist.
        return frozenset()
    found: set[int] = set()
    for pattern in patterns:
        matched = {i for i, path in enumerate(paths) if re.search(pattern, path)}
        if not matched:
            some = ", ".join(repr(path) for path in paths[:3])
            raise ValueError(
                f"expected {pattern!r} of {option} to match the path of a variable, received {len(paths)} paths "
                f"that do not match, such as {some}; correct the pattern, or leave it out."
            )
        found |= matched
    return frozenset(found)
