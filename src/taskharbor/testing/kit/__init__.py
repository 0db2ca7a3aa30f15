"""The conformance kit: what a driver must do, clause by clause (D14).

A driver binds it in one file: subclass `DriverKit` and give it a `new_store` fixture, which returns a new, empty store
at every call.

    class TestMine(DriverKit):
        @pytest.fixture
        def new_store(self, tmp_path: Path) -> NewStore:
            numbers = count()
            return lambda: Harness(url=f"mine:///{tmp_path}/{next(numbers)}")

A driver with `Within` also binds `WithinKit`, and `OwnTransactionKit` if it begins transactions for handlers. Its
harness then has an `application`. A driver with `EnqueueBlocking` binds `BlockingKit` in a class of its own.

It imports the core, the seam and the memory driver, which it compares others with; nothing above drivers.
"""

from pkgutil import iter_modules
from typing import ClassVar

from taskharbor.driver import Within, offered
from taskharbor.errors import CapabilityMissing, MissingExtra

try:
    import pytest
except ImportError as error:
    raise MissingExtra('the conformance kit runs on pytest: pip install "taskharbor[testing]"') from error

# Failing asserts of the kit show their values, as those in a test module do.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))

from taskharbor.testing.kit.beside import ClosingCases, HintCases, WorkerCases  # noqa: E402
from taskharbor.testing.kit.blocking import BlockingCases  # noqa: E402
from taskharbor.testing.kit.deaths import DeadLetterCases  # noqa: E402
from taskharbor.testing.kit.flows import FlowCases  # noqa: E402
from taskharbor.testing.kit.groups import GroupCases  # noqa: E402
from taskharbor.testing.kit.keys import KeyCases  # noqa: E402
from taskharbor.testing.kit.leases import LeaseCases  # noqa: E402
from taskharbor.testing.kit.looking import ReadingCases  # noqa: E402
from taskharbor.testing.kit.order import OrderCases  # noqa: E402
from taskharbor.testing.kit.overview import OverviewCases  # noqa: E402
from taskharbor.testing.kit.parallel import ProcessCases, ThreadCases  # noqa: E402
from taskharbor.testing.kit.records import RecordCases  # noqa: E402
from taskharbor.testing.kit.recurring import RecurringCases  # noqa: E402
from taskharbor.testing.kit.replay import ReplayCases  # noqa: E402
from taskharbor.testing.kit.reserve import ReserveCases  # noqa: E402
from taskharbor.testing.kit.results import ResultCases  # noqa: E402
from taskharbor.testing.kit.scene import Application, Hand, Harness, NewStore, Probe, Scene  # noqa: E402
from taskharbor.testing.kit.settle import SettleCases  # noqa: E402
from taskharbor.testing.kit.states import StateCases  # noqa: E402
from taskharbor.testing.kit.totals import TotalCases  # noqa: E402
from taskharbor.testing.kit.traces import TraceCases  # noqa: E402
from taskharbor.testing.kit.upkeep import UpkeepCases  # noqa: E402
from taskharbor.testing.kit.within import OwnTransactionKit, WithinKit  # noqa: E402

__all__ = [
    "Application",
    "BlockingKit",
    "DriverKit",
    "EphemeralKit",
    "Hand",
    "Harness",
    "NewStore",
    "OwnTransactionKit",
    "Probe",
    "WithinKit",
]


class EphemeralKit(
    RecordCases,
    StateCases,
    GroupCases,
    KeyCases,
    ReserveCases,
    OrderCases,
    LeaseCases,
    SettleCases,
    TraceCases,
    DeadLetterCases,
    FlowCases,
    ResultCases,
    ReplayCases,
    UpkeepCases,
    ReadingCases,
    OverviewCases,
    RecurringCases,
    WorkerCases,
    TotalCases,
    HintCases,
    ClosingCases,
    ThreadCases,
):
    """The cases for a store that lives as long as its process. `histories` is how many the state machine runs."""

    histories: ClassVar[int] = 70

    @pytest.fixture
    def harness(self, new_store: NewStore) -> Harness:
        """The store of one case."""
        return new_store()

    def test_T1_random_histories_agree_with_the_model(self, new_store: NewStore) -> None:
        """T1, D14: the driver and the memory driver in lockstep; after every step, everything visible is equal."""
        from taskharbor.testing.kit.machine import bounded, run_lockstep

        run_lockstep(new_store, bounded(self.histories))


class BlockingKit(RecordCases, GroupCases, KeyCases, BlockingCases):
    """The cases about enqueues, by the blocking verb of a driver with `EnqueueBlocking`."""

    blocks: ClassVar[bool] = True

    @pytest.fixture
    def harness(self, new_store: NewStore) -> Harness:
        """The store of one case."""
        return new_store()


class DriverKit(EphemeralKit, ProcessCases):
    """Every case of the kit. The subclass gives the fixture `new_store`."""

    async def test_D14_transactions_are_proven_where_there_are_any(self, s: Scene) -> None:
        """D14, D13: a driver with transactions binds their cases; one without says so."""
        within = offered(s.driver, Within)
        assert isinstance(self, WithinKit) == (within is not None)
        assert isinstance(self, OwnTransactionKit) == (within is not None and _begins(within))


def _begins(within: Within) -> bool:
    """Whether the driver begins transactions for handlers."""
    try:
        within.transaction()
    except CapabilityMissing:
        return False
    return True
