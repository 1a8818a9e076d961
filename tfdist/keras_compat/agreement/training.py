"""Training: what one worker is about to do, as plain values that the workers compare."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from typing import Any

from tfdist.keras_compat.agreement.differences import equal, sentence, texts_of_difference, told_apart


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """The training that a worker is about to begin. A field that is None is not known, and is not compared.

    Attributes:
        call: the call, such as "calls fit".
        variables: name, shape, dtype and "trainable" or "" of each variable of the model.
        layers: class and configuration of each layer, if the model has no variables yet.
        optimizers: class and configuration of each optimizer, by attribute of the model.
        compiled: the other arguments of `compile`, and the losses that the model has as attributes.
        numbers: the arguments of the call, the global batch size, the seed and the like, by name.
        data: path, kind, dtype and shape without the first axis of each tensor of a batch.
        callbacks: the callbacks of Keras that change the training, by class.
        versions: versions of Python, TensorFlow, Keras and tfdist.

    Example:
        >>> from tfdist.keras_compat.agreement.training import Training
        >>> Training(call="calls fit", numbers={"epochs": 3}).numbers
        {'epochs': 3}
    """

    call: str
    variables: Sequence[Any] | None = None
    layers: Sequence[Any] | None = None
    optimizers: dict[str, Any] = dataclasses.field(default_factory=dict)
    compiled: dict[str, Any] = dataclasses.field(default_factory=dict)
    numbers: dict[str, Any] = dataclasses.field(default_factory=dict)
    data: Sequence[Any] | None = None
    callbacks: dict[str, Any] | None = None
    versions: dict[str, str] = dataclasses.field(default_factory=dict)

    def to_json(self) -> str:
        """Returns the training as JSON text."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Training:
        """Returns the training that `to_json` has written."""
        return cls(**json.loads(text))


def disagreement(workers: Sequence[str], trainings: Sequence[Training]) -> str:
    """Returns the message that names the differences between trainings, or an empty text if they agree.

    Args:
        workers: names of the workers.
        trainings: the training of each worker.

    Example:
        >>> from tfdist.keras_compat.agreement.training import Training, disagreement
        >>> trainings = [Training(call="calls fit", numbers={"epochs": epochs}) for epochs in (1, 2)]
        >>> disagreement(["worker 0", "worker 1"], trainings)
        'expected the same training on all workers, received: worker 1 has epochs=2, worker 0 has epochs=1.'
    """
    calls = [training.call for training in trainings]
    if not equal(calls):
        return sentence([told_apart(workers, calls)])
    predicates = [
        *_of_versions([training.versions for training in trainings]),
        *_of_variables([training.variables for training in trainings]),
        *_of_lists("layer", [training.layers for training in trainings]),
        *_of_optimizers([training.optimizers for training in trainings]),
        *_of_dicts([training.compiled for training in trainings]),
        *_of_dicts([training.numbers for training in trainings]),
        *_of_data([training.data for training in trainings]),
        *_of_callbacks([training.callbacks for training in trainings]),
    ]
    items = [told_apart(workers, [f"has {text}" for text in texts]) for texts in predicates]
    return sentence(items) if items else ""


def other_python_patches(workers: Sequence[str], trainings: Sequence[Training]) -> str:
    """Returns which worker has which patch version of Python, or an empty text if all have the same.

    Args:
        workers: names of the workers.
        trainings: the training of each worker.
    """
    found = [training.versions.get("Python", "") for training in trainings]
    return "" if equal(found) else told_apart(workers, [f"has Python {version}" for version in found])


def _of_versions(found: Sequence[dict[str, str]]) -> list[list[str]]:
    items = []
    for name in found[0]:
        versions = [one.get(name) for one in found]
        # The bytecode and the standard library differ between minor versions of Python, but not between patches.
        compared = [str(version).rpartition(".")[0] for version in versions] if name == "Python" else versions
        if not equal(compared):
            items.append([f"{name} {version}" for version in versions])
    return items


