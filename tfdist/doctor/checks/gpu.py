"""GPUs: the driver answers, TensorFlow can use the GPUs, and no two tasks use the same one."""

from __future__ import annotations

import dataclasses
import glob
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping

from tfdist.doctor.finding import Finding, size_text, usual
from tfdist.doctor.roles import EVALUATOR, computing, job_of

CHECK = "GPU"
# The part of a GPU's memory that other processes may have.
_USED_BY_OTHERS = 0.1
_DRIVER = "check `nvidia-smi` on this host: install the driver that fits the kernel, and give the container its GPUs"
_QUERY = "uuid,name,driver_version,memory.total,memory.used"
_LEAST_SECONDS = 1.0

# One small product on each GPU finds a driver, CUDA or cuBLAS that TensorFlow cannot use.
_PROGRAM = """
import json, tensorflow as tf
found = {"built": tf.test.is_built_with_gpu_support(), "gpus": 0}
for device in tf.config.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(device, True)
for device in tf.config.list_logical_devices("GPU"):
    with tf.device(device.name):
        tf.matmul(tf.ones([8, 8]), tf.ones([8, 8])).numpy()
    found["gpus"] += 1
print("tfdist doctor", json.dumps(found))
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU that nvidia-smi lists.

    Args:
        unique: its UUID.
        name: its model.
        driver: version of the driver.
        total: bytes of its memory.
        used: bytes of its memory that are in use.
    """

    unique: str
    name: str
    driver: str
    total: int
    used: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gpus:
    """The GPUs of a task.

    Args:
        listed: what nvidia-smi lists.
        devices: how many device files of GPUs there are.
        visible: the text of CUDA_VISIBLE_DEVICES; None if it is not set.
        error: why nvidia-smi failed; "" if it did not.
        used_by_tensorflow: how many GPUs TensorFlow has computed with; None if it was not asked.
        tensorflow_error: why TensorFlow failed; "" if it did not.
        built: whether this TensorFlow is built with support for GPUs.
    """

    listed: tuple[Gpu, ...] = ()
    devices: int = 0
    visible: str | None = None
    error: str = ""
    used_by_tensorflow: int | None = None
    tensorflow_error: str = ""
    built: bool = True

    @property
    def is_hidden(self) -> bool:
        """Whether CUDA_VISIBLE_DEVICES leaves no GPU."""
        if self.visible is None or self.is_part:
            return False
        return self.visible.strip() in ("", "-1") if not self.listed else not self.chosen

    @property
    def is_part(self) -> bool:
        """Whether CUDA_VISIBLE_DEVICES names a part of a GPU (MIG), which nvidia-smi does not list among the GPUs."""
        return "MIG-" in (self.visible or "")

    @property
    def chosen(self) -> tuple[Gpu, ...]:
        """The GPUs that CUDA_VISIBLE_DEVICES leaves."""
        if self.visible is None:
            return self.listed
        found = []
        for word in self.visible.split(","):
            word = word.strip()
            if word.isdecimal() and int(word) < len(self.listed):
                found.append(self.listed[int(word)])
                continue
            # CUDA accepts the beginning of a UUID. It ignores everything from the first word that is no GPU on.
            matching = [gpu for gpu in self.listed if word and gpu.unique.startswith(word)]
            if len(matching) != 1:
                break
            found += matching
        return tuple(found)


