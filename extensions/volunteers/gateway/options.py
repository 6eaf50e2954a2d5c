"""The gateway's options, and their checks."""

import argparse
import ipaddress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

STATE = "volunteers"  # default of --state


class GatewayOptions(NamedTuple):
    """The options of the gateway besides those of every server; `add_options` describes them."""

    model: str
    dtype: str
    device: str
    state: Path
    public_host: str
    public_port: int
    public_url: str | None
    public_sources: list[str]
    certificate: Path | None
    key: Path | None
    behind_proxy: str | None
    behind: int
    task_size: int
    uploads: int
    request_timeout_s: float
    volunteer_dtype: str
    require: str | None
    observe: bool

    @classmethod
    def of(cls, args: argparse.Namespace) -> "GatewayOptions":
        """Raises ValueError, with a one-line message, if options do not fit together."""
        options = cls(**{name: getattr(args, name) for name in cls._fields})
        check_public(options.public_host, options.certificate, options.key, options.behind_proxy)
        return options

    @property
    def needs_calibration(self) -> bool:
        """True if strangers can reach it, and round in their own ways."""
        is_open = bool(self.behind_proxy) or not _is_loopback(self.public_host)
        return is_open and not self.observe and {self.dtype, self.volunteer_dtype} != {"float32"}


def check_public(host: str, certificate: object, key: object, behind_proxy: object) -> None:
    """Raises ValueError, with a one-line message, for a listener that strangers reach without TLS."""
    if bool(certificate) != bool(key):
        raise ValueError("certificate and key are given together")
    if certificate and behind_proxy:
        raise ValueError("behind_proxy: the proxy has the certificate; leave certificate out")
    if not (_is_loopback(host) or certificate or behind_proxy):
        raise ValueError(
            f"public_host={host} without TLS: give certificate and key, or behind_proxy with the address of "
            "a proxy that has them"
        )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the gateway's options to a parser that has those of every server."""
    parser.add_argument("--model", required=True, help="directory of the model with which it audits")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of the audit")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of the audit")
    parser.add_argument(
        "--state", type=Path, default=Path(STATE), help="directory of key, registry and ledger"
    )
    parser.add_argument("--public-host", default="127.0.0.1", help="address for volunteers")
    parser.add_argument(
        "--public-port", type=int, default=8470, help="port for volunteers; 0 takes a free one"
    )
    parser.add_argument("--public-url", type=_url, help="URL of the gateway for volunteers, in invite links")
    parser.add_argument(
        "--public-sources",
        type=_urls,
        default=[],
        help="relays as volunteers reach them; commas between URLs",
    )
    parser.add_argument(
        "--certificate", type=Path, help="PEM file of the public listener's certificate chain"
    )
    parser.add_argument("--key", type=Path, help="PEM file of its private key")
    parser.add_argument("--behind-proxy", metavar="ADDRESS", help="a proxy there has TLS, and is trusted")
    parser.add_argument("--behind", type=_count, default=1, help="most versions a task may be behind")
    parser.add_argument("--task-size", type=_positive, default=16, help="most completions of a task")
    parser.add_argument("--uploads", type=_positive, default=64, help="most uploads that wait for the audit")
    parser.add_argument(
        "--request-timeout-s", type=float, default=300.0, help="a task's time is a third of it"
    )
    parser.add_argument(
        "--volunteer-dtype",
        choices=["float32", "bfloat16"],
        default="float32",
        help="with which volunteers compute; the tolerance of the audit depends on it",
    )
    parser.add_argument(
        "--require",
        choices=["commitments"],
        help="volunteers prove what their models computed; it needs a calibration",
    )
    parser.add_argument(
        "--observe", action="store_true", help="refuse nothing, and write what honest volunteers differ by"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise argparse.ArgumentTypeError(f"{text} is no http:// or https:// URL")
    return text.rstrip("/")


def _urls(text: str) -> list[str]:
    return [_url(each.strip()) for each in text.strip("[]").split(",") if each.strip()]


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: 1 or more")
    return int(text)


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text}: 0 or more")
    return int(text)
