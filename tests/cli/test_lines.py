from __future__ import annotations

import asyncio
import io
import os
import threading

from streamco.cli.lines import lines_of


async def test_lines_come_stripped_and_empty_ones_are_left_out() -> None:
    assert [line async for line in lines_of(io.StringIO("one\n\n  two \n\t\nthree"))] == ["one", "two", "three"]


async def test_no_lines_at_all_end_at_once() -> None:
    assert [line async for line in lines_of(io.StringIO(""))] == []


async def test_a_line_is_there_before_the_next_is_written_and_the_loop_runs_meanwhile() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader) as file:
        lines = lines_of(file)
        os.write(writer, b"first\n")
        assert await anext(lines) == "first"
        waiting = asyncio.ensure_future(anext(lines))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        os.write(writer, b"second\n")
        assert await waiting == "second"
        os.close(writer)
        assert [line async for line in lines] == []


def test_a_reader_that_waits_for_a_line_does_not_keep_the_program_from_ending() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader) as file:

        async def wait_a_little() -> None:
            try:
                async with asyncio.timeout(0.05):
                    await anext(lines_of(file))
            except TimeoutError:
                pass

        asyncio.run(wait_a_little())
        os.write(writer, b"too late\n")
        os.close(writer)
        for thread in threading.enumerate():
            if thread.name == "streamco-stdin":
                assert thread.daemon
                thread.join(5)
                assert not thread.is_alive()