def _of_variables(found: Sequence[Any]) -> list[list[str]]:
    if None in found:
        return []
    if not equal([len(variables) for variables in found]):
        return [[f"{len(variables)} variable{'s' * (len(variables) != 1)} in the model" for variables in found]]
    items = []
    for entries in zip(*found, strict=True):
        if not equal([[without_numbers(entry[0]), *entry[1:]] for entry in entries]):
            items.append([f"the variable {' '.join(filter(None, entry))}" for entry in entries])
    return items


def _of_lists(name: str, found: Sequence[Any]) -> list[list[str]]:
    if None in found or equal(found):
        return []
    if not equal([len(values) for values in found]):
        return [[f"{len(values)} {name}{'s' * (len(values) != 1)} in the model" for values in found]]
    return [
        [f"the {name} {text}" for text in texts_of_difference(values)]
        for values in zip(*found, strict=True)
        if not equal(values)
    ]


def _of_optimizers(found: Sequence[dict[str, Any]]) -> list[list[str]]:
    items = []
    for name in dict.fromkeys(name for one in found for name in one):
        optimizers = [one.get(name) for one in found]
        if not equal(optimizers):
            texts = texts_of_difference(optimizers)
            # The optimizer of `compile` needs no name.
            items.append(texts if name == "optimizer" else [f"{name}={text}" for text in texts])
    return items


def _of_dicts(found: Sequence[dict[str, Any]]) -> list[list[str]]:
    items = []
    for name in dict.fromkeys(name for one in found for name in one):
        values = [one.get(name) for one in found]
        if not equal(values) and all(name in one for one in found):
            items.append([f"{name}={text}" for text in texts_of_difference(values)])
    return items


def _of_data(found: Sequence[Any]) -> list[list[str]]:
    if None in found or equal(found):
        return []
    if not equal([[entry[:2] for entry in entries] for entries in found]):
        return [[f"the data {_shown(entries)}" for entries in found]]
    return [
        [f"the data {_shown([entry])}" for entry in entries]
        for entries in zip(*found, strict=True)
        if not (equal([entry[2] for entry in entries]) and _compatible([entry[3] for entry in entries]))
    ]


def _of_callbacks(found: Sequence[Any]) -> list[list[str]]:
    if None in found:
        return []
    items = []
    for name in dict.fromkeys(name for one in found for name in one):
        callbacks = [one.get(name, []) for one in found]
        counts = [len(given) for given in callbacks]
        if not equal(counts):
            names = {0: f"no {name}", 1: name}
            items.append([names.get(count, f"{count} of {name}") for count in counts])
        elif not equal(callbacks):
            pairs = [values for values in zip(*callbacks, strict=True) if not equal(values)]
            items += [texts_of_difference(values) for values in pairs]
    return items


def _compatible(shapes: Sequence[Any]) -> bool:
    """Returns whether shapes may describe the same data. A shape or an axis that is None is not known."""
    known = [shape for shape in shapes if shape is not None]
    if len({len(shape) for shape in known}) > 1:
        return False
    return all(len({size for size in axis if size is not None}) < 2 for axis in zip(*known, strict=True))


def _shown(entries: Sequence[Any]) -> str:
    return ", ".join(
        f"{path or 'x'}: {kind} {dtype} {'of unknown rank' if shape is None else tuple_text(['batch', *shape])}"
        for path, kind, dtype, shape in entries
    )


def tuple_text(sizes: Sequence[Any]) -> str:
    """Returns a shape as text.

    Args:
        sizes: sizes of the axes.

    Example:
        >>> from tfdist.keras_compat.agreement.training import tuple_text
        >>> tuple_text([8, None])
        '(8, None)'
    """
    return f"({', '.join(map(str, sizes))}{',' * (len(sizes) == 1)})"


def without_numbers(name: str) -> str:
    """Returns a variable's name without the numbers that Keras appends, which count the layers of a process.

    Args:
        name: name or path of a variable.

    Example:
        >>> from tfdist.keras_compat.agreement.training import without_numbers
        >>> without_numbers("sequential_1/dense_12/kernel:0")
        'sequential/dense/kernel'
    """
    return re.sub(r"(_\d+)?(:\d+)?(?=/|$)", "", name)
