"""Finds the features that all servers of a group declare in `/contract`."""

from collections.abc import Sequence
from typing import get_args

import torch

from contracts.conformance.inference.server import Server
from contracts.limits import KvCacheMode

KNOWN = {
    "kv_cache": get_args(KvCacheMode),
    "accepts_dtypes": [name for name, value in vars(torch).items() if isinstance(value, torch.dtype)],
}


async def offered(servers: Sequence[Server], field: str) -> list[str]:
    """Returns the values of `field` that every server declares.

    field: `capabilities`, `kv_cache`, `accepts_dtypes` or `backends`. Cache modes and dtypes that this
    contract does not define are ignored, because a newer server may have more.
    """
    declared = [getattr(await server.contract(), field) for server in servers]
    known = KNOWN.get(field, declared[0])
    return [value for value in declared[0] if value in known and all(value in other for other in declared)]
