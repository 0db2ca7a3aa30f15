"""A complaint of asyncio fails the test."""

from complaints import no_complaint_of_asyncio

__all__ = ["no_complaint_of_asyncio"]
