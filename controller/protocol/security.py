"""Messages about access: ACLs, authentication by SASL, SCRAM credentials, client quotas.

As in `control`: a value holds the fields of all its versions, under the names of Kafka 2.8, with defaults for those
that a version lacks. The numbers of resource types, operations and the like are in `controller.broker.security.acls`.
"""

from __future__ import annotations

from controller.protocol.schema import (
    Bool,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Records,
    RequestValue,
    ResponseValue,
    String,
    Structure,
    field,
)

LITERAL_PATTERN = 3
"""The pattern type of version 0, which can't say another."""


class DescribeAclsRequest(RequestValue, first=0, last=2, flexible=2):
    """Null matches everything."""

    resource_type_filter: Int8
    resource_name_filter: String | None
    principal_filter: String | None
    host_filter: String | None
    operation: Int8
    permission_type: Int8
    pattern_type_filter: Int8 = field(default=LITERAL_PATTERN, since=1, must=True, before="principal_filter")


class AclDescription(Structure):
    principal: String
    host: String
    operation: Int8
    permission_type: Int8


class DescribeAclsResource(Structure):
    resource_type: Int8
    resource_name: String
    acls: tuple[AclDescription, ...]
    pattern_type: Int8 = field(default=LITERAL_PATTERN, since=1, must=True, before="acls")


class DescribeAclsResponse(ResponseValue, first=0, last=2, flexible=2):
    error_code: Int16
    error_message: String | None = None
    resources: tuple[DescribeAclsResource, ...] = ()
    throttle_time_ms: Int32 = field(default=0, before="error_code")


class AclCreation(Structure):
    resource_type: Int8
    resource_name: String
    principal: String
    host: String
    operation: Int8
    permission_type: Int8
    resource_pattern_type: Int8 = field(default=LITERAL_PATTERN, since=1, must=True, before="principal")


class CreateAclsRequest(RequestValue, first=0, last=2, flexible=2):
    creations: tuple[AclCreation, ...]


class AclCreationResult(Structure):
    error_code: Int16
    error_message: String | None = None


class CreateAclsResponse(ResponseValue, first=0, last=2, flexible=2):
    """A result for each creation, in their order."""

    results: tuple[AclCreationResult, ...]
    throttle_time_ms: Int32 = field(default=0, before="results")


class DeleteAclsFilter(Structure):
    """Null matches everything."""

    resource_type_filter: Int8
    resource_name_filter: String | None
    principal_filter: String | None
    host_filter: String | None
    operation: Int8
    permission_type: Int8
    pattern_type_filter: Int8 = field(default=LITERAL_PATTERN, since=1, must=True, before="principal_filter")


class DeleteAclsRequest(RequestValue, first=0, last=2, flexible=2):
    filters: tuple[DeleteAclsFilter, ...]


class DeletedAcl(Structure):
    error_code: Int16
    error_message: String | None
    resource_type: Int8
    resource_name: String
    principal: String
    host: String
    operation: Int8
    permission_type: Int8
    pattern_type: Int8 = field(default=LITERAL_PATTERN, since=1, must=True, before="principal")


class DeleteAclsFilterResult(Structure):
    error_code: Int16
    error_message: String | None = None
    matching_acls: tuple[DeletedAcl, ...] = ()


class DeleteAclsResponse(ResponseValue, first=0, last=2, flexible=2):
    """A result for each filter, in their order."""

    filter_results: tuple[DeleteAclsFilterResult, ...]
    throttle_time_ms: Int32 = field(default=0, before="filter_results")


class SaslHandshakeRequest(RequestValue, first=0, last=1):
    """Version 0: what follows are the mechanism's own bytes, each with its size. Version 1: SaslAuthenticate."""

    mechanism: String


class SaslHandshakeResponse(ResponseValue, first=0, last=1):
    error_code: Int16
    mechanisms: tuple[String, ...]


class SaslAuthenticateRequest(RequestValue, first=0, last=2, flexible=2):
    auth_bytes: Records


