"""Names and rules that create_optimizer shares with the flags, kept apart so that flags work without TensorFlow."""

from collections.abc import Sequence

OPTIMIZERS = ("adam", "adamw", "lamb", "lars", "momentum_corrected_sgd", "rmsprop", "sgd", "tfa_lamb")
SCALINGS = ("none", "linear", "sqrt", "auto")
DECAYS = ("none", "linear", "cosine", "polynomial")
# The optimizers that can honour an option; create_optimizer and `tfdist train` refuse it for every other optimizer.
TAKERS = {
    "momentum": ("sgd", "momentum_corrected_sgd", "lars"),
    "weight_decay": ("sgd", "momentum_corrected_sgd", "adamw", "lars", "lamb", "tfa_lamb"),
    # Keras does not save the exclusions of its own optimizers: a loaded model would decay all of its variables.
    "exclude_from_weight_decay": ("momentum_corrected_sgd", "lars", "lamb", "tfa_lamb"),
    "exclude_from_adaptation": ("lars", "lamb"),
    "eeta": ("lars",),
}


def alternatives(names: Sequence[str]) -> str:
    """Returns names as a list of alternatives, joined by commas and "or".

    Example:
        >>> from tfdist._optimizer_names import alternatives
        >>> alternatives(["sgd", "lars", "lamb"])
        'sgd, lars or lamb'
    """
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last
