"""What the recipe can be asked for; plain words that the flags read without TensorFlow."""

OPTIMIZERS = ("adam", "adamw", "lamb", "lars", "rmsprop", "sgd", "tfa_lamb")
SCALINGS = ("auto", "linear", "sqrt", "none")
DECAYS = ("none", "linear", "cosine", "polynomial")
