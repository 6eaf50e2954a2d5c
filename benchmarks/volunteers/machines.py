"""The processes of the benchmark: the run, nginx as relays, and the volunteers."""

import datetime
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from benchmarks.run_processes import jobs_of
from contracts.support.ports import ReservedPort
from pipelinerl.paths import ROOT

ROOM = 64  # completions of a task: the demo's have three tokens
CONFIG = ROOT / "examples" / "relay" / "public.conf"
METRIC = re.compile(r"^(volunteers_\S+) (\S+)$", re.MULTILINE)


class Certificate:
    """A certificate of localhost that signs itself; `environment` makes processes trust it."""

    def __init__(self, directory: Path):
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=7))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
            .sign(key, hashes.SHA256())
        )
        self.file = directory / "certificate.pem"
        self.key = directory / "key.pem"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        raw = serialization.PrivateFormat.PKCS8
        self.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, raw, serialization.NoEncryption()))

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"SSL_CERT_FILE": str(self.file), "OMP_NUM_THREADS": "1"}


class NginxRelays:
    """nginx with the example of a public relay, several times, in front of one origin."""

    def __init__(self, directory: Path, certificate: Certificate, number: int):
        self._directory = directory
        self._certificate = certificate
        self._origin = ReservedPort()
        self._ports = [ReservedPort() for _ in range(number)]
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def settings(self) -> list[str]:
        urls = ",".join(f"https://localhost:{port.number}" for port in self._ports)
        return [
            f"weights.origin_port={self._origin.number}",
            f"weights.relays=[{urls}]",
            f"inference.arguments.public_sources='{urls}'",
        ]

    def __enter__(self) -> Self:
        for number, port in enumerate(self._ports):
            self._processes.append(self._started(self._directory / f"relay-{number}", port.number))
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
            process.wait()

    def _started(self, directory: Path, port: int) -> subprocess.Popen[bytes]:
        config = CONFIG.read_text()
        for before, after in (
            ("127.0.0.1:8100", f"127.0.0.1:{self._origin.number}"),
            ("0.0.0.0:443", f"127.0.0.1:{port}"),
            ("/etc/ssl/relay.pem", str(self._certificate.file)),
            ("/etc/ssl/relay.key", str(self._certificate.key)),
        ):
            assert config.count(before) == 1, before
            config = config.replace(before, after)
        directory.mkdir()
        (directory / "relay.conf").write_text(config)
        command = ["nginx", "-p", str(directory), "-c", str(directory / "relay.conf")]
        if os.geteuid() == 0:
            command += ["-g", "user root;"]
        return subprocess.Popen(command)


def started(
    out: Path,
    certificate: Certificate,
    relays: NginxRelays,
    steps: int,
    trusted: bool,
    *more: str,
    tls: bool = True,
) -> subprocess.Popen[bytes]:
    """Starts the run. trusted: with one trusted server beside the gateway. more: settings."""
    command = [sys.executable, "launch.py", "inference=volunteers", "weights=relay", f"run_dir={out / 'run'}"]
    command += [f"max_steps={steps}", "weights.keep=1000", *relays.settings]
    options = gateway_options(out, certificate) if tls else []
    command += [*more, *(f"inference.arguments.{name}={value}" for name, value in options)]
    command += [f"inference.arguments.state={out / 'state'}", "inference.arguments.public_port=0"]
    command += ["inference.concurrency=192", f"inference.arguments.task_size={ROOM}"]
    if trusted:
        command += ["+inference@inference.others.trusted=transformers", "world.servers=2"]
    return _process(command, certificate, out / "launch.log")


def gateway_options(out: Path, certificate: Certificate) -> list[tuple[str, str]]:
    return [
        ("public_host", "localhost"),
        ("certificate", str(certificate.file)),
        ("key", str(certificate.key)),
    ]


def joined(out: Path, certificate: Certificate, label: str, cheat: str = "") -> subprocess.Popen[bytes]:
    """Starts a volunteer with an invite of its own. cheat: its name in `cheater`, "" for an honest one."""
    command = [sys.executable, "-m", "extensions.volunteers", "invite", "--state", str(out / "state")]
    link = subprocess.run([*command, "--label", label], capture_output=True, text=True, check=True, cwd=ROOT)
    directory = out / label
    directory.mkdir()
    command = [sys.executable, "-m"]
    if cheat:
        command += ["benchmarks.volunteers.cheater", cheat, link.stdout.strip(), str(directory)]
    else:
        command += ["extensions.volunteers", "join", link.stdout.strip(), "--directory", str(directory)]
        command += ["--room", str(ROOM)]
    return _process(command, certificate, out / f"{label}.log")


def _process(command: list[str], certificate: Certificate, log: Path) -> subprocess.Popen[bytes]:
    with log.open("w") as said:
        return subprocess.Popen(
            command, cwd=ROOT, env=certificate.environment, stdout=said, stderr=said, stdin=subprocess.DEVNULL
        )


def ended(process: subprocess.Popen[bytes]) -> None:
    """Ends a volunteer as Ctrl-C does."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    process.wait()


def gateway_metrics(run_dir: Path) -> dict[str, float]:
    """Returns the gateway's own metrics; nothing while it does not answer."""
    try:
        process = Path(f"/proc/{jobs_of(run_dir)['server-0']}")
        command = process.joinpath("cmdline").read_text().split("\0")
        environment = dict(
            each.partition("=")[::2] for each in process.joinpath("environ").read_text().split("\0")
        )
        request = urllib.request.Request(
            f"http://127.0.0.1:{command[command.index('--port') + 1]}/metrics",
            headers={"Authorization": f"Bearer {environment['PIPELINERL_TOKEN']}"},
        )
        with urllib.request.urlopen(request, timeout=5) as response:
            text = response.read().decode()
    except (OSError, KeyError, ValueError):
        return {}
    return {name: float(value) for name, value in METRIC.findall(text)}


def wait_for(path: Path, process: subprocess.Popen[bytes], longest_s: float) -> None:
    """Waits until a file is there. Exits if the process ends before."""
    began = time.monotonic()
    while not path.is_file():
        if process.poll() is not None or time.monotonic() - began > longest_s:
            sys.exit(f"{path} has not come")
        time.sleep(0.2)
