"""The driver of any machine in virtual time."""

from __future__ import annotations

import simpy

from streamco.sim.driver import SimulatedMachine, call_at


class Timer:
    """A machine: an event (name, seconds) asks for the name to be said that much later; a later event replaces it."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.deadline: float | None = None
        self.name = ""
        self.calls: list[tuple[str, float]] = []

    def start(self, *, now: float) -> None:
        self.calls.append(("start", now))

    def receive(self, event: tuple[str, float | None], *, now: float) -> None:
        self.calls.append(("receive", now))
        self.name, seconds = event
        self.deadline = None if seconds is None else now + seconds
        self.commands.append(f"ask {self.name}")

    def take_commands(self) -> list[str]:
        taken, self.commands = self.commands, []
        return taken

    def next_deadline(self) -> float | None:
        return self.deadline

    def handle_deadline(self, *, now: float) -> None:
        self.calls.append(("deadline", now))
        if self.deadline is not None and now >= self.deadline:
            self.deadline = None
            self.commands += [f"say {self.name}", "bow"]


class Driver(SimulatedMachine[tuple[str, float | None], str]):
    def __init__(self, env: simpy.Environment, log: list[tuple[float, tuple[str, float | None] | None, list[str]]] | None = None) -> None:
        self.timer = Timer()
        super().__init__(env, self.timer, log)
        self.done: list[tuple[float, str]] = []

    def _do(self, command: str) -> None:
        self.done.append((self._env.now, command))


def test_functions_are_called_after_their_delay_and_in_order() -> None:
    env = simpy.Environment(initial_time=1.0)
    called: list[tuple[float, str]] = []
    call_at(env, 2.0, lambda: called.append((env.now, "late")))
    call_at(env, 0.0, lambda: called.append((env.now, "now")))
    assert not called, "not before the environment runs"
    env.run()
    assert called == [(1.0, "now"), (3.0, "late")]


def test_commands_are_carried_out_in_order_at_the_time_of_their_event() -> None:
    env = simpy.Environment(initial_time=5.0)
    driver = Driver(env)
    driver.start()
    call_at(env, 1.0, lambda: driver.receive(("a", 2.0)))
    env.run()
    assert driver.done == [(6.0, "ask a"), (8.0, "say a"), (8.0, "bow")]
    assert driver.timer.calls == [("start", 5.0), ("receive", 6.0), ("deadline", 8.0)]


def test_a_deadline_that_was_moved_or_dropped_does_not_fire() -> None:
    env = simpy.Environment()
    driver = Driver(env)
    driver.start()
    driver.receive(("early", 1.0))
    call_at(env, 0.5, lambda: driver.receive(("late", 3.0)))
    call_at(env, 5.0, lambda: driver.receive(("never", 1.0)))
    call_at(env, 5.5, lambda: driver.receive(("dropped", None)))
    env.run()
    assert [(time, text) for time, text in driver.done if text.startswith("say")] == [(3.5, "say late")]
    assert [call for call in driver.timer.calls if call[0] == "deadline"] == [("deadline", 3.5)]


def test_a_deadline_in_the_past_fires_at_once_and_without_going_back() -> None:
    env = simpy.Environment(initial_time=2.0)
    driver = Driver(env)
    driver.start()
    driver.receive(("past", -1.0))
    env.run()
    assert driver.timer.calls[-1] == ("deadline", 2.0)
    assert driver.done[-2:] == [(2.0, "say past"), (2.0, "bow")]


def test_the_log_has_every_step() -> None:
    env = simpy.Environment()
    log: list[tuple[float, tuple[str, float | None] | None, list[str]]] = []
    driver = Driver(env, log)
    driver.start()
    driver.receive(("a", 1.5))
    env.run()
    assert log == [(0.0, None, []), (0.0, ("a", 1.5), ["ask a"]), (1.5, None, ["say a", "bow"])]
