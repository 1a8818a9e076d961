"""The strategies of tf.distribute that can be adopted, and their names in messages."""

from __future__ import annotations

import tensorflow as tf

KINDS: dict[str, str] = {
    "one_device": "OneDeviceStrategy",
    "mirrored": "MirroredStrategy",
    "multi_worker_mirrored": "MultiWorkerMirroredStrategy",
    "parameter_server": "ParameterServerStrategy",
    "central_storage": "experimental.CentralStorageStrategy",
    "tpu": "TPUStrategy",
}
"""The name of each strategy in create_strategy, and its public name in tf.distribute."""


def adopted_classes() -> list[tuple[str, type]]:
    """Returns the classes whose constructors are changed, each with its name in create_strategy."""
    classes = [(kind, _class_of(name)) for kind, name in KINDS.items()]
    # A class of its own. Of the other two names in experimental, MultiWorkerMirroredStrategy is a subclass, and
    # ParameterServerStrategy is another name for the same class.
    return [*classes, ("tpu", tf.distribute.experimental.TPUStrategy)]


def refused_classes() -> list[tuple[str, type]]:
    """Returns the classes of TensorFlow 1, which cannot be adopted, each with its public name."""
    v1 = tf.compat.v1.distribute
    names = sorted({name.rpartition(".")[2] for name in KINDS.values()})
    found = [
        (f"tf.compat.v1.distribute.{prefix}{name}", getattr(module, name))
        for prefix, module in (("", v1), ("experimental.", v1.experimental))
        for name in names
        if hasattr(module, name)
    ]
    return [(name, refused) for name, refused in found if not issubclass(refused, tf.distribute.Strategy)]


def public_name(strategy_class: type) -> str:
    """Returns the name of a strategy class in messages; of a subclass, its own name and that of tf.distribute.

    Args:
        strategy_class: a class of tf.distribute, or a subclass.

    Example:
        >>> import tensorflow as tf
        >>> public_name(tf.distribute.MultiWorkerMirroredStrategy)
        'MultiWorkerMirroredStrategy'
        >>> class Mine(tf.distribute.MirroredStrategy):
        ...     pass
        >>> public_name(Mine)
        'Mine (MirroredStrategy)'
    """
    for kind, base in adopted_classes():
        if issubclass(strategy_class, base):
            name = KINDS[kind].rpartition(".")[2]
            is_own = strategy_class is not base and not strategy_class.__module__.startswith("tensorflow.")
            return f"{strategy_class.__name__} ({name})" if is_own else name
    return strategy_class.__name__


def _class_of(name: str) -> type:
    found = tf.distribute
    for part in name.split("."):
        found = getattr(found, part)
    return found
