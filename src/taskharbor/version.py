"""The version of the package, told once: the metadata of an installation take it from here.

Internal: `taskharbor.__version__` is the public name.
"""

__version__ = "0.1.0"
