"""Three agents share tasks, each in a process of its own. One is killed in the middle, and nothing is lost.

Run it: python examples/agents.py
It uses a temporary SQLite file, or the store that you name: python examples/agents.py postgresql://user@host/database
There it touches no tasks but its own, and deletes them at the end.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import Counter

from taskharbor import Harbor
from taskharbor.manager import TaskError, TaskManager

AGENTS = ("Ada", "Bob", "Cleo")
TASKS = 12
LEASE = 1.0  # short, so that you need not wait for the dead; half a minute is more usual


def agent(url: str, name: str, *ids: str) -> None:
    """Claim what is pending and work on it, until everything has ended."""
    with TaskManager(url, lease=LEASE) as tasks:
        while left := [task for id in ids if (task := tasks.get(id)).status in ("pending", "claimed")]:
            for task in left:
                try:
                    attempt = tasks.claim(task.id, name).attempts
                    work(tasks, task.id, name)
                    tasks.complete(task.id, name, result=name.encode())
                except TaskError:  # somebody else has it, or this took too long
                    continue
                print(f"{name} has completed {task.payload.decode()}, attempt {attempt}", flush=True)
            time.sleep(0.05)


def work(tasks: TaskManager, id: str, name: str) -> None:
    """Half a second of thinking, with a heartbeat now and then: without one, others would take over."""
    for step in range(5):
        tasks.heartbeat(id, name, progress=step / 5)
        time.sleep(0.1)


def kill_at_work(process: subprocess.Popen[bytes], name: str, tasks: TaskManager, ids: list[str]) -> None:
    """Wait until the agent has a task in hand, and kill it."""
    while process.poll() is None:
        for task in map(tasks.get, ids):
            if task.claimed_by == name:
                process.kill()
                print(f"{name} was killed with {task.payload.decode()} in hand", flush=True)
                return
        time.sleep(0.02)
    print(f"{name} ended before it could be killed", flush=True)


def main(url: str) -> None:
    """Submit, start the agents, kill one, and see that everything was done."""
    harbor = Harbor(url)
    harbor.migrate()
    with TaskManager(harbor) as tasks:
        ids = [tasks.submit(f"task {number}".encode(), max_attempts=5) for number in range(TASKS)]
        crew = {name: subprocess.Popen([sys.executable, __file__, url, name, *ids]) for name in AGENTS}
        kill_at_work(crew["Bob"], "Bob", tasks, ids)
        for process in crew.values():
            process.wait()
        done = [task for task in map(tasks.get, ids) if task.status == "completed"]
        shares = Counter((task.result or b"").decode() for task in done)
        print(f"{len(done)} of {TASKS} tasks completed: {', '.join(f'{n} by {name}' for name, n in shares.items())}")
        print(f"claimed again after a death: {sum(task.attempts > 1 for task in done)}")
        for task in done:
            tasks.delete(task.id)
    harbor.close()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        agent(*sys.argv[1:])
    elif len(sys.argv) == 2:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(f"sqlite:///{folder}/tasks.db")
