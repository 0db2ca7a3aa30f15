"""An order goes through a pipeline; one step fails for good, is fixed, and its replay lets the rest continue.

Run it: python examples/orders.py
"""

from __future__ import annotations

import asyncio

from taskharbor import Harbor, Unrecoverable, chain

harbor = Harbor("sqlite:///orders.db")
stock = {"anchor": 0}


@harbor.task
async def price(item: str, pieces: int) -> dict[str, int | str]:
    """Return the order with its price."""
    return {"item": item, "pieces": pieces, "cents": 4200 * pieces}


@harbor.task
async def pick(order: dict[str, int | str]) -> dict[str, int | str]:
    """Take the goods from the shelf, if there are any; trying again at once would not help."""
    if stock[str(order["item"])] < int(order["pieces"]):
        raise Unrecoverable(f"only {stock[str(order['item'])]} of {order['item']} left")
    stock[str(order["item"])] -= int(order["pieces"])
    return order


@harbor.task
async def invoice(order: dict[str, int | str], *, currency: str) -> str:
    """Return the text for the customer."""
    return f"{order['pieces']} x {order['item']}: {int(order['cents']) / 100:.2f} {currency}"


async def main() -> None:
    """Show it fail, fix the cause, and show it continue where it stopped."""
    async with harbor.open():
        run = await chain(price.step("anchor", 2), pick).then(invoice, currency="EUR").aenqueue()
        await harbor.adrain()
        print("the order is", await run.astate())
        for group in await harbor.admin.dlq.agroups():
            print(f"  {group.count} x {group.task}: {group.error}")

        stock["anchor"] = 10
        replayed = await harbor.admin.workflows.areplay(run.id)
        await harbor.adrain()
        print(f"after {len(replayed)} replay it is {await run.astate()}: {await run.aresult()}")


if __name__ == "__main__":
    asyncio.run(main())
