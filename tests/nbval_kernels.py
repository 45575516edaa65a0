"""Pytest plugin (-p tests.nbval_kernels): nbval's kernels talk over sockets in a folder of their own, not over TCP.

jupyter_client looks for free ports, closes them and lets the kernel open them again. Two workers that start kernels at
once can be given the same port, and one kernel dies before it answers (jupyter_client issue 487). Files do not collide.
"""

import itertools
import os
import tempfile

import nbval.kernel
from jupyter_client.manager import KernelManager

folder = tempfile.TemporaryDirectory(prefix="nbval-")
number = itertools.count(1)


def kernel_manager(**settings) -> KernelManager:
    connection = os.path.join(folder.name, f"{next(number)}.json")
    return KernelManager(transport="ipc", connection_file=connection, **settings)


nbval.kernel.KernelManager = kernel_manager
