"""The version of the package, told once: the metadata of an installation take it from here."""

__version__ = "0.1.0"
