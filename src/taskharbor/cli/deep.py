"""`taskharbor health --deep`: what the store says about itself, beside what it says about queues and workers."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from taskharbor.admin.admin import Admin
from taskharbor.admin.health import Problem
from taskharbor.cli import output
from taskharbor.cli.output import Cell
from taskharbor.core.durations import count
from taskharbor.driver import RepairReport, StoreSetting

STYLES = {"fine": "green", "warning": "yellow", "error": "bold red"}
UNKNOWN = "unknown: this driver cannot read the settings of its engine"
NO_REPAIR = "nothing: the engine keeps its indexes itself"
UNREADABLE = "delete a job that cannot be read with `taskharbor jobs delete ID`; docs/redis.md says more under Repair"


class DeepReport(Struct, frozen=True, kw_only=True):
    """The answers of the store; None where its driver cannot say or does not need it."""

    settings: list[StoreSetting] | None
    indexes: RepairReport | None
    mended: RepairReport | None


def unsafe(settings: Sequence[StoreSetting] | None) -> list[Problem]:
    """The settings with which jobs are lost without a crash."""
    return [
        Problem("store_unsafe", f"{it.name} {it.value}: {it.message}") for it in settings or () if it.level == "error"
    ]


async def asked(admin: Admin, repair: bool) -> DeepReport:
    """Ask the store; with `repair`, mend its indexes before they are compared."""
    mended = await admin.arepair() if repair else None
    return DeepReport(settings=await admin.adurability(), mended=mended, indexes=await admin.arepair(dry=True))


def damaged(report: DeepReport) -> list[Problem]:
    """Indexes that do not fit."""
    found = report.indexes
    if found is None or not found.misfits:
        return []
    some, misfits = "; ".join(found.examples[:3]), count(found.misfits, "misfit")
    if report.mended is not None:
        return [Problem("indexes", f"{misfits} left that the repair could not mend ({some}): {UNREADABLE}")]
    return [Problem("indexes", f"{misfits} between jobs and indexes ({some}): run `taskharbor health --repair`")]


def show(report: DeepReport, *, repair: bool) -> None:
    """Print the settings, each with what may be lost, and the state of the indexes."""
    output.heading("Store")
    pairs: list[tuple[str, Cell]] = [("durability", Cell(UNKNOWN, STYLES["warning"]))]
    if report.settings is not None:
        pairs = [(it.name, Cell(_text(it), STYLES[it.level])) for it in report.settings]
    if report.indexes is not None:
        pairs.append(("indexes", _indexes(report.indexes)))
    if repair:
        pairs.append(("mended", Cell(_mended(report))))
    output.facts(pairs)


def _indexes(report: RepairReport) -> Cell:
    jobs = f"of {count(report.jobs, 'job')}"
    if report.misfits:
        return Cell(f"{jobs}, with {count(report.misfits, 'misfit')}", STYLES["error"])
    if not report.counted:
        return Cell(f"{jobs}, all fit; too many jobs changed meanwhile to compare the totals", STYLES["warning"])
    return Cell(f"{jobs}, all fit", STYLES["fine"])


def _mended(report: DeepReport) -> str:
    if report.mended is None:
        return NO_REPAIR
    found = count(report.mended.misfits, "misfit")
    if report.indexes is not None and report.indexes.misfits:
        found = f"{max(0, report.mended.misfits - report.indexes.misfits):,} of {found}"
    return "\n".join([found, *report.mended.examples])


def _text(setting: StoreSetting) -> str:
    value = "unknown" if setting.value is None else setting.value
    return f"{value}: {setting.message}" if setting.message else value
