"""Who may call what: open routes, user routes, admin routes. Keys are compared in constant time."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from enum import Enum

from zerokl.config import Config
from zerokl.server.errors import Refusal
from zerokl.server.fields import message


class Access(Enum):
    OPEN = "open"
    USER = "user"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Keys:
    api: tuple[bytes, ...] = ()
    admin: bytes = b""

    @classmethod
    def of(cls, config: Config) -> Keys:
        return cls(tuple(key.encode() for key in config.api_key if key), config.admin_api_key.encode())

    def admit(self, access: Access, authorization: bytes) -> None:
        """Raises Refusal 401 or 403. An admin route needs the admin key if there is one, else the api key."""
        if access is Access.OPEN:
            return
        wanted = (self.admin,) if access is Access.ADMIN and self.admin else self.api
        if not wanted:
            return
        given = _bearer(authorization)
        if _among(given, wanted) or (access is Access.USER and self.admin and _among(given, (self.admin,))):
            return
        if access is Access.ADMIN and self.admin and _among(given, self.api):
            raise Refusal(403, message("admin_only"))
        raise Refusal(401, message("bad_key" if given else "no_key"), code="invalid_api_key")


def _bearer(authorization: bytes) -> bytes:
    scheme, _, key = authorization.strip().partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def _among(given: bytes, keys: tuple[bytes, ...]) -> bool:
    """Every key is compared, so the time tells nothing about which one was near."""
    return bool(sum(hmac.compare_digest(given, key) for key in keys)) and bool(given)
