"""Training and evaluation on the workers of a parameter-server cluster."""
