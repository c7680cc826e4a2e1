"""One server of a split model: the time that it asks for, and the error of an answer that no server can continue."""

from __future__ import annotations

from streamco.config import Timeouts
from streamco.endpoints.verifiers.connection import VerifierAddress
from streamco.endpoints.verifiers.middle_server import MiddleServer, final_error
from streamco.errors import EndpointConnectError, EndpointTimeoutError
from streamco.wire.split.frames import LayersMark
from streamco.wire.verify.errors import EvictedError, OverloadedError


def test_a_server_is_put_off_by_as_much_as_it_asks_for() -> None:
    server = MiddleServer(VerifierAddress("ws://127.0.0.1:1", "one"), LayersMark("digest", 2, 28, 8), Timeouts(), exact=False)
    server.put_off(EvictedError("evicted"), 100.0)
    server.put_off(EndpointConnectError("refused"), 100.0)
    assert server.not_before == 0.0
    server.put_off(OverloadedError("full", retry_after=2.5), 100.0)
    assert server.not_before == 102.5


def test_the_last_error_says_what_the_server_asked_for() -> None:
    full = final_error(OverloadedError("full", retry_after=2.5))
    assert isinstance(full, EndpointConnectError)
    assert str(full).endswith("got full; the server asks for 2.5 s before the next try")
    assert "asks for" not in str(final_error(EvictedError("evicted")))
    late = EndpointTimeoutError("late", phase="connect", limit=1.0)
    assert final_error(late) is late
