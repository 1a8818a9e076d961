"""The decisions of single checks on planted facts, beyond the examples in their docstrings."""

from __future__ import annotations

import dataclasses
import time
import types

import pytest

from tfdist.cluster import cgroup
from tfdist.cluster.probe import NO_REPLY, REFUSED, UNRESOLVED
from tfdist.cluster.wrong_indices import CHECK_INDICES, another_task
from tfdist.doctor.checks import (
    clock,
    directory,
    disk,
    gpu,
    memory,
    names,
    reach,
    shared_memory,
    tf_config,
    threads,
    versions,
)
from tfdist.doctor.checks.directory import Directory, Renames
from tfdist.doctor.checks.gpu import Gpu, Gpus
from tfdist.doctor.checks.threads import Threads
from tfdist.doctor.finding import Finding
from tfdist.doctor.link import Link

INSTALLED = {"Python": "3.11.7", "TensorFlow": "2.21.0", "Keras": "3.15.0", "tfdist": "0.1"}


def verdicts(findings):
    return [(finding.task, finding.verdict) for finding in findings]


def test_a_problem_needs_an_action():
    with pytest.raises(ValueError, match="expected an action"):
        Finding(check="disk", task="worker 0", verdict="warn", text="full")


# ---- versions ----


def test_the_odd_one_out_is_named_even_if_it_is_the_chief():
    own = {"chief 0": {**INSTALLED, "tfdist": "0.2"}, "worker 0": INSTALLED, "worker 1": INSTALLED}
    findings = versions.decide(own)
    assert verdicts(findings) == [("chief 0", "fail"), ("worker 0", "pass"), ("worker 1", "pass")]
    assert findings[0].text == "has tfdist 0.2, but worker 0 has tfdist 0.1"


def test_tf_keras_on_one_task_fails():
    legacy = {**INSTALLED, "Keras": "2.21.0", "TF_USE_LEGACY_KERAS": "1"}
    findings = versions.decide({"worker 0": {**INSTALLED, "TF_USE_LEGACY_KERAS": "not set"}, "worker 1": legacy})
    assert verdicts(findings) == [("worker 0", "pass"), ("worker 1", "fail")]
    assert "has TF_USE_LEGACY_KERAS 1, but worker 0 has TF_USE_LEGACY_KERAS not set" in findings[1].text


def test_a_missing_tensorflow_and_another_backend_fail():
    without = {name: version for name, version in INSTALLED.items() if name != "TensorFlow"}
    assert versions.decide({"worker 0": without})[0].text == "TensorFlow cannot be found by 3.11.7 Python"
    assert versions.decide({"worker 0": {**INSTALLED, "Keras backend": "jax"}})[0].verdict == "fail"


def test_the_versions_of_this_process_are_found():
    found = versions.gather()
    assert {"Python", "TensorFlow", "Keras", "tfdist"} <= set(found)


# ---- TF_CONFIG ----


def test_many_differences_are_counted():
    big = {f"worker {n}": f"a{n}:1" for n in range(9)}
    other = {f"worker {n}": f"b{n}:1" for n in range(9)}
    findings = tf_config.decide({"worker 0": big, "worker 1": big, "worker 2": other})
    assert verdicts(findings)[-1] == ("worker 2", "fail")
    assert findings[-1].text.endswith("; 6 more differences")


def test_the_order_of_jobs_is_no_difference():
    one = {"chief 0": "a:1", "worker 0": "b:1"}
    other = dict(reversed(one.items()))
    assert verdicts(tf_config.decide({"chief 0": one, "worker 0": other})) == [
        ("chief 0", "pass"),
        ("worker 0", "pass"),
    ]


def test_a_part_of_the_cluster_is_allowed_where_it_is_expected():
    whole, part = {"chief 0": "a:1", "worker 0": "b:1"}, {"worker 0": "b:1"}
    assert tf_config.decide({"chief 0": whole, "worker 0": part})[1].verdict == "fail"
    assert tf_config.decide({"chief 0": whole, "worker 0": part}, is_partial=True)[1].verdict == "pass"


# ---- reachability and names ----

ADDRESSES = {"worker 0": "a:1", "worker 1": "b:1", "worker 2": "c:1"}


def link(target, reason="", **more):
    return Link(target=target, address=ADDRESSES[target], reason=reason, **more)


def test_another_task_at_an_address_means_wrong_indices():
    links = {"worker 0": [link("worker 1", another_task("worker 0"))]}
    finding = reach.decide({"worker 1": "b:1"}, links, ["worker 0"])[0]
    assert (finding.task, finding.verdict, finding.action) == ("worker 1", "fail", CHECK_INDICES)


