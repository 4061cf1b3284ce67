"""Is all there that the figures of Python need? Prints the versions."""

import platform

import numpy
import penstock
import pyarrow
import torch

assert penstock
print(f"Python {platform.python_version()}, torch {torch.__version__}, pyarrow {pyarrow.__version__}, numpy {numpy.__version__}")
