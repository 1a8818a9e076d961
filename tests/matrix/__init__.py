"""The version matrix: a core of the conformance suite and the canaries on every pair of TensorFlow and Keras."""
