"""Which variables an option leaves out: regular expressions over the paths of variables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def check_patterns(patterns: Iterable[str] | None, option: str) -> tuple[str, ...] | None:
    """Returns the patterns as a tuple; None stays None.

    Raises:
        ValueError: for a bare string, which would be taken letter by letter, for an empty one in the list, and for what
            is no regular expression.

    Example:
        >>> from tfdist.optimizers.exclusions import check_patterns
        >>> check_patterns(["bias$"], "exclude_from_weight_decay")
        ('bias$',)
    """
    if patterns is None:
        return None
    # An iterator is gone through once.
    given = patterns if isinstance(patterns, str) or not isinstance(patterns, Iterable) else tuple(patterns)
    if not isinstance(given, tuple) or not all(isinstance(pattern, str) for pattern in given):
        raise ValueError(
            f"expected {option} to be a list of regular expressions, received {given!r}; "
            f"{'write [' + repr(patterns) + ']' if isinstance(patterns, str) else 'give strings'}."
        )
    for pattern in given:
        if not pattern:
            raise ValueError(
                f"expected {option} to hold regular expressions, received '', which is found in every path; "
                "leave it out, or write '.*'."
            )
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"expected {option} to hold regular expressions, received {pattern!r} ({error}); mend it."
            ) from error
    return given


def excluded(patterns: Sequence[str], paths: Sequence[str], option: str) -> frozenset[int]:
    """Returns the numbers of the paths in which any of the patterns is found.

    Args:
        patterns: regular expressions, searched for anywhere in a path.
        paths: of all variables, such as "sequential/dense/bias".
        option: what the patterns were given as, for the error.

    Raises:
        ValueError: for a pattern that is found in no path: it would be a rule that does nothing.

    Example:
        >>> from tfdist.optimizers.exclusions import excluded
        >>> sorted(excluded(["bias$", "norm"], ["dense/kernel", "dense/bias", "norm/gamma"], "exclude"))
        [1, 2]
    """
    if not paths:
        # As some readers of files build an optimizer before its model.
        return frozenset()
    found: set[int] = set()
    for pattern in patterns:
        matched = {i for i, path in enumerate(paths) if re.search(pattern, path)}
        if not matched:
            some = ", ".join(repr(path) for path in paths[:3])
            raise ValueError(
                f"expected {pattern!r} of {option} to be found in the path of a variable, received {len(paths)} paths "
                f"without it, such as {some}; mend the pattern, or leave it out."
            )
        found |= matched
    return frozenset(found)
