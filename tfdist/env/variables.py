"""Chooses the environment variables that are printed: those that change a training, and none that may be secret."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

# Variables of TensorFlow, Keras, tfdist, and of the libraries that compute and communicate for them.
_PREFIXES = ("TF_", "KERAS_", "TFDIST_", "XLA_", "TPU_", "NCCL_", "OMP_", "KMP_", "DNNL_", "ONEDNN_", "GRPC_", "CUDA_")
# Terraform's variables begin with TF_, too, and its TF_VAR_... may contain anything.
_NOT_OURS = ("TF_VAR_", "TF_CLI_", "TF_TOKEN_", "TF_DATA_DIR", "TF_LOG", "TF_INPUT", "TF_WORKSPACE", "TF_REGISTRY_")
_NAMES = ("LD_PRELOAD", "MALLOC_ARENA_MAX", "PYTHONHASHSEED", "PYTHONPATH")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|COOKIE|AUTH", re.I)
_USER_IN_ADDRESS = re.compile(r"(\w+://)[^/@\s]+@")
HIDDEN = "(set, not shown)"


class Recorded(Mapping[str, str]):
    """Environment variables that remember which of them have been read.

    Args:
        variables: the environment variables.

    Example:
        >>> recorded = Recorded({"SM_HOSTS": "[]", "HOME": "/home/me"})
        >>> recorded.get("SM_HOSTS"), recorded.get("TF_CONFIG"), sorted(recorded.read)
        ('[]', None, ['SM_HOSTS', 'TF_CONFIG'])
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = dict(variables)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.read.add(name)
        return self._variables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._variables)

    def __len__(self) -> int:
        return len(self._variables)


def shown(variables: Mapping[str, str], *, read: frozenset[str] | set[str] = frozenset()) -> dict[str, str]:
    """Returns the variables to print.

    Args:
        variables: the environment variables.
        read: names of those that the search for a cluster has read. Other variables of a scheduler are left out, since
            some contain arguments of the program.

    Example:
        >>> shown({"TF_CPP_MIN_LOG_LEVEL": "2", "HOME": "/home/me", "TF_API_KEY": "x", "SM_HPS": "{}"})
        {'TF_API_KEY': '(set, not shown)', 'TF_CPP_MIN_LOG_LEVEL': '2'}
        >>> shown({"SLURM_PROCID": "1", "SLURM_JOB_COMMENT": "x"}, read={"SLURM_PROCID"})
        {'SLURM_PROCID': '1'}
    """
    own = {name for name in variables if name.startswith(_PREFIXES) and not name.startswith(_NOT_OURS)}
    chosen = sorted(name for name in variables if name in own or name in _NAMES or name in read)
    return {
        name: HIDDEN if _SECRET.search(name) else _USER_IN_ADDRESS.sub(r"\1(not shown)@", variables[name])
        for name in chosen
    }
