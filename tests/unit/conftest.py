"""Fixtures of the tests of single modules."""

from collections.abc import Iterator

import pytest
import structlog

from tests.fixtures.daemon import short_path
from tests.fixtures.fake_daemon import fake, start_fake
from tests.fixtures.hosts import make_host
from tests.fixtures.memory_world import later, region, tree
from tests.fixtures.scheduler import watchdog, world

__all__ = ["fake", "later", "make_host", "region", "short_path", "start_fake", "tree", "watchdog", "world"]


@pytest.fixture(autouse=True)
def log_as_it_was() -> Iterator[None]:
    """What a test runs may have its log written elsewhere, in this very process."""
    yield
    structlog.reset_defaults()
