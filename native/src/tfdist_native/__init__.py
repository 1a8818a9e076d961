"""The native transport of tfdist: two libraries, and where they are. tfdist itself loads them."""

from pathlib import Path

__version__ = "0.1.0"

PROTOCOL = 4
"""tfdist and ranks with the same number understand each other."""

_FOLDER = Path(__file__).parent

LIBRARY = _FOLDER / "libtfdist_native.so"
"""The transport; its functions are declared in c_api.h."""

OPERATIONS = _FOLDER / "tfdist_native_ops.so"
"""The operations for TensorFlow, for tf.load_op_library."""