class SaslAuthenticateResponse(ResponseValue, first=0, last=2, flexible=2):
    """`session_lifetime_ms`: when the client has to authenticate again at the latest; 0: never."""

    error_code: Int16
    error_message: String | None = None
    auth_bytes: Records = b""
    session_lifetime_ms: Int64 = field(default=0, since=1)


# ScramCredentialUpsertion.mechanism and its kin
SCRAM_SHA_256 = 1
SCRAM_SHA_512 = 2


class UserName(Structure):
    name: String


class DescribeUserScramCredentialsRequest(RequestValue, first=0, last=0, flexible=0):
    """None or none of them: all users."""

    users: tuple[UserName, ...] | None = None


class CredentialInfo(Structure):
    mechanism: Int8
    iterations: Int32


class DescribedUserScramCredentials(Structure):
    user: String
    error_code: Int16
    error_message: String | None = None
    credential_infos: tuple[CredentialInfo, ...] = ()


class DescribeUserScramCredentialsResponse(ResponseValue, first=0, last=0, flexible=0):
    error_code: Int16
    error_message: String | None = None
    results: tuple[DescribedUserScramCredentials, ...] = ()
    throttle_time_ms: Int32 = field(default=0, before="error_code")


class ScramCredentialDeletion(Structure):
    name: String
    mechanism: Int8


class ScramCredentialUpsertion(Structure):
    name: String
    mechanism: Int8
    iterations: Int32
    salt: Records
    salted_password: Records


class AlterUserScramCredentialsRequest(RequestValue, first=0, last=0, flexible=0):
    deletions: tuple[ScramCredentialDeletion, ...]
    upsertions: tuple[ScramCredentialUpsertion, ...]


class AlteredUserScramCredentials(Structure):
    user: String
    error_code: Int16
    error_message: String | None = None


class AlterUserScramCredentialsResponse(ResponseValue, first=0, last=0, flexible=0):
    results: tuple[AlteredUserScramCredentials, ...]
    throttle_time_ms: Int32 = field(default=0, before="results")


# QuotaFilterComponent.match_type
EXACT_NAME = 0
DEFAULT_NAME = 1
ANY_NAME = 2


class QuotaFilterComponent(Structure):
    """`match` is null unless an exact name is asked for."""

    entity_type: String
    match_type: Int8
    match: String | None = None


class DescribeClientQuotasRequest(RequestValue, first=0, last=1, flexible=1):
    """`strict`: no entities with a part that no component names."""

    components: tuple[QuotaFilterComponent, ...]
    strict: Bool


class QuotaEntityPart(Structure):
    """Null: the default of that type."""

    entity_type: String
    entity_name: String | None


class QuotaValue(Structure):
    key: String
    value: Float64


class DescribedQuotas(Structure):
    entity: tuple[QuotaEntityPart, ...]
    values: tuple[QuotaValue, ...]


class DescribeClientQuotasResponse(ResponseValue, first=0, last=1, flexible=1):
    """Null entries with an error."""

    error_code: Int16
    error_message: String | None = None
    entries: tuple[DescribedQuotas, ...] | None = None
    throttle_time_ms: Int32 = field(default=0, before="error_code")


class QuotaOperation(Structure):
    key: String
    value: Float64
    remove: Bool


class QuotaAlteration(Structure):
    entity: tuple[QuotaEntityPart, ...]
    ops: tuple[QuotaOperation, ...]


class AlterClientQuotasRequest(RequestValue, first=0, last=1, flexible=1):
    entries: tuple[QuotaAlteration, ...]
    validate_only: Bool


class AlteredQuotas(Structure):
    error_code: Int16
    error_message: String | None
    entity: tuple[QuotaEntityPart, ...]


class AlterClientQuotasResponse(ResponseValue, first=0, last=1, flexible=1):
    """A result for each entry, in their order."""

    entries: tuple[AlteredQuotas, ...]
    throttle_time_ms: Int32 = field(default=0, before="entries")
