"""Examines this task, and with the other tasks the cluster. Every wait ends by a deadline."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Sequence

from tfdist.cluster import ClusterConfig
from tfdist.doctor.checks import port
from tfdist.doctor.checks.directory import Directory
from tfdist.doctor.checks.gpu import Gpus
from tfdist.doctor.decisions import decide
from tfdist.doctor.exchange import Exchange
from tfdist.doctor.facts import Facts, Sources, first_facts
from tfdist.doctor.finding import Finding
from tfdist.doctor.identity import own_identity
from tfdist.doctor.in_thread import InThread
from tfdist.doctor.meeting import meet
from tfdist.doctor.reports import deliver, fetch
from tfdist.doctor.roles import EVALUATOR, in_order, other_tasks, own_task, reporter_of
from tfdist.doctor.server import Server
from tfdist.doctor.shared import SharedDirectory
from tfdist.doctor.times import Times
from tfdist.doctor.visits import Visits

# How long the chief waits for tasks that its TF_CONFIG does not list, such as an evaluator.
_GUESTS_SECONDS = 1.0
_LEAVE_SECONDS = 2.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """What one task has found out.

    Args:
        task: name of this task.
        tasks: names of the tasks that were examined.
        findings: what to show: everything if this task reports for all tasks, else its own failures.
        is_report: whether this task reports for all tasks.
    """

    task: str
    tasks: tuple[str, ...]
    findings: tuple[Finding, ...]
    is_report: bool

    def with_finding(self, finding: Finding) -> Result:
        """Returns this result with another finding before the others."""
        return dataclasses.replace(self, findings=(finding, *self.findings))


class Examination:
    """All checks of one task, and of its cluster together with the other tasks; used in a `with` statement.

    Args:
        config: the cluster.
        directory: a directory that all tasks should share; None checks none.
        timeout_seconds: when all waiting ends.
        say: called with lines about what this task waits for.
        sources: the functions that look at this machine; None are those of this package.

    Example:
        >>> from tfdist.cluster import ClusterConfig
        >>> with Examination(ClusterConfig(), say=print) as examination:
        ...     result = examination.run()
        >>> result.task, result.is_report
        ('single process', True)
    """

    def __init__(
        self,
        config: ClusterConfig,
        *,
        directory: str | None = None,
        timeout_seconds: float = 60.0,
        say: Callable[[str], None],
        sources: Sources | None = None,
    ) -> None:
        self._config = config
        self._say = say
        self._sources = sources or Sources()
        self._times = Times.of(timeout_seconds, start=time.monotonic())
        self._others = other_tasks(config)
        self._identity = own_identity(config.task_name, source=config.source)
        self._port = port.gather(config)
        self._reporter = reporter_of(config)
        # The process that has no port because of its index is not the chief, whatever the index is.
        self._is_reporter = self._reporter == config.task_name and not self._port.is_rival
        self._directory = directory
        self._shared = SharedDirectory(directory, self._identity.unique) if directory else None
        self._exchange: Exchange | None = None
        self._server: Server | None = None
        self._visits: Visits | None = None

    def __enter__(self) -> Examination:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._visits is not None:
            self._visits.stop()
        if self._server is not None:
            self._server.close()
        elif self._port.server is not None:
            self._port.server.close()
        if self._shared is not None:
            self._shared.remove()

    def run(self) -> Result:
        """Runs the checks, and returns what to show. The other tasks wait until `part`."""
        gpus = InThread(lambda: self._sources.gpus(deadline=self._times.meeting), name="tfdist doctor looks for GPUs")
        self._exchange = exchange = Exchange(self._first_facts())
        first = exchange.own.directory
        if self._shared is not None and first is not None and not first.error and self._is_reporter:
            self._shared.start_renaming()
        if self._config.jobs:
            self._meet(exchange)
        own = dataclasses.replace(
            exchange.own,
            is_complete=True,
            directory=self._look(exchange, first),
            gpus=self._found(gpus),
            links=self._visits.links() if self._visits is not None else (),
            heard=tuple(facts.identity for facts in exchange.heard()),
            rivals=tuple(exchange.rivals()),
        )
        exchange.complete(own)
        if self._is_reporter and self._config.jobs:
            self._collect(exchange)
        return self._result(exchange)

    def part(self) -> bool:
        """On the chief, tells the other tasks that they may end; on another task, waits until the chief says so.

        Returns:
            False if the chief was there and ended, or did not answer, before it had the report of this task.
        """
        exchange = self._exchange
        if exchange is None or not self._config.jobs or self._port.is_rival:
            return True
        if self._is_reporter:
            exchange.has_reported.set()
            exchange.wait_until_delivered(deadline=time.monotonic() + _LEAVE_SECONDS)
            return True
        if self._reporter is not None and self._reporter not in {facts.identity.task for facts in exchange.known()}:
            self._say(f"{self._reporter}, which reports for all tasks, did not come; {self._config.task_name} ends")
            return True
        for chief in self._others:
            if chief.name == self._reporter and chief.name in exchange.reached():
                if deliver(chief, exchange, deadline=self._times.end):
                    return True
                self._say(f"{chief.name} ended, or did not answer, before it had the report of this task")
                return False
        # The chief fetches the report of a task that does not reach it, or whose TF_CONFIG does not list it.
        return exchange.is_released.wait(max(0.0, self._times.end - time.monotonic())) or self._reporter is None

    def _first_facts(self) -> Facts:
        reading = InThread(lambda: self._sources.rooms(self._directory), name="tfdist doctor reads the disks")
        facts = first_facts(self._config, self._identity, sources=self._sources, port_error=self._port.error)
        if self._shared is not None:
            facts = dataclasses.replace(facts, directory=self._shared.write(deadline=self._times.files))
        try:
            return dataclasses.replace(facts, rooms=reading.result(deadline=self._times.files))
        except TimeoutError:
            return dataclasses.replace(facts, disk_error="a file system does not answer")
        except OSError as error:
            return dataclasses.replace(facts, disk_error=f"{error.filename}: {error.strerror}")

    def _meet(self, exchange: Exchange) -> None:
        tasks = self._others
        if self._port.server is not None:
            self._server = Server(self._port.server, exchange, clock=self._sources.clock, deadline=self._times.end)
            if self._config.task_type != EVALUATOR:
                tasks = (*tasks, *own_task(self._config))
        rival = self._port.is_rival
        self._visits = Visits(tasks, exchange, clock=self._sources.clock, deadline=self._times.meeting, once=rival)
        meet(
            self._config,
            exchange,
            visits=self._visits,
            has_port=self._port.server is not None,
            is_rival=rival,
            times=self._times,
            say=self._say if self._is_reporter else None,
        )
        self._visits.stop()

    def _look(self, exchange: Exchange, first: Directory | None) -> Directory | None:
        if self._shared is None or first is None:
            return None
        if not self._config.jobs:
            return self._shared.look(first, [], renaming=exchange.own, deadline=self._times.directory)
        known = exchange.known()
        chief = next((facts for facts in known if facts.identity.task == self._reporter), None)
        return self._shared.look(first, known, renaming=chief, deadline=self._times.directory)

    def _found(self, gpus: InThread[Gpus]) -> Gpus:
        try:
            return gpus.result(deadline=self._times.directory)
        except TimeoutError:
            return Gpus(error="the driver has not answered")
        except Exception as error:
            # Whatever goes wrong with the driver is a result, and not the end of the other checks.
            return Gpus(error=f"the GPUs could not be examined: {error}")

    def _collect(self, exchange: Exchange) -> None:
        """Waits for the reports of all tasks that this one has heard of."""
        heard = {facts.identity.task for facts in exchange.heard()}
        for task in self._others:
            if task.name in exchange.reached() - heard:
                InThread(
                    lambda task=task: fetch(task, exchange, deadline=self._times.reports),  # type: ignore[misc]
                    name=f"tfdist doctor fetches the report of {task.name}",
                )
        listed = {f"{EVALUATOR} 0"} if EVALUATOR in self._config.jobs else set()

        def have_come() -> bool:
            # A process with the name of this task, and a wrong index, reports to itself.
            known = {facts.identity.task for facts in exchange.known()} - {self._config.task_name}
            return known <= exchange.reported() and listed <= known

        if listed:
            exchange.wait_for(have_come, deadline=self._times.meeting)
            listed = set()
        else:
            earliest = self._times.start + _GUESTS_SECONDS
            exchange.wait_for(lambda: False, deadline=min(earliest, self._times.meeting))
        exchange.wait_for(have_come, deadline=self._times.reports)

    def _result(self, exchange: Exchange) -> Result:
        own, name = exchange.own, self._config.task_name
        facts = {name: own} if self._is_reporter else {}
        # The complete facts come first: two processes may have the same name.
        for other in sorted(exchange.known(), key=lambda facts: not facts.is_complete):
            facts.setdefault(other.identity.task, other)
        facts[name] = own
        chief = [task for task in facts if task == self._reporter]
        facts = {task: facts[task] for task in dict.fromkeys([*chief, *in_order(facts)])}
        expected = {task.name: task.address for task in self._others}
        if self._config.task_type == EVALUATOR:
            # An evaluator may be started after the others have ended.
            expected = {}
        elif EVALUATOR in self._config.jobs:
            expected[f"{EVALUATOR} 0"] = ""
        silent = set(facts) - exchange.reported() - {name} if self._is_reporter else set()
        findings = decide(
            facts,
            expected=expected,
            reference=self._reporter or name,
            processes=[facts.identity for facts in exchange.known()],
            silent=sorted(silent),
        )
        return Result(
            task=name,
            tasks=tuple(facts),
            findings=tuple(findings if self._is_reporter else self._own_failures(findings, facts)),
            is_report=self._is_reporter,
        )

    def _own_failures(self, findings: Sequence[Finding], known: Collection[str]) -> list[Finding]:
        """Returns the failures of this task, and those of absent tasks if nobody else reports them.

        The first of several tasks, such as all tasks of a host, prints what concerns them all.
        """
        alone = self._reporter not in known
        return [
            finding
            for finding in findings
            if finding.verdict == "fail"
            and (finding.tasks[0] == self._config.task_name or (alone and finding.tasks[0] not in known))
        ]