def test_a_task_that_does_not_reach_itself_is_warned_and_fails_if_another_one_answers():
    def of_itself(reason):
        links = {"worker 0": [link("worker 0", reason), link("worker 1")]}
        return verdicts(reach.decide({"worker 1": "b:1"}, links, ["worker 0", "worker 1"]))

    assert of_itself("") == [("worker 0", "pass")]
    assert of_itself(NO_REPLY) == [("worker 0", "warn")]
    assert of_itself(another_task("worker 0, process 7 on node7")) == [("worker 0", "fail")]


def test_an_evaluator_that_reaches_nobody_is_only_warned():
    links = {"evaluator 0": [link("worker 0", REFUSED)]}
    assert verdicts(reach.decide({}, links, ["worker 0", "evaluator 0"])) == [("evaluator 0", "warn")]


def test_a_report_that_did_not_come_fails():
    links = {"worker 0": [link("worker 1")]}
    findings = reach.decide({"worker 1": "b:1"}, links, ["worker 0", "worker 1"], ["worker 1"])
    assert verdicts(findings) == [("worker 1", "fail"), ("worker 0", "pass")]


def test_a_name_that_does_not_resolve_is_not_reported_as_reachability():
    links = {"worker 0": [link("worker 1", UNRESOLVED)], "worker 1": [link("worker 0")]}
    assert verdicts(reach.decide(ADDRESSES | {"worker 2": "c:1"}, links, ADDRESSES)) == [("worker 1", "pass")]
    assert verdicts(names.decide("worker 0", links["worker 0"], {})) == [("worker 0", "fail")]


def test_a_slow_look_up_is_warned():
    slow = link("worker 1", resolved=("10.0.0.2",), name_seconds=5.0)
    quick = link("worker 1", resolved=("10.0.0.2",), name_seconds=0.01)
    assert verdicts(names.decide("worker 0", [slow, quick], {})) == [("worker 0", "pass")]
    (finding,) = names.decide("worker 0", [slow], {})
    assert (finding.verdict, finding.text) == ("warn", "the look-up of the name 'b' took 5.0 s")


# ---- clocks ----


@pytest.mark.parametrize(("seconds", "verdict"), [(0.9, "pass"), (-0.9, "pass"), (1.2, "warn"), (-1.2, "warn")])
def test_a_clock_that_is_wrong_by_more_than_a_second_is_warned(seconds, verdict):
    found = clock.decide("worker 0", {"worker 1": clock.Offset(seconds=seconds, uncertainty=0.1)})
    assert [finding.verdict for finding in found] == [verdict]


def test_an_estimate_that_is_less_exact_than_the_difference_is_no_warning():
    assert clock.decide("worker 0", {"worker 1": clock.Offset(seconds=1.5, uncertainty=1.0)})[0].verdict == "pass"


def test_the_offset_of_an_unequal_way_is_within_its_uncertainty():
    # The other clock is 7 s ahead; the request takes 0.1 s, the reply 0.5 s.
    found = clock.offset([(100.0, 107.1, 107.2, 100.7)])
    assert abs(found.seconds - 7.0) <= found.uncertainty + 1e-9
    assert found.uncertainty == pytest.approx(0.3)


# ---- directory ----


@pytest.mark.parametrize(
    ("change", "verdict", "says"),
    [
        ({"lock_error": "No locks available"}, "warn", "cannot be locked: No locks available"),
        ({"foreign_lock": "free"}, "fail", "that worker 0 holds could be taken a second time"),
        ({"fsync_seconds": 4.0}, "warn", "fsync of 1 MiB in /data took 4.0 s"),
        ({"sight_seconds": {"worker 0": 2.5}}, "warn", "worker 0 were seen in /data only after 2.5 s"),
        ({"renames": Renames(reads=90, versions=9, torn=2)}, "fail", "of 90 reads of a file that worker 0 replaced, 2"),
        ({"renames": Renames(reads=90, versions=1)}, "warn", "kept its old content here for seconds"),
        ({"renames": Renames(reads=90, versions=9, stale=1)}, "warn", "1 of 90 reads"),
    ],
)
def test_every_trouble_of_a_directory_is_named(change, verdict, says):
    own = Directory(path="/data", sight_seconds={"worker 0": 0.0}, renames_of="worker 0", foreign_lock="held")
    assert directory.decide({"worker 1": own})[0].verdict == "pass"
    (finding,) = directory.decide({"worker 1": dataclasses.replace(own, **change)})
    assert finding.verdict == verdict
    assert says in finding.text


