"""Which variables an option leaves out: regular expressions over the paths of variables."""

from __future__ import annotations

import re
from collections.abc import Sequence


def check_patterns(patterns: Sequence[str] | None, option: str) -> tuple[str, ...] | None:
    """Returns the patterns as a tuple; None stays None.

    Raises:
        ValueError: for a bare string, which would be taken letter by letter, and for what is no regular expression.

    Example:
        >>> from tfdist.optimizers.exclusions import check_patterns
        >>> check_patterns(["bias$"], "exclude_from_weight_decay")
        ('bias$',)
    """
    if patterns is None:
        return None
    if isinstance(patterns, str) or not all(isinstance(pattern, str) for pattern in patterns):
        raise ValueError(
            f"expected {option} to be a list of regular expressions, received {patterns!r}; "
            f"{'write [' + repr(patterns) + ']' if isinstance(patterns, str) else 'give strings'}."
        )
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"expected {option} to hold regular expressions, received {pattern!r} ({error}); mend it."
            ) from error
    return tuple(patterns)


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
