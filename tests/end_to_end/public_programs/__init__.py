"""Small programs in the manner of keras.io's examples. Each has `run(strategy)`, which trains a model in float64."""
