"""Ranks that somebody else started, on one machine or several (torchrun, or by hand), and how they find each other.

    rank 0    listens ◀── rank r: its channel, its line of life, a connection for parts
              ── where everybody listens ──▶ rank r
    rank r    connects to the ranks below it, and takes the connections of those above

Nobody listens any longer than this takes. Who connects must say the same run and size, and a rank that is missing.
There is no other proof of who it is, and nothing is encrypted, as between the GPUs: the network must be trusted.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from ipaddress import ip_address
from typing import Annotated, Any, TypeVar

import msgspec

from zerokl.errors import ConfigError
from zerokl.parallel.channel import Channel
from zerokl.parallel.launch import Address
from zerokl.parallel.ranks import END_S, PEER_GONE, Ranks
from zerokl.parallel.tcp import TcpGroup, at_once_and_watched

log = logging.getLogger(__name__)

PATIENCE_S = 600.0
"""Until all have met: other machines may still be loading their containers."""
HELLO_S = 5.0
LONGEST_HELLO = 65536
MOST_PORTS = 65535
PORT_KEY = "zerokl/port"
RETRY_S = 0.2
ROLES = ("channel", "life", "parts")
IN_ORDER, BY_A_PEER = b"e", b"p"
"""Last words on a line of life: rank 0's, that all is well; another's, that it is not to blame."""
WHERE = "--distributed-executor-backend external_launcher"

Said = TypeVar("Said", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Place:
    """Which rank this process is, and where rank 0's machine is found."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    host: str
    port: int
    run: str = ""
    """Names the group: a rank of another one is not taken."""
    agent_has_port: bool = False
    """torchrun itself listens at `port`, and keeps what ranks leave there for each other."""


