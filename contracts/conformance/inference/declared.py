"""What the servers of a group have in common, by what they declare in `/contract`."""

from collections.abc import Sequence
from typing import get_args

import torch

from contracts.conformance.inference.server import Server
from contracts.inference import KvCacheMode

KNOWN = {
    "kv_cache": get_args(KvCacheMode),
    "accepts_dtypes": [name for name, value in vars(torch).items() if isinstance(value, torch.dtype)],
}


async def offered(servers: Sequence[Server], field: str) -> list[str]:
    """Returns what every server declares in `capabilities`, `kv_cache`, `accepts_dtypes` or `backends`.

    A cache mode or dtype that the contract does not name is left out: a newer server may have more.
    """
    declared = [getattr(await server.contract(), field) for server in servers]
    known = KNOWN.get(field, declared[0])
    return [value for value in declared[0] if value in known and all(value in other for other in declared)]
