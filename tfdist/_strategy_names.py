"""Names of the strategies that create_strategy builds, kept apart so that flags list them without TensorFlow."""

STRATEGY_NAMES = (
    "auto",
    "one_device",
    "mirrored",
    "multi_worker_mirrored",
    "parameter_server",
    "central_storage",
    "tpu",
)
