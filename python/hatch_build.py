"""Puts the penstock binary into the wheel, and names the platform that it is for.

PENSTOCK_BINARY is the binary, made with CGO_ENABLED=0 so that it needs no library of the system; PENSTOCK_GOARCH says what it was made for. Without PENSTOCK_BINARY the wheel has
none, and is for every platform: the binary is then looked for in PATH.
"""

from __future__ import annotations

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


class CustomBuildHook(BuildHookInterface):  # type: ignore[misc]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        binary = os.environ.get("PENSTOCK_BINARY")
        if not binary:
            return
        arch = os.environ.get("PENSTOCK_GOARCH", "")
        if arch not in MACHINES:
            raise ValueError(f"PENSTOCK_GOARCH is {arch!r}: wheels with a binary are made for {' and '.join(MACHINES)}")
        if not os.access(binary, os.X_OK):
            raise ValueError(f"PENSTOCK_BINARY is {binary}, which is no program")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_17_{MACHINES[arch]}.manylinux2014_{MACHINES[arch]}"
        build_data["force_include"][os.path.abspath(binary)] = "penstock/_bin/penstock"
