"""Speculated answers: planning, the asyncio driver, text output and the report (Synera)."""
