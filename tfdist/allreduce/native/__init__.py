"""The native transport: sums over workers through shared memory and TCP, by the package tfdist-native."""
