"""Public programs that make their own strategies, run with `--adopt` as they are and compared with one device."""
