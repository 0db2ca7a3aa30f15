"""Functions that several drivers share. Imports the core and no driver; there is no base class here (internal)."""
