"""Fixtures of the tests with librunlist.so."""

from tests.native.guests import guests

__all__ = ["guests"]