# ---- memory and threads ----


def test_memory_is_that_of_all_tasks_of_a_host_and_unknown_memory_is_no_finding():
    available = dict.fromkeys(["worker 0", "worker 1", "worker 2"], 5 << 30)
    assert memory.decide(["worker 0"], available).verdict == "pass"
    assert memory.decide(list(available), available).verdict == "warn"
    assert memory.decide(["worker 0"], {"worker 0": None}) is None


def test_a_small_or_missing_shared_memory_is_named(tmp_path):
    assert shared_memory.decide(["worker 0"], shared_memory.gather(tmp_path / "missing")).verdict == "warn"
    assert shared_memory.decide(["worker 0"], shared_memory.Room(path="/dev/shm", free=1 << 20)).verdict == "fail"


@pytest.mark.parametrize(
    ("settings", "verdict"),
    [
        ({}, "pass"),
        ({"TF_NUM_INTRAOP_THREADS": "8"}, "warn"),
        ({"OMP_NUM_THREADS": "8"}, "warn"),
        ({"TF_NUM_INTRAOP_THREADS": "two"}, "warn"),
        ({"OMP_NUM_THREADS": "4", "TF_NUM_INTRAOP_THREADS": "4"}, "pass"),
    ],
)
def test_the_threads_of_one_task(settings, verdict):
    own = Threads(cpus=(0, 1, 2, 3), settings=settings)
    assert threads.decide({"worker 0": "a"}, {"worker 0": own})[0].verdict == verdict


def test_tasks_on_different_cpus_of_a_machine_do_not_disturb_each_other():
    own = {"worker 0": Threads(cpus=(0, 1)), "worker 1": Threads(cpus=(2, 3))}
    assert {finding.verdict for finding in threads.decide(dict.fromkeys(own, "a"), own)} == {"pass"}


def test_parameter_servers_and_their_coordinator_do_not_count():
    own = dict.fromkeys(["chief 0", "ps 0", "worker 0"], Threads(cpus=(0, 1)))
    assert {finding.verdict for finding in threads.decide(dict.fromkeys(own, "a"), own)} == {"pass"}


def test_few_threads_for_remote_calls_fail_with_parameter_servers():
    few = Threads(cpus=(0, 1), settings={"TF_NUM_INTEROP_THREADS": "2"})
    assert verdicts(threads.decide({}, {"chief 0": few, "ps 0": few, "worker 0": few}))[0] == ("chief 0", "fail")
    assert verdicts(threads.decide({}, {"worker 0": few})) == [("worker 0", "pass")]


# ---- containers ----


@pytest.fixture
def tree(tmp_path):
    def write(files):
        for path, text in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        return tmp_path

    return write


def test_the_limits_of_control_groups_version_2(tree):
    root = tree(
        {
            "proc/self/cgroup": "0::/pod/box\n",
            "proc/meminfo": "MemTotal: 64000000 kB\nMemAvailable: 32000000 kB\n",
            "sys/fs/cgroup/pod/box/memory.max": "max\n",
            "sys/fs/cgroup/pod/box/memory.current": "5\n",
            "sys/fs/cgroup/pod/memory.max": "1000\n",
            "sys/fs/cgroup/pod/memory.current": "700\n",
            "sys/fs/cgroup/pod/memory.stat": "anon 100\ninactive_file 50\n",
            "sys/fs/cgroup/pod/box/cpu.max": "150000 100000\n",
        }
    )
    assert cgroup.free_memory(root) == 350
    assert cgroup.cpu_limit(root) == 1.5
    assert memory.gather(root) == 350


