"""What Keras's models need to know of optimizers whose replicas train on their own between meetings."""