def gather(*, deadline: float) -> Gpus:
    """Returns the GPUs of this process. TensorFlow is started, in another process, only if there are GPUs.

    Args:
        deadline: when to give up, in seconds of time.monotonic().
    """
    devices = len(glob.glob("/dev/nvidia[0-9]*"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shutil.which("nvidia-smi") is None:
        # Some containers get the driver without its tools.
        found = Gpus(devices=devices, visible=visible, error="nvidia-smi is not installed" if devices else "")
        return _with_tensorflow(found, deadline=deadline) if devices and not found.is_hidden else found
    query = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    code, output = _run(query, deadline=deadline)
    if code:
        return Gpus(devices=devices, visible=visible, error=f"nvidia-smi failed: {output}")
    found = Gpus(devices=devices, visible=visible, listed=parse(output))
    return found if found.is_hidden or not found.listed else _with_tensorflow(found, deadline=deadline)


def _with_tensorflow(found: Gpus, *, deadline: float) -> Gpus:
    code, output = _run([sys.executable, "-c", _PROGRAM], deadline=deadline)
    said = [line for line in output.splitlines() if line.startswith("tfdist doctor ")]
    if code or not said:
        return dataclasses.replace(found, tensorflow_error=output.strip().splitlines()[-1] if output.strip() else "?")
    values = json.loads(said[-1].removeprefix("tfdist doctor "))
    return dataclasses.replace(found, used_by_tensorflow=values["gpus"], built=values["built"])


def _run(command: list[str], *, deadline: float) -> tuple[int, str]:
    allowed = max(_LEAST_SECONDS, deadline - time.monotonic())
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=allowed,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return 1, f"{os.path.basename(command[0])} did not end in {allowed:.0f} s"
    except OSError as error:
        return 1, error.strerror or str(error)
    return done.returncode, done.stdout.strip()


def parse(output: str) -> tuple[Gpu, ...]:
    """Returns the GPUs in the output of nvidia-smi. Lines with other content are ignored.

    Example:
        >>> parse("GPU-1a, NVIDIA H200, 570.86, 143771, 4")[0].name
        'NVIDIA H200'
        >>> parse("No devices were found")
        ()
    """
    found = []
    for line in output.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == 5:
            # A GPU whose memory is that of the host has no memory of its own: [N/A].
            total, used = (int(word) << 20 if word.isdecimal() else 0 for word in words[3:])
            found.append(Gpu(unique=words[0], name=words[1], driver=words[2], total=total, used=used))
    return tuple(found)


def decide(gpus: Mapping[str, Gpus]) -> list[Finding]:
    """Returns at least one finding for each task.

    Args:
        gpus: what each task has gathered, the chief first.

    Example:
        >>> gpu = Gpu(unique="GPU-1a", name="H200", driver="570.86", total=100 << 30, used=0)
        >>> good = Gpus(listed=(gpu,), devices=1, used_by_tensorflow=1)
        >>> decide({"worker 0": good})[0].text
        '1 GPU (H200, driver 570.86)'
        >>> decide({"worker 0": Gpus()})[0].text
        'no GPU'
        >>> [finding.text for finding in decide({"worker 0": good, "worker 1": good}) if finding.verdict == "warn"]
        ['worker 0 and worker 1 use the same GPU']
        >>> decide({"worker 0": dataclasses.replace(good, used_by_tensorflow=0)})[0].text
        'nvidia-smi lists 1 GPU, but TensorFlow can use 0'
        >>> decide({"worker 0": Gpus(devices=1, error="nvidia-smi failed: no driver")})[0].verdict
        'fail'
    """
    findings = [_of_task(task, own) for task, own in gpus.items()]
    training = {task: gpus[task] for task in computing(gpus) if job_of(task) != EVALUATOR}
    other, reference = usual({task: _models(own) for task, own in (training or gpus).items()})
    for task, own in training.items():
        if _models(own) != reference and not own.error:
            text = f"has {_described(own)}, but {other} has {_described(gpus[other])}"
            findings.append(_warning(task, text, "give all tasks the same GPUs: the slowest one decides the speed"))
    users: dict[str, list[str]] = {}
    for task, own in gpus.items():
        for gpu in own.chosen:
            users.setdefault(gpu.unique, []).append(task)
    for tasks in dict.fromkeys(tuple(tasks) for tasks in users.values() if len(tasks) > 1):
        action = "set CUDA_VISIBLE_DEVICES to another GPU for each task of a host"
        findings.append(_warning(", ".join(tasks), f"{' and '.join(tasks)} use the same GPU", action))
    return findings


def _of_task(task: str, own: Gpus) -> Finding:
    count = 1 if own.is_part else len(own.chosen)
    if own.error and own.is_hidden:
        return Finding(check=CHECK, task=task, verdict="pass", text=f"CUDA_VISIBLE_DEVICES={own.visible!r} hides them")
    if own.error and own.used_by_tensorflow:
        text = f"TensorFlow can use {_counted(own.used_by_tensorflow)} ({own.error})"
        return Finding(check=CHECK, task=task, verdict="pass", text=text)
    if own.error:
        return _failure(task, f"{own.error} ({_counted(own.devices)} in /dev)", _DRIVER)
    if not own.listed:
        if own.devices:
            return _failure(task, f"nvidia-smi lists no GPU, but /dev has {_counted(own.devices)}", _DRIVER)
        return Finding(check=CHECK, task=task, verdict="pass", text="no GPU")
    if not count:
        text = f"CUDA_VISIBLE_DEVICES={own.visible!r} hides {_counted(len(own.listed))}"
        return Finding(check=CHECK, task=task, verdict="pass", text=text)
    if own.tensorflow_error:
        return _failure(task, f"TensorFlow failed on the GPU: {own.tensorflow_error}", _DRIVER)
    if own.used_by_tensorflow is not None and own.used_by_tensorflow < count:
        listed = f"nvidia-smi lists {_counted(count)}, but TensorFlow can use {own.used_by_tensorflow}"
        if not own.built:
            return _failure(task, f"{listed}: it is built without GPUs", "install `tensorflow`, not `tensorflow-cpu`")
        return _failure(task, listed, "install CUDA's libraries: `pip install 'tensorflow[and-cuda]'`")
    busy = [gpu for gpu in own.chosen if gpu.used > _USED_BY_OTHERS * gpu.total > 0]
    if busy:
        text = f"other processes have {size_text(busy[0].used)} of {size_text(busy[0].total)} of a GPU's memory"
        return _warning(task, text, "look at `nvidia-smi` and end what an earlier training has left")
    return Finding(check=CHECK, task=task, verdict="pass", text=_described(own))


def _failure(task: str, text: str, action: str) -> Finding:
    return Finding(check=CHECK, task=task, verdict="fail", text=text, action=action)


def _warning(task: str, text: str, action: str) -> Finding:
    return Finding(check=CHECK, task=task, verdict="warn", text=text, action=action)


def _counted(count: int) -> str:
    return f"{count} {'GPU' if count == 1 else 'GPUs'}"


def _models(own: Gpus) -> tuple[tuple[str, str], ...]:
    return tuple((gpu.name, gpu.driver) for gpu in own.chosen)


def _described(own: Gpus) -> str:
    if own.is_part:
        return "a part of a GPU (MIG)"
    if not own.chosen:
        return "no GPU"
    return f"{_counted(len(own.chosen))} ({own.chosen[0].name}, driver {own.chosen[0].driver})"
