"""The one room that knows which Keras is in use, and mends upstream defects where a strategy needs it."""

from tfdist.keras_compat.chief_files import is_chief, save_model
from tfdist.keras_compat.compression_needs_its_optimizer import require_distributed_optimizer
from tfdist.keras_compat.mends import applied_mends
from tfdist.keras_compat.prepare import check_variable_partitioner, prepare_keras
from tfdist.keras_compat.which import KerasInUse, keras, keras_in_use

__all__ = [
    "KerasInUse",
    "applied_mends",
    "check_variable_partitioner",
    "is_chief",
    "keras",
    "keras_in_use",
    "prepare_keras",
    "require_distributed_optimizer",
    "save_model",
]
