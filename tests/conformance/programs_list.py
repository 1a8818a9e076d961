"""Which cases of programs/cases.py run where; apart, so that tests need not import TensorFlow."""

# Comparable after every step: the strategy makes one step after another.
SYNCHRONOUS = (
    "fit_dataset",
    "fit_steps",
    "fit_from_function",
    "fit_distributed_dataset",
    "fit_arrays",
    "fit_weighted_arrays",
    "fit_class_weight",
    "fit_validation",
    "fit_own_train_step",
    "callbacks",
    "evaluate_uneven",
    "evaluate_arrays",
    "evaluate_from_function",
    "predict_uneven",
    "predict_arrays",
    "constant_weights_metrics",
    "stateful_metrics",
    "predict_in_callback",
    "string_features",
)

# The loop over steps is in a graph, in which upstream's mirrored strategies cannot merge (keras-team/keras#19246).
STEPS_IN_ONE_CALL = ("fit_steps_per_execution",)

# The same on one process that reads the data itself.
ONE_READER = ("on_batch", "predict_from_function")

# Comparable although workers write at the same time and in any order.
ORDER_FREE = (
    "evaluate_uneven",
    "evaluate_arrays",
    "evaluate_from_function",
    "predict_uneven",
    "predict_arrays",
    "constant_weights_metrics",
    "stateful_metrics",
)
