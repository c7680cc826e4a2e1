"""Access control for the proxy's callers: whose key a request has, which sides may answer it, and who is charged for it.

If the callers' file can't be used, every request is refused with 503. The middleware checks key and rate before a body is read. A request's
cost is reserved when its size is known, and settled when all work for its answer has ended, however it ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_hex
from typing import ParamSpec, TypeVar

from aiohttp import web
from msgspec import Struct, field
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from streamco.client.client import Client
from streamco.client.stream import ChatStream
from streamco.endpoints.base import Request, TokenPrices
from streamco.errors import ConfigError, StreamConsumed
from streamco.proxy.callers.accounts import CallerAccounts
from streamco.proxy.callers.base import Caller, DayFigures, from_nanos
from streamco.proxy.callers.budget import DayBudget, day_of, seconds_left
from streamco.proxy.callers.caller_metrics import CallerMetrics
from streamco.proxy.callers.estimate import RequestSize, charge, measure_request
from streamco.proxy.callers.keys import hash_key
from streamco.proxy.callers.store import ReservedCost, SettledCost
from streamco.server.http.access_log import current_request_id
from streamco.server.http.api_keys import KEY_NAME
from streamco.server.http.errors import QUOTA, RequestError, overloaded
from streamco.server.http.middleware import BODY_BYTES, given_keys, invalid_key, key_refusal
from streamco.server.http.prometheus import PATH as METRICS_PATH

__all__ = ["BUDGET_HEADER", "TOTALS_PATH", "USAGE_PATH", "AnswerGrant", "CallerAccess", "check_prices"]

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger("streamco.proxy")

BUDGET_HEADER = "x-streamco-budget"
TOTALS_PATH = "/streamco/totals"
USAGE_PATH = "/streamco/usage"
_OPERATORS = frozenset({METRICS_PATH, TOTALS_PATH})  # figures of all callers
_SMALL = 1 << 13  # bytes; smaller bodies are measured in the event loop, which takes five milliseconds at most
_COMPUTED = 8  # tokens that a verifier computes for each token of an answer: four if it accepts no draft, doubled for bad luck
_SETTLING = 0.25  # seconds that an answer waits for its cost to be settled, so that the next request finds the whole budget
_REMOVED = "one that was removed"  # since it was checked
_UNUSABLE = "callers: expected a file that can be read and written, got an error: no request is admitted"
_CALLER: web.RequestKey[Caller] = getattr(web, "RequestKey", lambda name, _: name)("streamco_caller", Caller)


class AnswerGrant(Struct, kw_only=True):
    """The permission to make one answer.

    Args:
        client: makes the answer.
        request: the request, with the limits that were set for it.
        notes: sentences for its report.
        headers: additional headers of the response.
        caller: name of the caller, or "" if the proxy has no callers.
        reservation: name of its reservation.
        reserved: nanodollars that are reserved.
        size: the request's size, or None if it wasn't measured because the caller has no budget or no server costs anything.
        refusal: the response if the device can't answer either, or None for the device's own error.
        answer: the answer, as soon as there is one.
    """

    client: Client
    request: Request
    notes: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    caller: str = ""
    reservation: str = ""
    reserved: int = 0
    size: RequestSize | None = None
    refusal: RequestError | None = None
    answer: ChatStream | None = None


class CallerAccess:
    """The callers of one proxy.

    Args:
        client: makes the answers.
        path: the callers' file.
        answer_tokens: limit for a server's answer if a caller with a budget sends a request without a limit.
        registry: gets the metrics, or None for no metrics.

    Raises:
        ConfigError: a server has no known price, or the client's model is split.
    """

    def __init__(self, client: Client, path: Path, *, answer_tokens: int, registry: CollectorRegistry | None) -> None:
        self._prices = client.server_prices
        check_prices(self._prices)
        self._accounts = CallerAccounts(path)
        self._client = client
        has_device = "device" in client.sides
        self._device_alone = _device_alone(client) if has_device else None
        self._server_alone = client.with_options(mode=replace(client.race, policy="server-only")) if has_device and self._prices else client
        self._answer_tokens = answer_tokens
        self._metrics = None if registry is None else CallerMetrics(registry)
        self._settling: set[asyncio.Task[None]] = set()
        self._warned: dict[str, str] = {}  # the day of the last warning about a caller's budget
        self._problem = ""  # why the file can't be used, or "" if the last use succeeded

    @property
    def one_sided(self) -> tuple[Client, ...]:
        """The clients for answers that only one side may give; each has its own totals."""
        return tuple(each for each in (self._device_alone, self._server_alone) if each is not None and each is not self._client)

    async def start(self, _app: web.Application | None = None) -> None:
        """Open the file.

        Raises:
            ConfigError: it can't be used.
        """
        await self._accounts.start()

    async def stop(self, _app: web.Application | None = None) -> None:
        """Settle the answers that have ended, and close the file, even if settling fails."""
        try:
            settled = await asyncio.gather(*self._settling, return_exceptions=True)
        finally:
            try:
                await self._accounts.aclose()
            except ConfigError as error:
                self._record_failure(error)
        failures = [each for each in settled if isinstance(each, Exception)]
        for failure in failures[1:]:
            logger.error("callers: a cost was not settled", exc_info=failure)
        if failures:
            raise failures[0]

    async def problem(self) -> str:
        """Return why requests are refused, or "" if they aren't."""
        try:
            await self._accounts.check()
        except ConfigError as error:
            self._record_failure(error)
        else:
            if self._problem:
                logger.warning("callers: the file can be used again; requests are admitted")
            self._problem = ""
        return self._problem

    # Before a body is read

    async def check_key(self, request: web.Request) -> None:
        """Find the caller of a request and count it against the rate. The middleware calls this.

        Raises:
            RequestError: 401 missing or wrong key; 403 the path has other callers' figures; 429 too many requests; 503 the file can't be
                used.
        """
        found = await self._find(request)
        if found is None:
            raise key_refusal(request)
        caller, wait = found
        request[KEY_NAME] = caller.name
        request[_CALLER] = caller
        if request.path in _OPERATORS and not caller.is_operator:
            raise RequestError(403, f"{request.path}: expected the key of an operator, because it shows the figures of all callers")
        if wait:
            self._count(caller.name, "rate exceeded")
            raise overloaded(f"requests: the limit is {caller.rate} a minute", wait)

    async def usage(self, request: web.Request) -> web.Response:
        """Answer ``GET /streamco/usage`` with the caller's own figures for today.

        Raises:
            RequestError: 401 the caller was removed meanwhile; 503 the file can't be used.
        """
        try:
            caller, figures = await self._accounts.figures(request[_CALLER].name)
        except ConfigError as error:
            if await self._find(request) is None:
                raise invalid_key(_REMOVED) from error
            raise self._unusable(error) from error
        return web.json_response(_shown(caller, figures, seconds_left(self._accounts.clock())))

    # An answer

    async def grant(self, request: web.Request, asked: Request, *, is_task: bool) -> AnswerGrant:
        """Decide how a request is answered, and reserve its cost. Call ``settling`` afterwards.

        Args:
            request: the HTTP request.
            asked: the client's request.
            is_task: True for a background task, which the device answers alone if the caller may use the device.

        Raises:
            RequestError: 400 nothing limits its cost; 403 the caller may not use any side that this proxy has; 429 its budget is used up;
                503 the file can't be used.
        """
        caller = request[_CALLER]
        may_use_device = "device" in caller.sides and self._device_alone is not None
        may_use_server = "server" in caller.sides and bool(self._prices) and not (is_task and may_use_device)
        if not may_use_device and not may_use_server:
            raise RequestError(403, f"caller: expected a side that this proxy has, got {' and '.join(caller.sides)}", code="no_side")
        grant = AnswerGrant(client=self._client, request=asked, caller=caller.name, reservation=token_hex(16))
        if may_use_server and caller.budget is not None:
            grant.size = size = await self._measured(request, asked)
            grant.reserved = 1 if size is None else max(1, size.cost_at_most(self._prices.values()))  # 1 keeps a used-up budget used up
        found = await self._reserved(grant, may_fall_back=may_use_device)
        if not found.is_covered:
            return self._without_server(grant, found, may_use_device=may_use_device)
        self._count(caller.name, "admitted")
        if grant.size is not None:
            grant.request = replace(asked, server_limit=self._answer_tokens)
        if not may_use_server and self._device_alone is not None:
            grant.client = self._device_alone
        elif not may_use_device:
            grant.client = self._server_alone
        return grant

    @asynccontextmanager
    async def settling(self, grant: AnswerGrant) -> AsyncIterator[None]:
        """Make an answer inside the block. When the block is left, its cost is settled.

        Settling continues in the background if the handler is cancelled or if it takes long, for instance while another process is using
        the file. Until it is done, the cost stays reserved.

        Raises:
            RequestError: 429 the budget doesn't cover a server, and the device can't serve the request.
        """
        try:
            yield
        except RequestError as error:
            if grant.refusal is not None and isinstance(error.__cause__, ConfigError):
                raise grant.refusal from error
            raise
        finally:
            settled, _ = await asyncio.wait([self._begin_settling(grant)], timeout=_SETTLING)
            for task in settled:
                task.result()

    # Inside

    async def _find(self, request: web.Request) -> tuple[Caller, float] | None:
        """Return a request's caller, and by how many seconds it is too early for the rate, which only limits POST requests."""
        for key_hash in filter(None, map(hash_key, given_keys(request))):
            if request.method == "POST":
                admitted = await self._carried_out(self._accounts.admit, key_hash)
            else:
                caller = await self._carried_out(self._accounts.find, key_hash)
                admitted = None if caller is None else (caller, 0.0)
            if admitted is not None:
                return admitted
        return None

    async def _measured(self, request: web.Request, asked: Request) -> RequestSize | None:
        """Return a request's size, or None if no server costs anything."""
        if not any(each.prompt or each.completion for each in self._prices.values()):
            return None
        computed = _COMPUTED if self._client.may_speculate else 1
        if request[BODY_BYTES] < _SMALL:
            return measure_request(asked, answer_tokens=self._answer_tokens, computed=computed)
        return await asyncio.to_thread(measure_request, asked, answer_tokens=self._answer_tokens, computed=computed)

    async def _reserved(self, grant: AnswerGrant, *, may_fall_back: bool) -> ReservedCost:
        try:
            found = await self._carried_out(
                self._accounts.reserve, grant.reservation, grant.caller, grant.reserved, may_fall_back=may_fall_back
            )
        except BaseException:  # it may still be carried out
            self._begin_settling(grant)
            raise
        if found is None:
            raise invalid_key(_REMOVED)
        return found

    def _without_server(self, grant: AnswerGrant, found: ReservedCost, *, may_use_device: bool) -> AnswerGrant:
        """Decide how to answer a request that the budget doesn't cover.

        Raises:
            RequestError: 429 the device may not answer it, or there is none.
        """
        until = seconds_left(self._accounts.clock())
        needed, left = from_nanos(grant.reserved), from_nanos(found.left or 0)
        text = f"expected a request that today's budget covers, got one that may cost {needed:.6f} $ while {left:.6f} $ are left"
        refusal = RequestError(
            429,
            f"budget: {text}; the next day begins at midnight UTC",
            code=QUOTA,
            headers={"Retry-After": str(until), "x-should-retry": "false"},  # otherwise OpenAI's and Anthropic's SDKs would retry
        )
        today = day_of(self._accounts.clock())
        is_new, self._warned[grant.caller] = self._warned.get(grant.caller) != today, today
        what = "the device alone answers" if may_use_device else "refused"
        logger.log(
            logging.WARNING if is_new else logging.INFO,
            "%s: the budget of %s doesn't cover a request: %s (%.6f $ left, at most %.6f $ needed)",
            *(current_request_id(), grant.caller, what, left, needed),
        )
        self._count(grant.caller, "device only" if may_use_device else "no budget")
        if self._device_alone is None or not may_use_device:
            raise refusal
        grant.client, grant.size, grant.reserved, grant.refusal = self._device_alone, None, 0, refusal
        grant.notes = (f"the device alone answers: today's budget of {grant.caller} doesn't cover a server",)
        grant.headers = {BUDGET_HEADER: "used up"}
        return grant

    def _begin_settling(self, grant: AnswerGrant) -> asyncio.Task[None]:
        task = asyncio.create_task(self._settle(grant), name="streamco proxy settling")
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        return task

    async def _settle(self, grant: AnswerGrant) -> None:
        settled = None if grant.answer is None else await self._cost_of(grant, grant.answer)
        try:
            if settled is None:
                await self._accounts.withdraw(grant.reservation)
            else:
                await self._accounts.settle(grant.reservation, settled)
        except ConfigError as error:  # the reservation stays until it can be settled
            self._record_failure(error)
        if self._metrics is not None and settled is not None:
            self._metrics.record_cost(grant.caller, settled)

    async def _cost_of(self, grant: AnswerGrant, answer: ChatStream) -> SettledCost:
        try:
            await answer.aclose()
            parts = answer.report.endpoints
        except StreamConsumed:  # no endpoint was asked
            return SettledCost()
        except Exception:
            logger.exception("an answer of %s has no report; it is charged what was reserved for it", grant.caller)
            return SettledCost(cost=grant.reserved)
        return SettledCost(
            cost=charge(parts, grant.size, self._prices, reserved=grant.reserved),
            prompt_tokens=sum(part.prompt_tokens for part in parts),
            completion_tokens=sum(part.completion_tokens for part in parts),
            estimated_prompt_tokens=sum(part.prompt_tokens for part in parts if part.is_estimated),
            estimated_completion_tokens=sum(part.completion_tokens for part in parts if part.is_estimated),
        )

    async def _carried_out(self, call: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
        """Return the result of a call to the accounts.

        Raises:
            RequestError: 503 the file can't be used.
        """
        try:
            result = await call(*args, **options)
        except ConfigError as error:
            raise self._unusable(error) from error
        self._problem = ""
        return result

    def _unusable(self, error: ConfigError) -> RequestError:
        """Record that the file can't be used, and return the refusal."""
        self._record_failure(error)
        return RequestError(503, _UNUSABLE, code="callers_unavailable", headers={"Retry-After": "5"})

    def _record_failure(self, error: ConfigError) -> None:
        """Record that the file can't be used. This is logged only once until the file can be used again."""
        if not self._problem:
            logger.error("%s; requests are refused until then", error)
        self._problem = _UNUSABLE
        if self._metrics is not None:
            self._metrics.record_failure()

    def _count(self, name: str, outcome: str) -> None:
        if self._metrics is not None:
            self._metrics.record_request(name, outcome)


def _device_alone(client: Client) -> Client:
    """Return a client that uses only the device and has its own totals, or the client itself if it doesn't use servers anyway."""
    return client if client.race.policy == "device-only" else client.with_options(mode=replace(client.race, policy="device-only"))


def check_prices(prices: Mapping[str, TokenPrices]) -> None:
    """Check that all servers have known prices, without which budgets can't be enforced.

    Raises:
        ConfigError: a server has no known price.
    """
    for name, each in prices.items():
        if each.prompt is None or each.completion is None:
            raise ConfigError(
                f"callers: expected known prices of each server, because budgets can't be kept without them, got none of {name}: "
                "prices = { prompt = ..., completion = ... } of its [[server]] has them, US dollars per million tokens, 0 if it is free"
            )


def _shown(caller: Caller, figures: DayFigures, until: int) -> dict[str, object]:
    budget = DayBudget(limit=caller.budget, spent=figures.spent, reserved=figures.reserved)
    return {
        "caller": caller.name,
        "day": figures.day,
        "seconds_left": until,
        "budget_usd": None if caller.budget is None else from_nanos(caller.budget),
        "spent_usd": from_nanos(figures.spent),
        "reserved_usd": from_nanos(figures.reserved),
        "left_usd": None if budget.left is None else from_nanos(budget.left),
        "rate": caller.rate,
        "sides": list(caller.sides),
        "requests": figures.requests,
        "device_only": figures.spared,
        "refused": figures.refused,
        "prompt_tokens": figures.prompt_tokens,
        "completion_tokens": figures.completion_tokens,
        "estimated_prompt_tokens": figures.estimated_prompt_tokens,
        "estimated_completion_tokens": figures.estimated_completion_tokens,
    }
