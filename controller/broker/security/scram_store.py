"""SCRAM credentials in ZooKeeper, in Kafka's form, and the requests that set and describe them (KIP-554).

/config/users/NAME is a config with a text for each mechanism of the user. Each broker keeps the texts of all users in
memory, as `EntityConfigReader` reads them: users get in while ZooKeeper is away. Until it has read them the first time,
the credential is read at each authentication.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Coroutine, Mapping
from typing import Any
from urllib.parse import unquote

import msgspec

from controller.broker.entity_configs import USER, EntityConfigs, entity_of
from controller.broker.quotas.rules import sanitised
from controller.broker.request_context import SLICE, Steps, on_broker_thread
from controller.broker.security.scram import (
    LEAST_ITERATIONS,
    MECHANISMS,
    MOST_ITERATIONS,
    ScramCredential,
    credential_of,
    parse_credential,
)
from controller.clock import Clock, Future, spawn
from controller.protocol.codec import ApiKey
from controller.protocol.errors import ErrorCode
from controller.protocol.security import (
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    AlteredUserScramCredentials,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CredentialInfo,
    DescribedUserScramCredentials,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from controller.trace import Noted, Trace
from controller.zookeeper import paths
from controller.zookeeper.broker_writes import BrokerDataWrites
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.codecs import decode_config
from controller.zookeeper.operations import DamagedZnode, Znode, ZooKeeperError

NAMES = {SCRAM_SHA_256: "SCRAM-SHA-256", SCRAM_SHA_512: "SCRAM-SHA-512"}
NUMBERS = {name: number for number, name in NAMES.items()}
USERS_MAX = 1_000
"""Users that one request may name."""


def is_user_name(user: str) -> bool:
    """Whether a znode may be called so."""
    return user not in ("", ".", "..")


def user_path(user: str) -> str:
    return paths.child(paths.CONFIG_USERS, sanitised(user))


class CredentialRefused(Exception):
    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error


class ScramStore:
    """All of it is called on the broker's thread; `read` may be answered on another."""

    def __init__(self, client: ZooKeeperClient, clock: Clock, trace: Trace) -> None:
        self._client = client
        self._writes = BrokerDataWrites(client)
        self._clock = clock
        self._trace = trace
        self._known: dict[str, Mapping[str, str]] | None = None
        """The texts of credentials by mechanism, by the user's path below /config; None: not read yet."""

    @property
    def handlers(self) -> Mapping[ApiKey, Callable[[Any, int, Callable[[Any], None]], Steps | None]]:
        return {ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: self.describe, ApiKey.ALTER_USER_SCRAM_CREDENTIALS: self.alter}

    def take(self, configs: EntityConfigs, *, whole: bool) -> None:
        """As `EntityConfigReader` has read them."""
        if whole:
            self._known = {path: texts for path, texts in (self._known or {}).items() if path in configs}
        if self._known is None:
            return
        for path, config in configs.items():
            if config is None or (entity_of(path) or {}).keys() != {USER}:
                continue
            texts = {name: config[name] for name in MECHANISMS if name in config}
            if texts:
                self._known[path] = texts
            else:
                self._known.pop(path, None)

    def read(self, user: str, mechanism: str) -> Future[ScramCredential | None]:
        return spawn(self._read(user, mechanism))

    async def _read(self, user: str, mechanism: str) -> ScramCredential | None:
        if not is_user_name(user):
            return None
        path = user_path(user)
        if self._known is not None:
            config = self._known.get(path.removeprefix(f"{paths.CONFIG}/"), {})
        else:
            (row,) = (await self._client.read([path])).rows
            config = {} if row is None else decode_config(path, row.data).config
        text = config.get(mechanism)
        return None if text is None else parse_credential(text)

    # -- requests

    def alter(
        self,
        request: AlterUserScramCredentialsRequest,
        version: int,
        answer: Callable[[AlterUserScramCredentialsResponse], None],
    ) -> Steps:
        changes: dict[str, _Changes] = {}
        asked: tuple[ScramCredentialDeletion | ScramCredentialUpsertion, ...]
        asked = (*request.deletions, *request.upsertions)
        for at, one in enumerate(asked):
            known = changes.get(one.name)
            if known is None:
                known = changes[one.name] = _Changes()
            if isinstance(one, ScramCredentialUpsertion):
                known.upsertions.append(one)
            else:
                known.deletions.append(one.mechanism)
            if at % SLICE == SLICE - 1:
                yield None
        results: list[AlteredUserScramCredentials] = []
        if len(changes) > USERS_MAX:
            why = f"{len(changes)} users: expected at most {USERS_MAX}"
            for at, user in enumerate(changes):
                results.append(AlteredUserScramCredentials(user, ErrorCode.UNACCEPTABLE_CREDENTIAL, why))
                if at % SLICE == SLICE - 1:
                    yield None
            answer(AlterUserScramCredentialsResponse(tuple(results)))
            return

        async def write() -> None:
            for user, wanted in changes.items():
                results.append(await self._altered(user, wanted.deletions, wanted.upsertions))

        self._then(write(), lambda: answer(AlterUserScramCredentialsResponse(tuple(results))))

    async def _altered(
        self, user: str, deletions: list[int], upsertions: list[ScramCredentialUpsertion]
    ) -> AlteredUserScramCredentials:
        def changed(config: Mapping[str, str]) -> Mapping[str, str]:
            result = dict(config)
            for mechanism in deletions:
                if result.pop(_mechanism(mechanism), None) is None:
                    missing = "Attempt to delete a user credential that does not exist"
                    raise CredentialRefused(ErrorCode.RESOURCE_NOT_FOUND, missing)
            for one in upsertions:
                result[_mechanism(one.mechanism)] = _credential(one).text()
            return result

        try:
            if not is_user_name(user):
                raise CredentialRefused(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"user {user!r}: expected a name")
            named = [*deletions, *(one.mechanism for one in upsertions)]
            if len(set(named)) < len(named):
                raise CredentialRefused(
                    ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in one request"
                )
            path = user_path(user)
            await self._writes.change_config(path, f"users/{path.rpartition('/')[2]}", changed)
        except CredentialRefused as refused:
            return AlteredUserScramCredentials(user, refused.error, str(refused))
        except ZooKeeperError as error:
            self._trace.emit(Noted("warning", f"the credential of user {user:.100} was not written: {error}"))
            return AlteredUserScramCredentials(user, ErrorCode.UNKNOWN_SERVER_ERROR, "the credential was not written")
        return AlteredUserScramCredentials(user, ErrorCode.NONE)

    def describe(
        self,
        request: DescribeUserScramCredentialsRequest,
        version: int,
        answer: Callable[[DescribeUserScramCredentialsResponse], None],
    ) -> None:
        if len(request.users or ()) > USERS_MAX:
            why = f"{len(request.users or ())} users: expected at most {USERS_MAX}"
            answer(DescribeUserScramCredentialsResponse(ErrorCode.INVALID_REQUEST, why, ()))
            return
        named = [one.name for one in request.users or ()]
        results: list[DescribedUserScramCredentials] = []

        async def read() -> None:
            users = named
            if not named:
                names = (await self._client.children([paths.CONFIG_USERS])).children[0] or ()
                users = sorted(unquote(name) for name in names if name != "<default>")
            wanted = [user for user in users if is_user_name(user)]
            rows = (await self._client.read([user_path(user) for user in wanted])).rows if wanted else ()
            found = dict(zip(wanted, rows, strict=True))
            for user in users:
                try:
                    infos = _infos(found.get(user))
                except (DamagedZnode, ValueError) as error:
                    self._trace.emit(Noted("error", f"the credentials of user {user:.100} can't be read: {error}"))
                    damaged = "the credentials in ZooKeeper can't be read"
                    results.append(DescribedUserScramCredentials(user, ErrorCode.UNKNOWN_SERVER_ERROR, damaged))
                    continue
                if infos:
                    results.append(DescribedUserScramCredentials(user, ErrorCode.NONE, None, infos))
                elif named:
                    missing = f"Attempt to describe a user credential that does not exist: {user[:100]}"
                    results.append(DescribedUserScramCredentials(user, ErrorCode.RESOURCE_NOT_FOUND, missing))

        def respond(failed: bool) -> None:
            error = ErrorCode.UNKNOWN_SERVER_ERROR if failed else ErrorCode.NONE
            answer(DescribeUserScramCredentialsResponse(error, None, () if failed else tuple(results)))

        self._then(read(), lambda: respond(False), lambda: respond(True))

    def _then(
        self, work: Coroutine[Any, Any, None], answer: Callable[[], None], failed: Callable[[], None] | None = None
    ) -> None:
        done = spawn(work)

        def finished() -> None:
            if isinstance(done.error, ZooKeeperError):
                self._trace.emit(Noted("warning", f"SCRAM credentials were not read: {done.error}"))
                (failed or answer)()
            elif done.error is not None:
                text = "".join(traceback.format_exception(done.error)).rstrip()
                self._trace.emit(Noted("error", f"a request about SCRAM credentials failed\n{text}"))
                (failed or answer)()
            else:
                answer()

        on_broker_thread(done, self._clock, finished)


