"""Both ends, and a network that delays, cuts and refuses: the two sides hold the same context, no token is lost or sent twice."""

from __future__ import annotations

import random
from hashlib import sha256

import pytest

from streamco.policies.acceptance import verify_greedy
from streamco.wire.verify.checks import prefix_hash
from streamco.wire.verify.client import VerifyClient
from streamco.wire.verify.errors import NotResumableError, OverloadedError
from streamco.wire.verify.frames import Close, Draft, Extend, Hello, Open, Opened, Refusal, Resume, Resumed, VerdictFrame
from streamco.wire.verify.server import VerifyServer
from tests.support.verify_frames import make_verdict
from tests.wire.verify.peers import GREEDY, VOCABULARY, codec, some_server

PROMPT: tuple[int, ...] = (11, 12, 13)
LENGTH = 80


def target(ids: tuple[int, ...]) -> int:
    """The next token of a model that everything before it matters to."""
    return int.from_bytes(sha256(repr(ids).encode()).digest()[:2], "little") % 50


def answer_of_target(length: int) -> tuple[int, ...]:
    ids = PROMPT
    while len(ids) < length:
        ids += (target(ids),)
    return ids


class Verifier:
    """A server's shell: contexts by key, and the target that verifies drafts. A test can make it lose a context."""

    def __init__(self) -> None:
        self.texts: dict[bytes, tuple[int, ...]] = {}
        self.connect()

    def connect(self) -> None:
        self.server: VerifyServer = some_server()
        self.keys: dict[int, bytes] = {}

    def receive(self, message: bytes, rng: random.Random) -> None:
        server, frame = self.server, self.server.receive(message)
        match frame:
            case Hello():
                server.welcome()
            case Open():
                key = self.keys[frame.session] = rng.randbytes(16)
                self.texts[key] = frame.ids
                server.send(Opened(frame.session, key, 0))
            case Extend():
                key = self.keys[frame.session]
                self.texts[key] = self.texts[key][: frame.base] + frame.ids
            case Resume():
                self.resume(frame)
            case Draft() if rng.random() < 0.1:
                server.refuse(OverloadedError("busy", session=frame.session, round_number=frame.round_number, retry_after=0.1))
            case Draft():
                key = self.keys[frame.session]
                text = self.texts[key][: frame.base] + frame.ids[: frame.given]
                choices = [target(text + frame.pending[:place]) for place in range(len(frame.pending) + 1)]
                verdict = verify_greedy(frame.pending, choices)
                self.texts[key] = text + frame.pending[: verdict.accepted] + (verdict.token,)
                server.send(make_verdict(frame.session, frame.round_number, verdict.accepted, verdict.token))
            case Close():
                del self.texts[self.keys.pop(frame.session)]
            case None:
                pass

    def resume(self, frame: Resume) -> None:
        text = self.texts.get(frame.key)
        if text is None or (len(text) >= frame.base and prefix_hash(text[: frame.base]) != frame.prefix):
            self.server.refuse(NotResumableError("gone", session=frame.session))
            return
        self.keys[frame.session] = frame.key
        kept = self.texts[frame.key] = text[: frame.base]
        self.server.resume(Resumed(frame.session, len(kept), prefix_hash(kept)), GREEDY)


class Device:
    """A client's shell: it drafts the target's own tokens, now and then wrong ones, until the answer is long enough."""

    def __init__(self, is_selective: bool) -> None:
        self.ids = PROMPT
        self.key: bytes | None = None
        self.is_selective = is_selective
        self.connect()

    def connect(self) -> None:
        self.client = VerifyClient(codec(), VOCABULARY)
        self.session: int | None = None
        self.out: tuple[int, ...] | None = None
        self.is_ready = False

    def act(self, rng: random.Random) -> None:
        """Open, resume or draft, where nothing is awaited."""
        if self.client.welcome is None or self.out is not None:
            return
        if self.session is None:
            if self.key is None:
                self.session, self.is_ready = self.client.open(self.ids, GREEDY), True
            else:
                self.session = self.client.resume(self.key, self.ids)
        elif self.is_ready and len(self.ids) < LENGTH:
            self.draft(rng)

    def draft(self, rng: random.Random) -> None:
        assert self.session is not None
        held = self.client.length(self.session)
        if self.is_selective and rng.random() < 0.5:
            self.ids += tuple(rng.randrange(50) for _ in range(rng.randrange(4)))
        missing, self.out = self.ids[held:], ()
        for _ in range(rng.randrange(5)):
            token = target(self.ids + self.out)
            self.out += (token if rng.random() < 0.7 else (token + 1) % 50,)
        if rng.random() < 0.3 and missing:
            self.client.extend(self.session, held, missing)
            held, missing = held + len(missing), ()
        self.client.draft(self.session, held, missing + self.out, given=len(missing))

    def receive(self, message: bytes) -> None:
        match self.client.receive(message):
            case Opened() as frame:
                self.key = frame.key
            case Resumed():
                self.is_ready = True
            case VerdictFrame() as frame:
                assert self.out is not None
                assert frame.token is not None
                self.ids += (*self.out[: frame.accepted], frame.token)
                self.out = None
                assert self.client.length(frame.session) == len(self.ids)
            case Refusal() as refusal if refusal.code == "overloaded":
                self.out = None
            case Refusal() as refusal:
                assert refusal.code == "not_resumable"
                self.key = self.session = None
            case _:
                pass


def play(seed: int, *, is_selective: bool) -> tuple[Device, Verifier, int]:
    """An answer over connections that are cut at random; how many there were."""
    rng = random.Random(f"links {seed}")
    device, verifier = Device(is_selective), Verifier()
    up: list[bytes] = []
    down: list[bytes] = []
    connections = 1
    for _ in range(5000):
        if len(device.ids) >= LENGTH and not up and not down:
            break
        device.act(rng)
        up += device.client.take_messages()
        if up and rng.random() < 0.6:
            verifier.receive(up.pop(0), rng)
            down += verifier.server.take_messages()
        if down and rng.random() < 0.6:
            device.receive(down.pop(0))
        if rng.random() < 0.03:
            up, down, connections = [], [], connections + 1
            device.connect()
            verifier.connect()
            if rng.random() < 0.3:
                verifier.texts.clear()  # killed
    return device, verifier, connections


def assert_same_context(device: Device, verifier: Verifier) -> None:
    """The server holds what the device counts as sent."""
    if device.session is not None and device.is_ready:
        assert device.ids[: device.client.length(device.session)] == verifier.texts[verifier.keys[device.session]]


@pytest.mark.parametrize("seed", range(60))
def test_the_answer_is_the_targets_own_whatever_the_network_does(seed: int) -> None:
    device, verifier, _ = play(seed, is_selective=False)
    assert len(device.ids) >= LENGTH, seed
    assert device.ids == answer_of_target(len(device.ids)), seed
    assert_same_context(device, verifier)


@pytest.mark.parametrize("seed", range(60))
def test_tokens_that_the_device_gives_itself_are_in_both_contexts_once(seed: int) -> None:
    device, verifier, _ = play(seed, is_selective=True)
    assert len(device.ids) >= LENGTH, seed
    assert_same_context(device, verifier)


def test_the_network_really_cuts() -> None:
    assert sum(play(seed, is_selective=False)[2] for seed in range(60)) > 150
