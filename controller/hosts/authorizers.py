"""The authorizer that `authorizer.class.name` names as MODULE:CLASS."""

from __future__ import annotations

import importlib

from controller.broker.security.acls import Authorizer
from controller.broker.settings import ACL_AUTHORIZERS, BadSettings, BrokerSettings


def load_authorizer(settings: BrokerSettings) -> Authorizer | None:
    """Make the authorizer with the given settings; None if it is Kafka's, or none is named. Raises BadSettings."""
    named = settings.authorizer_class
    if not named or named in ACL_AUTHORIZERS:
        return None
    module, _, name = named.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)(dict(settings.given))
    except Exception as error:
        raise BadSettings((f"authorizer.class.name={named}: {type(error).__name__}: {error}",)) from error
    missing = [method for method in ("allows", "allows_some") if not callable(getattr(made, method, None))]
    if missing:
        raise BadSettings((f"authorizer.class.name={named}: expected the methods allows and allows_some",))
    return made  # type: ignore[no-any-return]
