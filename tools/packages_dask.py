"""A sweep on Dask's executor: the same frontier as here, also when a worker is killed (`make validate-packages`).

python tools/packages_dask.py           run, compare with data/validation/dask.csv
python tools/packages_dask.py --write   run and write it
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import numpy as np

from codesign_lib.serving import frontier
from codesign_lib.serving.layout import Workload
from codesign_lib.specs import published
from codesign_lib.specs.formats import Precision

LOAD = Workload(n_input=8192, n_output=1024, n_concurrent=2 ** np.arange(13))
MIXES = {f: Precision(weights=f, activations=f, kv="fp8") for f in ("nvfp4", "fp8_block")}
SIZES = (8, 16, 32, 64, 72)
COLUMNS = ("case", "n_tried", "n_kept", "workers_killed", "same")


def run(executor=None) -> frontier.Points:
    return frontier.sweep("deepseek_r1", "gb300", n_chips=SIZES, workload=LOAD, precisions=MIXES, executor=executor,
                          modes=("aggregated", "disaggregated"))  # fmt: skip


def same(a: frontier.Points, b: frontier.Points) -> bool:
    return a.n_tried == b.n_tried and len(a) == len(b) and all((a[c] == b[c]).all() for c in a.columns)


def main(argv: list[str]) -> int:
    import distributed

    frontier.BLOCK_POINTS = 256  # hundreds of small tasks, so that one is running when its worker dies
    alone, rows = run(), []
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        executor = client.get_executor()
        start = time.perf_counter()
        rows.append(("two workers", run(executor), 0))
        took_s = time.perf_counter() - start
        victim = next(iter(client.run(os.getpid).values()))

        def kill() -> None:
            time.sleep(took_s / 3)
            os.kill(victim, signal.SIGKILL)
            print(f"worker killed after {took_s / 3:.1f} s; the undisturbed sweep took {took_s:.1f} s")

        threading.Thread(target=kill).start()
        rows.append(("one of two workers killed", run(executor), 1))
    head = (
        "# title: a sweep on Dask's executor against the same sweep in one process\n"
        f"# source: dask distributed {distributed.__version__}, LocalCluster\n# version: {distributed.__version__}\n"
        "# date: 2026-11-30\n# licence: BSD-3-Clause\n# drawn_by: tools/packages_dask.py --write\n"
    )
    lines = [(case, p.n_tried, len(p), n, same(p, alone)) for case, p, n in rows]
    text = head + ",".join(COLUMNS) + "\n" + "".join(",".join(map(str, line)) + "\n" for line in lines)
    print(text)
    path = published.files("codesign_lib") / "data" / "validation" / "dask.csv"
    if "--write" in argv:
        path.write_text(text, encoding="utf-8")
    committed = path.is_file() and path.read_text(encoding="utf-8") == text
    good = committed and all(line[-1] for line in lines)
    print("as committed, and the same" if good else "FAILED: not the same, or not as committed")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
