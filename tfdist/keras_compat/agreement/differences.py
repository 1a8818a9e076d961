"""Differences between the trainings of several workers, and the sentence that names them. Pure functions over values.

A value is plain: None, a number, a text, a list of values, or a dict of values. A dict with the key "class" describes
an object, such as an optimizer: its other keys are the arguments of the object.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

_MOST_DIFFERENCES = 5
_MOST_NAMES = 3
_LONGEST_VALUE = 80
_CLASS = "class"


def texts_of_difference(values: Sequence[Any]) -> list[str]:
    """Returns a text for each value, which shows only the parts in which the values differ.

    Args:
        values: plain values, one for each worker, which are not all equal.

    Example:
        >>> from tfdist.keras_compat.agreement.differences import texts_of_difference
        >>> texts_of_difference([{"class": "SGD", "nesterov": True, "momentum": m} for m in (0.9, 0.8)])
        ['SGD(momentum=0.9)', 'SGD(momentum=0.8)']
        >>> texts_of_difference([{"class": "Adam", "learning_rate": 0.1}, {"class": "SGD", "learning_rate": 0.1}])
        ['Adam', 'SGD']
    """
    if not all(isinstance(value, dict) for value in values):
        return _distinct([_shortened(_text(value)) for value in values], values)
    if len({value.get(_CLASS) for value in values}) > 1:
        return [_shortened(_text(value.get(_CLASS))) for value in values]
    names = [name for name in _union(values) if not equal([value.get(name) for value in values])]
    parts = {name: texts_of_difference([value.get(name) for value in values]) for name in names}
    arguments = [", ".join(f"{name}={parts[name][i]}" for name in names) for i in range(len(values))]
    return [
        f"{value[_CLASS]}({text})" if _CLASS in value else text for value, text in zip(values, arguments, strict=True)
    ]


def equal(values: Sequence[Any]) -> bool:
    """Returns whether all values are the same.

    Args:
        values: plain values.
    """
    return all(value == values[0] for value in values[1:])


def told_apart(workers: Sequence[str], texts: Sequence[str]) -> str:
    """Returns which worker has which text; the group of the first worker comes last.

    Args:
        workers: names of the workers.
        texts: a predicate for each worker, such as "has Adam(learning_rate=0.1)".

    Example:
        >>> from tfdist.keras_compat.agreement.differences import told_apart
        >>> told_apart(["worker 0", "worker 1", "worker 2"], ["has 1", "has 2", "has 1"])
        'worker 1 has 2, worker 0 and worker 2 have 1'
    """
    groups: dict[str, list[str]] = {}
    for worker, text in zip(workers, texts, strict=True):
        groups.setdefault(text, []).append(worker)
    return ", ".join(f"{_names(groups[text])} {_verb(text, groups[text])}" for text in [*list(groups)[:0:-1], texts[0]])


def _verb(text: str, workers: Sequence[str]) -> str:
    verb, _, rest = text.partition(" ")
    plural = {"has": "have", "calls": "call", "begins": "begin", "makes": "make"}
    return f"{plural.get(verb, verb) if len(workers) > 1 else verb} {rest}"


def sentence(items: Sequence[str]) -> str:
    """Returns the message about the differences between workers.

    Args:
        items: the differences; if there are many, the rest are only counted.

    Example:
        >>> from tfdist.keras_compat.agreement.differences import sentence
        >>> sentence(["worker 1 has 2 epochs, worker 0 has 1"])
        'expected the same training on all workers, received: worker 1 has 2 epochs, worker 0 has 1.'
    """
    shown = list(items[:_MOST_DIFFERENCES])
    if len(items) > len(shown):
        more = len(items) - len(shown)
        shown.append(f"and {more} more difference{'s' * (more > 1)}")
    return f"expected the same training on all workers, received: {'; '.join(shown)}."


def _union(values: Iterable[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for value in values for name in value if name != _CLASS))


def _names(workers: Sequence[str]) -> str:
    if len(workers) > _MOST_NAMES + 1:
        workers = [*workers[:_MOST_NAMES], f"{len(workers) - _MOST_NAMES} more"]
    return " and ".join([", ".join(workers[:-1]), workers[-1]] if len(workers) > 1 else workers)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        arguments = ", ".join(f"{name}={_text(inner)}" for name, inner in value.items() if name != _CLASS)
        return f"{value[_CLASS]}({arguments})" if _CLASS in value else f"{{{arguments}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, float):
        return f"{value:.7g}"
    return str(value)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


def _distinct(texts: list[str], values: Sequence[Any]) -> list[str]:
    """Returns the texts, or more exact ones if the same text stands for different values."""
    same_text = [
        (i, k)
        for i in range(len(texts))
        for k in range(i)
        if texts[i] == texts[k] and not equal([values[i], values[k]])
    ]
    if not same_text:
        return texts
    exact = [repr(value) for value in values]
    i, k = same_text[0]
    start = next((p for p, (a, b) in enumerate(zip(exact[i], exact[k], strict=False)) if a != b), 0)
    start = max(0, start - _LONGEST_VALUE // 2)
    return [_shortened(f"{'...' * (start > 0)}{text[start:]}") for text in exact]
