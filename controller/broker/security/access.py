"""What a broker's settings say of access, put together: the authorizer and its ACLs in ZooKeeper, credentials, quotas,
and their requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from controller.broker.entity_configs import EntityConfigReader
from controller.broker.metadata import MetadataCache
from controller.broker.quotas.clients import ClientQuotas
from controller.broker.quotas.store import QuotaStore
from controller.broker.request_context import Steps
from controller.broker.security.acl_store import ACL_APIS, AclStore, without_authorizer
from controller.broker.security.acls import AclRules, Authorizer
from controller.broker.security.bounded_notes import BoundedNotes
from controller.broker.security.control_plane import ReadEpoch, read_controller_epoch
from controller.broker.security.guard import AccessGuard
from controller.broker.security.scram_store import ScramStore
from controller.broker.settings import ACL_AUTHORIZERS, BrokerSettings
from controller.clock import Clock
from controller.protocol.codec import ApiKey
from controller.trace import Noted, Trace
from controller.zookeeper.client import ZooKeeperClient

Handle: TypeAlias = Callable[[Any, int, Callable[[Any], None]], Steps | None]


class AccessControl:
    """`authorizer`: the one of authorizer.class.name if that is none of Kafka's; None if there is none."""

    def __init__(
        self,
        settings: BrokerSettings,
        client: ZooKeeperClient,
        clock: Clock,
        trace: Trace,
        authorizer: Authorizer | None = None,
    ) -> None:
        self._trace, self._clock = trace, clock
        self._creates_topics = settings.auto_create_topics
        self.read_epoch: ReadEpoch = partial(read_controller_epoch, client)
        self.credentials = ScramStore(client, clock, trace)
        self.quotas = ClientQuotas(settings.quotas, clock)
        self.quota_store = QuotaStore(self.quotas, client, clock, trace)
        takers = (self.quota_store.take, self.credentials.take)
        self.entity_configs = EntityConfigReader(client, clock, trace, takers)
        self.store: AclStore | None = None
        self.authorizer = authorizer
        if authorizer is None and settings.authorizer_class in ACL_AUTHORIZERS:
            rules = AclRules(settings.super_users, allow_if_none=settings.allow_everyone_if_no_acl_found)
            self.authorizer = rules
            self.store = AclStore(rules, client, clock, trace)

    @property
    def handlers(self) -> Mapping[ApiKey, Handle]:
        acls: Mapping[ApiKey, Handle] = dict.fromkeys(ACL_APIS, without_authorizer)
        if self.store is not None:
            acls = self.store.handlers
        return {**acls, **self.credentials.handlers, **self.quota_store.handlers}

    def guard(self, metadata: MetadataCache) -> AccessGuard | None:
        """What checks the broker's requests; None if nothing does."""
        if self.authorizer is None:
            return None
        may_decide_for = self.store.rules.may_decide_for if self.store is not None else lambda _client: True
        return AccessGuard(
            self.authorizer,
            metadata,
            BoundedNotes(self._clock, lambda level, line: self._trace.emit(Noted(level, line))),
            creates_topics=self._creates_topics,
            may_decide_for=may_decide_for,
        )

    def start(self) -> None:
        """Once there is a session."""
        if self.store is not None:
            self.store.start()

    def acls_changed(self) -> None:
        if self.store is not None:
            self.store.check()


def access_handlers(access: AccessControl | None) -> Mapping[ApiKey, Handle]:
    """What answers the requests about access; None: a broker that has no ZooKeeper."""
    return dict.fromkeys(ACL_APIS, without_authorizer) if access is None else access.handlers
