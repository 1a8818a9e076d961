"""The checks: one file each, with a pure function `decide` and, where it needs one, a function `gather`."""
