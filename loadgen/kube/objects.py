"""The few fields of Kubernetes objects that are looked at, as records: decoding skips everything else."""

from __future__ import annotations

import datetime
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class Seen(msgspec.Struct, frozen=True, rename="camel"):
    """Base: the API's camelCase names; unknown fields are skipped."""


class Metadata(Seen, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime.datetime | None = None
    deletion_timestamp: datetime.datetime | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Condition(Seen, frozen=True):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: datetime.datetime | None = None

    @property
    def true(self) -> bool:
        return self.status == "True"


class Waiting(Seen, frozen=True):
    reason: str = ""
    message: str = ""


class ContainerState(Seen, frozen=True):
    waiting: Waiting | None = None
    running: dict[str, str] | None = None
    terminated: Waiting | None = None


class ContainerStatus(Seen, frozen=True):
    name: str
    image: str = ""
    ready: bool = False
    restart_count: int = 0
    state: ContainerState = ContainerState()


class PodSpec(Seen, frozen=True):
    node_name: str = ""


class PodStatus(Seen, frozen=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    pod_i_p: str = msgspec.field(name="podIP", default="")
    conditions: tuple[Condition, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(Seen, frozen=True):
    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    def condition(self, name: str) -> Condition | None:
        return next((c for c in self.status.conditions if c.type == name), None)

    @property
    def ready(self) -> bool:
        """Ready, and not about to go."""
        found = self.condition("Ready")
        return found is not None and found.true and self.metadata.deletion_timestamp is None


class InvolvedObject(Seen, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""


class Series(Seen, frozen=True):
    count: int = 1


class Event(Seen, frozen=True):
    metadata: Metadata
    involved_object: InvolvedObject = InvolvedObject()
    reason: str = ""
    message: str = ""
    type: str = ""
    count: int | None = None
    series: Series | None = None


class ListMeta(Seen, frozen=True):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class ListOf(Seen, Generic[T], frozen=True):
    metadata: ListMeta = ListMeta()
    items: tuple[T, ...] = ()
