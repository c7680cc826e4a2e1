"""Raced answers: dispatch, migration plans, the asyncio driver and the report (DiSCo)."""
