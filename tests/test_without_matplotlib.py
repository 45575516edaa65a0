"""Everything but report.plotting works where numpy is all there is."""

import subprocess
import sys

SCRIPT = """
import importlib, pkgutil, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"matplotlib", "matplotlib_inline", "tabulate", "scipy", "pandas", "IPython", "numba"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import codesign_lib
names = [m.name for m in pkgutil.walk_packages(codesign_lib.__path__, "codesign_lib.")]
for name in names:
    if name not in ("codesign_lib.report.plotting", "codesign_lib.report.tables"):
        importlib.import_module(name)
from codesign_lib.report import claims
assert all(check.ok for check in claims.check("table2"))
try:
    importlib.import_module("codesign_lib.report.plotting")
except ModuleNotFoundError:
    print(len(names), "modules")
"""


def test_library_needs_numpy_alone():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 10
