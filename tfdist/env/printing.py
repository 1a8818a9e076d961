"""Prints what `tfdist env` has found, as text or as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text


def as_json(found: Mapping[str, Any]) -> str:
    """Returns everything as one line of JSON.

    Example:
        >>> as_json({"warnings": []})
        '{"warnings": []}'
    """
    return json.dumps(found)


def as_text(found: Mapping[str, Any], console: Console | None = None) -> str:
    """Returns a line for each value, under the name of its section, and the warnings at the end.

    Args:
        found: the result of `gather`.
        console: where the text will be printed, which decides about colours; None is standard output.
    """
    console = console or Console(highlight=False)
    with console.capture() as captured:
        for title, section in lines_of(found).items():
            console.print(Text(title, style="bold"))
            width = max((len(name) for name in section), default=0)
            for name, value in section.items():
                console.print(Text(f"  {name:<{width}}  {value}"), soft_wrap=True)
            if not section:
                console.print(Text("  none"))
        for warning in found["warnings"]:
            console.print(Text(f"warning: {warning}", style="yellow"), soft_wrap=True)
    return captured.get()


def lines_of(found: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Returns the names and values of each section as texts.

    Args:
        found: the result of `gather`.
    """
    versions = dict(found["versions"])
    flavours = versions.pop("TensorFlow")
    tensorflow, cluster = found["tensorflow"], dict(found["cluster"])
    tasks = cluster.pop("tasks", {})
    installed = ", ".join(f"{name} {version}" for name, version in flavours.items()) or "none"
    shown = {
        "versions": {"tfdist": versions.pop("tfdist"), "TensorFlow": installed, **versions},
        "machine": found["machine"],
        "cluster": {**cluster, **{job: ", ".join(addresses) for job, addresses in tasks.items()}},
        "TensorFlow": _of_tensorflow(tensorflow),
        "Keras in use": _of_keras(tensorflow, found["variables"]),
        "environment variables": found["variables"],
    }
    return {title: {name: str(value) for name, value in section.items()} for title, section in shown.items()}


def _of_tensorflow(tensorflow: Mapping[str, Any]) -> dict[str, Any]:
    if "version" not in tensorflow:
        return {"error": tensorflow["error"]}
    build = ", ".join(f"{name}={value}" for name, value in tensorflow["build"].items())
    return {
        "version": f"{tensorflow['version']} ({tensorflow['git version']})",
        "compiled with": f"{tensorflow['compiler']} {' '.join(tensorflow['compile flags'])}",
        "build": build,
        "oneDNN": tensorflow["oneDNN"],
        "devices": ", ".join(tensorflow["devices"]),
    }


def _of_keras(tensorflow: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    keras = tensorflow.get("keras")
    if not keras or "error" in keras:
        return {"error": keras["error"]} if keras else {}
    mends = tensorflow["mends"]
    found = {
        "package": f"{keras['name'].replace('keras3', 'keras').replace('keras2', 'keras')} {keras['version']}",
        "because": why_this_keras(keras["name"], variables),
        "mends that create_strategy applies": ", ".join(mends["needed"]) or "none",
        "mends that this version does not need": ", ".join(mends["not needed"]) or "none",
    }
    return found | ({"mends whose check failed": ", ".join(mends["unknown"])} if mends["unknown"] else {})


def why_this_keras(name: str, variables: Mapping[str, str]) -> str:
    """Returns why tf.keras is this package.

    Args:
        name: "keras3", "tf_keras" or "keras2".
        variables: the environment variables.

    Example:
        >>> why_this_keras("tf_keras", {"TF_USE_LEGACY_KERAS": "1"})
        'TF_USE_LEGACY_KERAS=1'
        >>> why_this_keras("keras3", {})
        'TF_USE_LEGACY_KERAS is not set, and the package keras is Keras 3'
    """
    legacy = variables.get("TF_USE_LEGACY_KERAS")
    setting = "TF_USE_LEGACY_KERAS is not set" if legacy is None else f"TF_USE_LEGACY_KERAS={legacy}"
    if name == "tf_keras":
        return setting
    return f"{setting}, and the package keras is Keras {'3' if name == 'keras3' else '2'}"
