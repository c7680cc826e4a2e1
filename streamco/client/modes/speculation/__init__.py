"""Speculated answers (Synera): planning, the asyncio driver, text output and the report."""
