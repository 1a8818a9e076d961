"""Fused update kernels of TensorFlow, which read memory once; separate operations read it several times.

The kernels update dense float32 and float64 variables, on CPU and GPU. They are not used in code that XLA compiles,
because XLA fuses operations itself.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

# TensorFlow's reserved name for an anonymous resource, which operations cannot refer to by a name.
_ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"


def can_fuse(variable: Any) -> bool:
    """Returns whether the fused kernels can update a variable, in the code that is being traced or executed."""
    return variable.dtype in (tf.float32, tf.float64) and hasattr(variable, "handle") and not under_xla()


def under_xla() -> bool:
    """Returns whether XLA will compile the code that is being traced: jit_compile=True, or the step of a TPU."""
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        context = graph._get_control_flow_context()
        while context is not None:
            if context.IsXLAContext():
                return True
            context = context.outer_context
        graph = getattr(graph, "outer_graph", None)
    return False


def adam_direction(
    value: tf.Tensor,
    first: Any,
    second: Any,
    gradient: tf.Tensor,
    *,
    beta_1: float,
    beta_2: float,
    scale: tf.Tensor,
    epsilon: tf.Tensor,
) -> tf.Tensor:
    """Updates both moments and returns value - scale * first / (sqrt(second) + epsilon).

    Args:
        value: tensor to start from; its buffer is reused for the result.
        first: variable that holds the first moment.
        second: variable that holds the second moment.
        gradient: dense gradient, of the shape and dtype of value.
        beta_1: decay of the first moment.
        beta_2: decay of the second moment.
        scale: scalar of the dtype of value.
        epsilon: scalar of the dtype of value.
    """
    dtype = value.dtype
    zero = tf.zeros([], dtype)
    # The kernel updates a variable, so that `value` is copied to a temporary variable, which is destroyed below.
    handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=value.shape, shared_name=_ANONYMOUS)
    with tf.control_dependencies(_op(tf.raw_ops.AssignVariableOp(resource=handle, value=value))):
        updated = tf.raw_ops.ResourceApplyAdam(
            var=handle,
            m=first.handle,
            v=second.handle,
            # `scale` includes the bias correction, which is computed in float64.
            beta1_power=zero,
            beta2_power=zero,
            lr=scale,
            beta1=tf.constant(beta_1, dtype),
            beta2=tf.constant(beta_2, dtype),
            epsilon=epsilon,
            grad=gradient,
        )
    with tf.control_dependencies(_op(updated)):
        result = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
    result.set_shape(value.shape)
    with tf.control_dependencies([result]):
        tf.raw_ops.DestroyResourceOp(resource=handle)
    return result


def add_scaled(variable: Any, scale: tf.Tensor, value: tf.Tensor) -> Any:
    """Adds scale * value to a variable in place and returns the operation, or None in eager execution."""
    return tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=-scale, delta=value)


def apply_momentum(
    variable: Any,
    velocity: Any,
    gradient: tf.Tensor,
    *,
    rate: tf.Tensor,
    momentum: float,
    nesterov: bool,
    rate_inside: bool,
) -> None:
    """Updates a variable and its velocity in place by one step of SGD with momentum.

    Args:
        variable: variable to update.
        velocity: variable that holds the velocity.
        gradient: dense gradient, of the shape and dtype of the variable.
        rate: learning rate, a scalar of the dtype of the variable.
        momentum: share of the velocity that is kept.
        nesterov: whether to use Nesterov's momentum.
        rate_inside: if True the velocity holds steps, v = momentum * v - rate * g, w = w + v; if False it holds
            gradients, v = momentum * v + g, w = w - rate * v.
    """
    kernel = tf.raw_ops.ResourceApplyKerasMomentum if rate_inside else tf.raw_ops.ResourceApplyMomentum
    kernel(
        var=variable.handle,
        accum=velocity.handle,
        lr=rate,
        grad=gradient,
        momentum=tf.constant(momentum, gradient.dtype),
        use_nesterov=nesterov,
    )


def _op(result: Any) -> list[Any]:
    return [] if result is None else [result]
