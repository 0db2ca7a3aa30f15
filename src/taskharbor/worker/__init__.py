"""Running jobs: reserve → run → decide → settle, and the tasks beside that. Internal; imports client and workflows."""
