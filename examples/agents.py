"""Three agents share tasks, each in a process of its own. One is killed in the middle, and others take its task over.
Another is killed and started again, and goes on with its claim, whose token it wrote down. Nothing is lost.

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
from pathlib import Path

from taskharbor import Harbor
from taskharbor.manager import Task, TaskError, TaskManager

AGENTS = ("Ada", "Bob", "Cleo")
TASKS = 12
LEASE = 3.0  # short, so that the example runs quickly; half a minute is more usual


def agent(url: str, name: str, notes: str, *ids: str) -> None:
    """Claim what is pending and work on it, until everything has ended."""
    note = Path(notes, name)
    with TaskManager(url, lease=LEASE) as tasks:
        if note.exists() and " " in (written := note.read_text()):
            go_on(tasks, name, *written.split(" ", 1))
        while left := [task for id in ids if (task := tasks.get(id)).status in ("pending", "claimed")]:
            for task in left:
                try:
                    claimed = tasks.claim(task.id, name)
                    note.write_text(f"{task.id} {claimed.claim_token}")
                    finish(tasks, claimed, name)
                except TaskError:  # another agent has it, or this took too long
                    continue
            time.sleep(0.05)


def go_on(tasks: TaskManager, name: str, id: str, token: str) -> None:
    """Finish the task that this agent held when it was killed, if its claim is still valid."""
    try:
        claimed = tasks.claim(id, name, token=token)
        print(f"{name} goes on with {claimed.payload.decode()}", flush=True)
        finish(tasks, claimed, name)
    except TaskError as error:
        print(f"{name} cannot go on: {type(error).__name__}", flush=True)


def finish(tasks: TaskManager, task: Task, name: str) -> None:
    """Work on a claimed task and complete it."""
    work(tasks, task.id, name)
    tasks.complete(task.id, name, result=name.encode())
    print(f"{name} has completed {task.payload.decode()}, attempt {task.attempts}", flush=True)


def work(tasks: TaskManager, id: str, name: str) -> None:
    """Half a second of work with regular heartbeats: without them, other agents would take over."""
    for step in range(5):
        tasks.heartbeat(id, name, progress=step / 5)
        time.sleep(0.1)


def kill_at_work(process: subprocess.Popen[bytes], name: str, tasks: TaskManager, ids: list[str]) -> None:
    """Wait until the agent has claimed a task, and kill it."""
    while process.poll() is None:
        for task in map(tasks.get, ids):
            if task.status == "claimed" and task.claimed_by == name:
                process.kill()
                print(f"{name} was killed with {task.payload.decode()} in hand", flush=True)
                return
        time.sleep(0.02)
    print(f"{name} ended before it could be killed", flush=True)


def main(url: str, notes: str) -> None:
    """Submit, start the agents, kill two, start one of them again, and see that everything was done."""
    harbor = Harbor(url)
    harbor.migrate()
    with TaskManager(harbor) as tasks:
        ids = [tasks.submit(f"task {number}".encode(), max_attempts=5) for number in range(TASKS)]
        calls = {name: [sys.executable, __file__, url, name, notes, *ids] for name in AGENTS}
        crew = {name: subprocess.Popen(call) for name, call in calls.items()}
        kill_at_work(crew["Bob"], "Bob", tasks, ids)
        kill_at_work(crew["Cleo"], "Cleo", tasks, ids)
        again = subprocess.Popen(calls["Cleo"])
        for process in (*crew.values(), again):
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
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(*(sys.argv[1:] or [f"sqlite:///{folder}/tasks.db"]), folder)