def place_of(environment: Mapping[str, str], size: int) -> Place:
    """From the variables that torchrun sets. Raises ConfigError."""

    def number(name: str, default: str | None = None) -> int:
        value = environment.get(name, default)
        if value is None:
            raise ConfigError(f"{WHERE}: the variable {name} is not set; start this with torchrun")
        if not value.isdecimal():
            raise ConfigError(f"{WHERE}: {name} is {value!r}, not a number")
        return int(value)

    rank, ranks = number("RANK"), number("WORLD_SIZE")
    if ranks != size:
        raise ConfigError(f"--tp {size}: {ranks} processes were started (WORLD_SIZE); there must be one for each rank")
    port = number("MASTER_PORT")
    if not 0 < port <= MOST_PORTS:
        raise ConfigError(f"{WHERE}: MASTER_PORT is {port}, not 1 to {MOST_PORTS}")
    if rank >= ranks:
        raise ConfigError(f"{WHERE}: RANK is {rank}, but WORLD_SIZE {ranks}")
    return Place(
        rank,
        ranks,
        number("LOCAL_RANK", "0"),
        number("LOCAL_WORLD_SIZE", "1"),
        environment.get("MASTER_ADDR", "127.0.0.1"),
        port,
        environment.get("TORCHELASTIC_RUN_ID", ""),
        environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


class Hello(msgspec.Struct, forbid_unknown_fields=True):
    """First on every connection."""

    run: str
    size: int
    rank: int
    role: str
    port: Annotated[int, msgspec.Meta(ge=0, le=MOST_PORTS)] = 0
    """Where the rank listens for those above it."""


class Told(msgspec.Struct):
    """What rank 0 answers on the channel, once all are there, or why it won't have this one."""

    error: str = ""
    listening: dict[int, Address] = {}
    store: int = 0
    """The port at which ranks on GPUs meet first."""


class Remote:
    """A rank that somebody else started. A `ranks.Member`."""

    def __init__(self, life: socket.socket, host: str) -> None:
        self._life, self._host = life, host
        self._ended = threading.Event()
        self._last_word = b""
        threading.Thread(target=self._listen, name="life", daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            self._last_word = self._life.recv(1)
        self._ended.set()

    def wait(self) -> None:
        self._ended.wait()

    def cause(self) -> str | None:
        if not self._ended.is_set() or self._last_word == BY_A_PEER:
            return None
        return f"on {self._host} is gone; its log says why"

    def end(self, in_order: bool) -> None:
        with contextlib.suppress(OSError):
            if in_order:
                self._life.sendall(IN_ORDER)
            self._life.shutdown(socket.SHUT_WR)
        self._ended.wait(END_S)
        self._life.close()


@dataclass(frozen=True, slots=True)
class Follower:
    """Another rank's side."""

    group: TcpGroup
    channel: Channel
    store: Address
    life: socket.socket

    def status(self, is_peer_gone: bool = False) -> int:
        """What to end with, once rank 0 has closed the channel or a peer is gone; tells rank 0 which it was."""
        with contextlib.suppress(OSError):
            if is_peer_gone:
                self.life.sendall(BY_A_PEER)
            elif self.life.recv(1) == IN_ORDER:
                return 0
        return PEER_GONE


def lead(place: Place, store_port: int = 0, patience_s: float = PATIENCE_S) -> Ranks:
    """Rank 0: wait for all others. Raises ConfigError if they don't come."""
    deadline = time.monotonic() + patience_s
    with listening(0 if place.agent_has_port else place.port) as listener:
        if place.agent_has_port:
            leave_port(place, port_of(listener), patience_s)
        ranks = range(1, place.size)
        met = meet(place, listener, {(rank, role) for rank in ranks for role in ROLES}, deadline)
    heard = {rank: met[rank, "channel"] for rank in ranks}
    told = Told(listening={rank: (host_seen_by_all(place, one), one.hello.port) for rank, one in heard.items()})
    told.store = store_port
    for one in heard.values():
        say(one.connection, told)
    group = TcpGroup(0, {rank: met[rank, "parts"].connection for rank in ranks}, place.local_rank, place.local_size)
    members = [Remote(met[rank, "life"].connection, host_of(met[rank, "life"].connection)) for rank in ranks]
    return Ranks(group, members, [Channel(heard[rank].connection) for rank in ranks])


def follow(place: Place, patience_s: float = PATIENCE_S) -> Follower:
    """Another rank: find rank 0, then the others. Raises ConfigError if they aren't found, or don't want this one."""
    deadline = time.monotonic() + patience_s
    leader = partial(left_port, place, patience_s) if place.agent_has_port else place.port
    with listening(0) as listener:

        def hello(role: str) -> Hello:
            return Hello(place.run, place.size, place.rank, role, port_of(listener))

        channel = connected(place.host, leader, hello("channel"), deadline)
        port = channel.getpeername()[1]
        life, parts = (connected(place.host, port, hello(role), deadline) for role in ROLES[1:])
        told = heard_on(channel, Told, deadline)
        if told.error:
            raise ConfigError(f"rank 0 on {place.host} doesn't take this rank: {told.error}")
        peers = {0: parts}
        for rank in range(1, place.rank):
            peers[rank] = connected(*told.listening[rank], hello("parts"), deadline)
        above = {(rank, "parts") for rank in range(place.rank + 1, place.size)}
        peers |= {rank: one.connection for (rank, _), one in meet(place, listener, above, deadline).items()}
    for connection in (channel, life):
        connection.settimeout(None)
    group = TcpGroup(place.rank, peers, place.local_rank, place.local_size)
    return Follower(group, Channel(channel), (place.host, told.store), life)


@dataclass(frozen=True, slots=True)
class Met:
    hello: Hello
    connection: socket.socket = field(repr=False)


def meet(
    place: Place, listener: socket.socket, missing: set[tuple[int, str]], deadline: float
) -> dict[tuple[int, str], Met]:
    """Connections by rank and role, until none is missing; others are told why they aren't wanted."""
    missing, met = set(missing), {}
    while missing:
        listener.settimeout(max(0.0, deadline - time.monotonic()))
        try:
            connection, address = listener.accept()
        except OSError as error:
            ranks = sorted({rank for rank, _ in missing})
            raise ConfigError(f"ranks {ranks} of {place.size} did not come in time") from error
        try:
            hello = heard_on(connection, Hello, time.monotonic() + HELLO_S)
        except ConfigError as error:
            log.warning("a connection from %s is no rank's: %s", address[0], error)
            connection.close()
            continue
        problem = refusal(place, hello, missing)
        if problem:
            log.warning("a rank on %s is refused: %s", address[0], problem)
            say(connection, Told(error=problem))
            connection.close()
            continue
        connection.settimeout(None)
        at_once_and_watched(connection)
        missing.remove((hello.rank, hello.role))
        met[hello.rank, hello.role] = Met(hello, connection)
    return met


def host_seen_by_all(place: Place, met: Met) -> str:
    """Where a rank's machine is found from any other: rank 0's own machine may be a loopback address to itself."""
    host = host_of(met.connection)
    return place.host if ip_address(host).is_loopback else host


def refusal(place: Place, hello: Hello, missing: set[tuple[int, str]]) -> str:
    """Why this one isn't wanted; "" if it is."""
    if hello.run != place.run:
        return f"it is of run {hello.run!r}, this is {place.run!r}"
    if hello.size != place.size:
        return f"it counts {hello.size} ranks, rank {place.rank} counts {place.size}"
    if (hello.rank, hello.role) not in missing:
        return f"rank {hello.rank} is here already, or isn't one of the group"
    return ""


# ---- connections


def listening(port: int) -> socket.socket:
    """Raises ConfigError."""
    try:
        return socket.create_server(("", port), backlog=256)
    except OSError as error:
        raise ConfigError(f"{WHERE}: port {port} (MASTER_PORT): {error.strerror}") from error


def connected(host: str, port: int | Callable[[], int], hello: Hello, deadline: float) -> socket.socket:
    """Tries until the other listens, if need be at another port than before. Raises ConfigError."""
    while True:
        address = (host, port() if callable(port) else port)
        try:
            connection = socket.create_connection(address, HELLO_S)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise ConfigError(f"{WHERE}: nobody answers at {host}:{address[1]}: {error}") from error
            time.sleep(RETRY_S)
    at_once_and_watched(connection)
    say(connection, hello)
    connection.settimeout(None)
    return connection


def say(connection: socket.socket, what: msgspec.Struct) -> None:
    body = msgspec.msgpack.encode(what)
    with contextlib.suppress(OSError):  # who is gone already is missed soon enough
        connection.sendall(len(body).to_bytes(4, "little") + body)


def heard_on(connection: socket.socket, kind: type[Said], deadline: float) -> Said:
    """Raises ConfigError for anything but one of that kind, of a decent length and in time."""
    try:
        length = int.from_bytes(exactly(connection, 4, deadline), "little")
        if length > LONGEST_HELLO:
            raise ConfigError(f"it says {length} bytes")
        return msgspec.msgpack.decode(exactly(connection, length, deadline), type=kind)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{type(error).__name__}: {error}") from error


def exactly(connection: socket.socket, count: int, deadline: float) -> bytes:
    body = b""
    while len(body) < count:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        piece = connection.recv(count - len(body))
        if not piece:
            raise OSError("it hung up")
        body += piece
    return body


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def host_of(connection: socket.socket) -> str:
    return str(connection.getpeername()[0])


# ---- torchrun's store, which lives as long as its agents: what an earlier start left there may still be read


def leave_port(place: Place, port: int, patience_s: float) -> None:
    """Raises ConfigError."""
    with agents_store(place, patience_s) as store:
        store.set(PORT_KEY, str(port))


def left_port(place: Place, patience_s: float) -> int:
    """Waits until there is one. Raises ConfigError."""
    with agents_store(place, patience_s) as store:
        return int(store.get(PORT_KEY))


@contextlib.contextmanager
def agents_store(place: Place, patience_s: float) -> Iterator[Any]:
    from torch.distributed import TCPStore

    try:
        yield TCPStore(place.host, place.port, is_master=False, timeout=timedelta(seconds=patience_s))
    except RuntimeError as error:  # all of torch.distributed's are
        first_line = str(error).partition("\n")[0]
        raise ConfigError(f"{WHERE}: torchrun's store at {place.host}:{place.port}: {first_line}") from error
