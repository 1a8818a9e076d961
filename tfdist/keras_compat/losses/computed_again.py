"""Computes a part of the graph of a step again, for other operands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

# A loss function has some hundred operations, a model many more.
_MOST_OPERATIONS = 2000


class TooManyOperations(Exception):
    """A tensor is computed from so many operations that it is not looked at."""


def in_order(
    last: Sequence[tf.Tensor], is_source: Callable[[tf.Tensor], bool], most: int = _MOST_OPERATIONS
) -> Iterator[tf.Operation]:
    """Yields the operations from which tensors are computed, each after its operands.

    Args:
        last: tensors of a graph.
        is_source: returns whether a tensor is not followed to what it is computed from.
        most: the number of operations from which on the tensors are not looked at.

    Raises:
        TooManyOperations: if there are more operations than that.
    """
    seen, waiting = set[int](), [(one.op, False) for one in last if not is_source(one)]
    while waiting:
        operation, is_ready = waiting.pop()
        if is_ready:
            yield operation
            continue
        if id(operation) in seen:
            continue
        seen.add(id(operation))
        if len(seen) > most:
            raise TooManyOperations
        waiting.append((operation, True))
        waiting.extend((one.op, False) for one in operation.inputs if not is_source(one))


def again(operation: tf.Operation, inputs: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    """Returns the results of an operation for other operands, known to tapes.

    Args:
        operation: operation of a graph.
        inputs: the operands, as many as it has.
    """
    from tensorflow.python.eager import execute
    from tensorflow.python.framework import op_def_library

    waiting, arguments, inferred = list(inputs), dict[str, Any](), set[str]()
    for argument in operation.op_def.input_arg:
        number = operation.get_attr(argument.number_attr) if argument.number_attr else None
        if argument.type_list_attr:
            number = len(operation.get_attr(argument.type_list_attr))
        count = 1 if number is None else number
        taken, waiting = waiting[:count], waiting[count:]
        arguments[argument.name] = taken[0] if number is None else taken
        inferred |= {argument.type_attr, argument.number_attr, argument.type_list_attr}
    names = [one.name for one in operation.op_def.attr]
    attributes = {name: operation.get_attr(name) for name in names}
    given = {name: value for name, value in attributes.items() if name not in inferred}
    _, _, new, _ = op_def_library._apply_op_helper(operation.type, **arguments, **given)
    if execute.must_record_gradient():
        flat = tuple(one for pair in attributes.items() for one in pair)
        execute.record_gradient(operation.type, new.inputs, flat, new.outputs)
    return new.outputs