def test_the_limits_of_control_groups_version_1(tree):
    root = tree(
        {
            "proc/self/cgroup": "4:memory:/docker/1a\n3:cpu,cpuacct:/docker/1a\n",
            "proc/meminfo": "MemAvailable: 1000 kB\n",
            # Within the container, the folder of the group is the root of the hierarchy.
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "5\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        }
    )
    assert cgroup.free_memory(root) is None
    assert cgroup.cpu_limit(root) is None
    assert memory.gather(root) == 1000 << 10


# ---- GPUs ----

A, B = (Gpu(unique=f"GPU-{n}", name="H200", driver="570", total=100, used=0) for n in "ab")


@pytest.mark.parametrize(
    ("visible", "chosen"),
    [(None, [A, B]), ("1", [B]), ("1,0", [B, A]), ("GPU-a", [A]), ("-1", []), ("", []), ("1,-1,0", [B]), ("7,0", [])],
)
def test_cuda_visible_devices_chooses_gpus(visible, chosen):
    assert list(Gpus(listed=(A, B), visible=visible).chosen) == chosen


@pytest.mark.parametrize(
    ("change", "verdict", "says"),
    [
        ({}, "pass", "2 GPUs (H200, driver 570)"),
        ({"visible": "-1"}, "pass", "CUDA_VISIBLE_DEVICES='-1' hides 2 GPUs"),
        (
            {"error": "nvidia-smi failed: no driver", "listed": (), "used_by_tensorflow": None},
            "fail",
            "nvidia-smi failed: no driver",
        ),
        (
            {"error": "nvidia-smi is not installed", "listed": ()},
            "pass",
            "TensorFlow can use 2 GPUs (nvidia-smi is not",
        ),
        ({"visible": "MIG-5c"}, "pass", "a part of a GPU (MIG)"),
        ({"visible": "MIG-5c", "used_by_tensorflow": 0}, "fail", "TensorFlow can use 0"),
        ({"listed": (), "used_by_tensorflow": None}, "fail", "nvidia-smi lists no GPU, but /dev has 2 GPUs"),
        ({"used_by_tensorflow": 0, "built": False}, "fail", "TensorFlow can use 0: it is built without GPUs"),
        ({"used_by_tensorflow": None, "tensorflow_error": "cuInit"}, "fail", "TensorFlow failed on the GPU: cuInit"),
        ({"listed": (A, dataclasses.replace(B, used=60))}, "warn", "other processes have"),
    ],
)
def test_every_trouble_of_a_gpu_is_named(change, verdict, says):
    own = Gpus(listed=(A, B), devices=2, used_by_tensorflow=2)
    finding = gpu.decide({"worker 0": dataclasses.replace(own, **change)})[0]
    assert finding.verdict == verdict
    assert says in finding.text


def test_tasks_with_different_gpus_are_warned_but_not_those_without_work_for_them():
    own, none = Gpus(listed=(A,), devices=1, used_by_tensorflow=1), Gpus()
    assert ("worker 1", "warn") in verdicts(gpu.decide({"worker 0": own, "worker 1": none}))
    assert "warn" not in dict(verdicts(gpu.decide({"chief 0": none, "worker 0": own, "ps 0": none}))).values()


def test_the_output_of_nvidia_smi_is_read(monkeypatch):
    output = "GPU-1a, NVIDIA GH200, 570.86, [N/A], [N/A]\nGPU-2b, NVIDIA H200, 570.86, 143771, 4\n"
    first, second = gpu.parse(output)
    assert (first.name, first.total, second.total, second.used) == ("NVIDIA GH200", 0, 143771 << 20, 4 << 20)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo 'Failed to initialize NVML'; exit 9", ("nvidia-smi failed: Failed to initialize NVML", 0)),
        ("echo 'No devices were found'", ("", 0)),
        ("exec sleep 600", ("nvidia-smi failed: nvidia-smi did not end in 1 s", 0)),
    ],
)
def test_nvidia_smi_is_asked(script, expected, tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = gpu.gather(deadline=0.0)
    assert (found.error, len(found.listed)) == expected


def test_tensorflow_is_asked_only_if_there_is_a_gpu(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU-2b, NVIDIA H200, 570.86, 143771, 4'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(gpu, "_PROGRAM", "print('noise'); print('tfdist doctor {\"built\": true, \"gpus\": 1}')")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert gpu.gather(deadline=time.monotonic() + 60).used_by_tensorflow is None
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert gpu.gather(deadline=time.monotonic() + 60).used_by_tensorflow == 1
    monkeypatch.setattr(gpu, "_PROGRAM", "raise SystemExit('libcudnn is missing')")
    assert gpu.gather(deadline=time.monotonic() + 60).tensorflow_error == "libcudnn is missing"


# ---- disk ----


@pytest.mark.parametrize(("total", "free", "files"), [(0, 0, None), (10, -1, None), (1000, 7, 7)])
def test_a_file_system_that_does_not_count_files_has_no_number_of_them(total, free, files, monkeypatch):
    found = types.SimpleNamespace(f_files=total, f_favail=free, f_bavail=3, f_frsize=100)
    monkeypatch.setattr(disk.os, "statvfs", lambda path: found)
    assert disk.room_of("x") == disk.Room(path="x", free=300, files=files)
