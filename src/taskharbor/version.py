"""The version of the package, written once: the metadata of the package is read from here.

Internal: `taskharbor.__version__` is the public name.
"""

__version__ = "0.1.0"
