"""The names that create_strategy takes; apart, so that flags can list them without importing TensorFlow."""

STRATEGY_NAMES = (
    "auto",
    "one_device",
    "mirrored",
    "multi_worker_mirrored",
    "parameter_server",
    "central_storage",
    "tpu",
)
