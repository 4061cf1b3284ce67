"""The version of this package: that of the wheel, and of the binary in it."""

__version__ = "0.1.0"
