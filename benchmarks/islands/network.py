"""Islands in network namespaces, each with a slow link to this machine.

It needs root, the commands `ip` and `tc`, and a kernel with bridges.
"""

import json
import os
import subprocess

SUBNET = "10.255.77"
HERE = f"{SUBNET}.254"  # this machine's address, which all islands reach


def address(number: int) -> str:
    """Returns the address of an island."""
    return f"{SUBNET}.{number + 1}"


class Network:
    """A bridge in this machine's namespace, and a namespace for each island. Close it at the end."""

    def __init__(self, islands: int, megabit: float):
        """megabit: the rate of each link, each way, in Mbit/s."""
        self._islands = range(islands)
        self._bridge = f"isl{os.getpid()}"
        try:
            _ip("link", "add", self._bridge, "type", "bridge")
            _ip("addr", "add", f"{HERE}/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
            for number in self._islands:
                self._connect(number)
                self._slow(number, megabit)
        except BaseException:
            self.close()
            raise

    def _connect(self, number: int) -> None:
        namespace = self._namespace(number)
        _ip("netns", "add", namespace)
        _ip("link", "add", self._port(number), "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _ip("link", "set", self._port(number), "master", self._bridge, "up")
        _ip("-n", namespace, "addr", "add", f"{address(number)}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", namespace, "link", "set", device, "up")

    def _slow(self, number: int, megabit: float) -> None:
        limit = ["rate", f"{megabit}mbit", "burst", "64kb", "latency", "400ms"]
        shaped = ["qdisc", "add", "dev", "eth0", "root", "tbf", *limit]
        subprocess.run(["tc", "-n", self._namespace(number), *shaped], check=True)

    def _namespace(self, number: int) -> str:
        return f"{self._bridge}-{number}"

    def _port(self, number: int) -> str:
        return f"{self._bridge}p{number}"

    def inside(self, number: int) -> list[str]:
        """Returns what comes before a command that runs in the island's namespace."""
        return ["ip", "netns", "exec", self._namespace(number)]

    def sent_bytes(self, number: int) -> int:
        """Returns the bytes that have left the island's interface, with all headers."""
        (found,) = json.loads(_ip("-n", self._namespace(number), "-json", "-s", "link", "show", "eth0"))
        return found["stats64"]["tx"]["bytes"]

    def close(self) -> None:
        """Ends the namespaces and the bridge. Processes in them must have ended."""
        ends = [["netns", "del", self._namespace(number)] for number in self._islands]
        for end in [*ends, ["link", "del", self._bridge]]:
            subprocess.run(["ip", *end], check=False, stderr=subprocess.DEVNULL)


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout
