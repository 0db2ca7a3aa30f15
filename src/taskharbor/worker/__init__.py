"""Running jobs: reserve → run → decide → settle, and the work beside it. Internal; imports client and workflows."""
