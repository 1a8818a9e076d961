"""The folder that `tfdist launch --adopt` puts at the front of PYTHONPATH, so that Python runs its sitecustomize."""