class _Changes(msgspec.Struct):
    """What a request asks for one user."""

    deletions: list[int] = []
    upsertions: list[ScramCredentialUpsertion] = []


def _infos(row: Znode | None) -> tuple[CredentialInfo, ...]:
    """Raises DamagedZnode; ValueError."""
    config = {} if row is None else decode_config(row.path, row.data).config
    return tuple(
        CredentialInfo(NUMBERS[name], parse_credential(config[name]).iterations)
        for name in MECHANISMS
        if name in config
    )


def _mechanism(number: int) -> str:
    if number not in NAMES:
        raise CredentialRefused(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    return NAMES[number]


def _credential(one: ScramCredentialUpsertion) -> ScramCredential:
    mechanism = _mechanism(one.mechanism)
    if not LEAST_ITERATIONS <= one.iterations <= MOST_ITERATIONS:
        expected = f"expected {LEAST_ITERATIONS} to {MOST_ITERATIONS}"
        raise CredentialRefused(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"{one.iterations} iterations: {expected}")
    salt, salted = bytes(one.salt), bytes(one.salted_password)  # type: ignore[arg-type]
    if not salt or not salted:
        raise CredentialRefused(ErrorCode.UNACCEPTABLE_CREDENTIAL, "expected a salt and a salted password")
    return credential_of(mechanism, salted, salt, one.iterations)
