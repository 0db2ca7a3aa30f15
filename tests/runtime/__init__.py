"""The runtime on the memory driver in virtual time; real threads and processes where those are the point."""
