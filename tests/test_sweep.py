"""Sweeps: against brute force, more layouts never worse, everything fits, executors, interruption, refusals."""

import csv
import itertools
import re
import signal
import sys
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codesign_lib.serving import block, end_to_end, frontier, memory, pools, prefill
from codesign_lib.serving.layout import AXES, Layout, Workload, layouts
from codesign_lib.serving.points import PARTS, Points, joined
from codesign_lib.specs import hardware, models
from codesign_lib.specs.formats import Precision

FP4 = Precision(weights="nvfp4", activations="nvfp4", kv="fp8")
FP8 = Precision(weights="fp8_block", activations="fp8_block", kv="fp8")
BATCHES = 2 ** np.arange(8)
LOAD = Workload(n_input=2048, n_output=512, n_concurrent=BATCHES)


def sweep(model="qwen3_235b_a22b", chip="gb300", **change):
    how = dict(n_chips=[4, 8], workload=LOAD, precisions={"fp4": FP4}, engine="sglang")
    return frontier.sweep(model, chip, **(how | change))


def test_the_frontier_is_what_brute_force_finds():
    every = sweep(keep="all", modes=frontier.MODES)
    kept = sweep(modes=frontier.MODES)
    assert kept.n_tried == every.n_tried > 1000
    for mode in frontier.MODES:
        some = every[every["mode"] == mode]
        x, y = some["interactivity_per_s"], some["throughput_per_s"]
        beaten = ((x >= x[:, None]) & (y >= y[:, None]) & ((x > x[:, None]) | (y > y[:, None]))).any(axis=1)
        found = kept[kept["mode"] == mode]
        expected = {(a, b) for a, b in zip(x[~beaten].tolist(), y[~beaten].tolist(), strict=True)}
        assert (
            set(zip(found["interactivity_per_s"].tolist(), found["throughput_per_s"].tolist(), strict=True)) == expected
        )


def test_every_point_is_what_its_own_layout_gives():
    found = sweep()
    for i in range(len(found)):
        layout, b = found.layout(i), int(found["batch"][i])
        alone = end_to_end.aggregated(
            "qwen3_235b_a22b",
            "gb300",
            layout=layout,
            batch=b,
            n_input=2048,
            n_output=512,
            precision=FP4,
            engine="sglang",
        )
        assert found["tpot_s"][i] == pytest.approx(float(alone.tpot_s))
        assert found["throughput_per_s"][i] == pytest.approx(float(alone.request_per_s) * 512 / layout.n_gpus)
        assert found["interactivity_per_s"][i] == 1 / found["tpot_s"][i]
        parts = sum(found[f"{part}_s"][i] for part in PARTS)
        assert parts + found["held_up_s"][i] == pytest.approx(found["tpot_s"][i])


def test_every_point_fits():
    how = dict(precisions={"fp8": FP8}, n_chips=[8, 16], engine="trtllm")
    found = sweep("deepseek_r1", "h200_sxm", **how, keep="all")
    assert (found["free_bytes"] >= 0).all()
    for i in range(0, len(found), 37):
        layout, b = found.layout(i), int(found["batch"][i])
        tokens = np.ceil(b / layout.dp) + 2048  # the sequences' own and a prompt's
        use = dict(layout=layout, batch=b, n_context=2048 + 512, n_step_tokens=tokens, precision=FP8)
        held = memory.memory("deepseek_r1", "h200_sxm", **use)
        assert held.fits and found["free_bytes"][i] == pytest.approx(float(held.free_bytes))


@settings(max_examples=15, deadline=None)
@given(st.sets(st.sampled_from([1, 2, 4, 8, 16]), min_size=1), st.sampled_from([1, 2, 4, 8, 16]))
def test_another_size_never_makes_a_frontier_worse(sizes, more):
    mix = {"m": Precision(weights="bf16", activations="bf16", kv="fp8", experts="nvfp4")}
    small, large = (sweep("gpt_oss_120b", n_chips=sorted(s), precisions=mix) for s in (sizes, sizes | {more}))
    for x, y in zip(small["interactivity_per_s"], small["throughput_per_s"], strict=True):
        assert ((large["interactivity_per_s"] >= x) & (large["throughput_per_s"] >= y)).any()


def test_limits_are_kept_and_best_is_the_best():
    every = sweep(keep="all")
    tpot_s, ttft_s = (float(np.median(every[name])) for name in ("tpot_s", "ttft_s"))
    limits = dict(tpot_limit_s=tpot_s, ttft_limit_s=ttft_s)
    limited = Workload(n_input=2048, n_output=512, n_concurrent=BATCHES, **limits)
    kept, all_kept = sweep(workload=limited), sweep(workload=limited, keep="all")
    ok = (every["tpot_s"] <= tpot_s) & (every["ttft_s"] <= ttft_s)
    assert 0 < len(all_kept) == ok.sum() < len(every)
    assert (kept["tpot_s"] <= tpot_s).all() and (kept["ttft_s"] <= ttft_s).all()
    i = frontier.best(kept, under=limited)
    assert kept["throughput_per_s"][i] == every["throughput_per_s"][ok].max()
    assert every["throughput_per_s"][frontier.best(every, under=limited)] == kept["throughput_per_s"][i]
    assert kept.binds(i) in ("projections", "attention", "ffn", "experts", "communication", "overhead")


def test_the_area_under_a_frontier():
    found = sweep(keep="all")
    kept = frontier.frontier(found)
    grid = np.linspace(10, 150, 20_001)
    stairs = [kept["throughput_per_s"][kept["interactivity_per_s"] >= x].max(initial=0) for x in grid]
    assert frontier.area(found, slowest_per_s=10, fastest_per_s=150) == pytest.approx(np.mean(stairs) * 140, rel=1e-3)
    assert frontier.area(kept, slowest_per_s=1e6, fastest_per_s=2e6) == 0
    with pytest.raises(ValueError, match="slowest_per_s is 50, fastest_per_s 5; allowed: slowest below fastest"):
        frontier.area(kept, slowest_per_s=50, fastest_per_s=5)


def test_best_refuses_what_it_cannot_know():
    kept = sweep()
    with pytest.raises(ValueError, match="without this limit on TTFT; allowed: give it to sweep"):
        frontier.best(kept, under=Workload(n_input=1, n_output=1, n_concurrent=1, ttft_limit_s=1e-3))
    with pytest.raises(ValueError, match=r"no point keeps the limits; allowed: slower ones \(least tpot_s "):
        frontier.best(kept, under=Workload(n_input=1, n_output=1, n_concurrent=1, tpot_limit_s=1e-4))


class TestDisaggregated:
    def test_rates_match(self):
        found = sweep(modes=["disaggregated"], n_chips=[8])
        i = len(found) // 2
        share = found["prefill_fraction"][i]
        pool = pools.prefill_pool(
            models.MODELS["qwen3_235b_a22b"],
            hardware.chip("gb300"),
            n_chips=[8],
            n_input=2048,
            precision=FP4,
            engine="sglang",
        )
        read = share * pool.prompts_per_s[pool.best()]
        made = (1 - share) * found["batch"][i] / (512 * found["tpot_s"][i]) / found["n_gpus"][i]
        assert found["n_draft"][i] == 0
        assert read == pytest.approx(made)
        assert found["throughput_per_s"][i] == pytest.approx(512 * read)
        assert found["held_up_s"][i] == 0

    def test_a_limit_on_the_first_token_costs_throughput(self):
        load = Workload(n_input=65_536, n_output=512, n_concurrent=BATCHES)
        free = sweep(modes=["disaggregated"], workload=load, n_chips=[8, 16])
        fastest = float(free["ttft_s"].min())
        tight = Workload(n_input=65_536, n_output=512, n_concurrent=BATCHES, ttft_limit_s=0.6 * fastest)
        held = sweep(modes=["disaggregated"], workload=tight, n_chips=[8, 16])
        assert (held["ttft_s"] <= 0.6 * fastest).all()
        assert held["throughput_per_s"].max() < free["throughput_per_s"].max()

    @pytest.mark.parametrize("limit_s", [0.1, 0.15, 0.2, 0.3, None])
    def test_the_best_reader_of_every_point_by_brute_force(self, limit_s):
        """Each layout that reads with each point that decodes; the best keeps its throughput within the tie of 1 %."""
        load = Workload(n_input=8192, n_output=1024, n_concurrent=BATCHES, ttft_limit_s=limit_s)
        free = replace(load, ttft_limit_s=None)
        how = dict(precisions={"fp4": FP4}, n_chips=[8, 16, 64], keep="all", routing="skewed")
        pool = pools.prefill_pool(
            models.MODELS["deepseek_r1"], hardware.chip("gb300"), n_chips=[8, 16, 64], n_input=8192, precision=FP4,
            engine="sglang", routing="skewed",
        )  # fmt: skip
        points = sweep("deepseek_r1", workload=load, modes=["disaggregated"], **how)
        alone = sweep("deepseek_r1", workload=free, modes=["decode"], **how)
        sizes = np.asarray(pool.layout.n_gpus, float)
        sent = pools.transfer_s(
            models.MODELS["deepseek_r1"], hardware.chip("gb300"), n_input=8192, precision=FP4, n_from=sizes[:, None],
            n_to=np.array([8.0, 16.0, 64.0]),
        )[:, np.searchsorted([8, 16, 64], alone["n_gpus"])]  # fmt: skip
        ttft = pool.ttft_s[:, None] + sent + alone["ttft_s"]
        each = 1 / (1 / alone["throughput_per_s"] + 1 / (1024 * pool.prompts_per_s[:, None]))
        best = np.where(ttft <= (np.inf if limit_s is None else limit_s), each, 0).max(axis=0)
        columns = (*AXES, "batch")
        place = {key: i for i, key in enumerate(zip(*(alone[c].tolist() for c in columns), strict=True))}
        at = [place[key] for key in zip(*(points[c].tolist() for c in columns), strict=True)]
        assert sorted(at) == np.flatnonzero(best).tolist()
        found = points["throughput_per_s"]
        assert (found <= best[at] * (1 + 1e-12)).all() and (found >= 0.99 * best[at]).all()

    def test_a_looser_limit_is_never_worse(self):
        how = dict(precisions={"fp4": FP4}, n_chips=[8, 16, 64], modes=["disaggregated"], routing="skewed")
        best = []
        for limit_s in (0.15, 0.158, 0.2, 0.225, 0.25, 0.258, 0.3, 1.0, None):
            load = Workload(n_input=8192, n_output=1024, n_concurrent=2 ** np.arange(0, 13, 3), ttft_limit_s=limit_s)
            best.append(sweep("deepseek_r1", workload=load, **how)["throughput_per_s"].max())
        assert all(b >= 0.99 * a for a, b in itertools.pairwise(best)), best
        assert best[-1] > best[0]

    def test_of_equal_rates_the_smaller_instance_reads(self):
        pool = pools.prefill_pool(
            models.MODELS["deepseek_r1"], hardware.chip("gb300"), n_chips=[4, 8, 72], n_input=1024, precision=FP4,
            engine="sglang", routing="skewed",
        )  # fmt: skip
        gpus, rate = np.asarray(pool.layout.n_gpus), pool.prompts_per_s
        most = {n: rate[gpus == n].max() for n in (4, 72)}
        at = pool.best()
        assert most[4] > 0.99 * rate.max() and gpus[at] == 4 and rate[at] == most[4]

    def test_a_limit_given_later_is_refused(self):
        found = sweep(modes=["disaggregated"], keep="all", n_chips=[8])
        late = float(np.median(found["ttft_s"]))
        limit = Workload(n_input=2048, n_output=512, n_concurrent=BATCHES, ttft_limit_s=late)
        with pytest.raises(ValueError, match="reading layouts chosen, without this limit on TTFT"):
            frontier.best(found, under=limit)
        again = sweep(modes=["disaggregated"], n_chips=[8], workload=limit)
        assert again["ttft_s"][frontier.best(again, under=limit)] <= late

    def test_pipelines_bring_the_first_token_forward(self):
        pool = pools.prefill_pool(
            models.MODELS["llama_3_1_405b"], hardware.chip("gb300"), n_chips=[4], n_input=65_536, precision=FP4
        )
        chunked = (np.asarray(pool.layout.pp) == 4) & (pool.n_chunks == 16)
        whole = (np.asarray(pool.layout.pp) == 4) & (pool.n_chunks == 1)
        assert pool.ttft_s[chunked] < 0.5 * pool.ttft_s[whole]

    def test_chunks_through_stages_in_closed_form(self):
        of, chip = models.MODELS["llama_3_1_405b"], hardware.chip("gb300")
        pool = pools.prefill_pool(of, chip, n_chips=[8], n_input=8192, precision=FP4)
        at = (np.asarray(pool.layout.pp) == 2) & (np.asarray(pool.layout.dp) == 2) & (pool.n_chunks == 4)
        i = int(np.flatnonzero(at)[0])
        took = prefill.layer_costs(
            of, chip, n_new=2048, n_prefix=2048 * np.arange(4), layout=pool.layout[i], precision=FP4
        ).total_s
        assert pool.ttft_s[i] == pytest.approx((took.sum() + took.max()) / 2)
        assert pool.prompts_per_s[i] == pytest.approx(2 * 2 / took.sum() / 8)

    def test_the_transfer_is_over_links_inside_a_domain(self):
        r1, chip = models.MODELS["deepseek_r1"], hardware.chip("gb300")
        took = pools.transfer_s(r1, chip, n_input=8192, precision=FP8, n_from=8, n_to=[8, 72])
        size = float(models.kv_bytes(r1, 8192, "fp8"))
        assert took.tolist() == pytest.approx(
            [size / (8 * chip.link_bytes_per_s), size / (8 * chip.scale_out_bytes_per_s)]
        )
        with pytest.raises(ValueError, match="no scale_out_bytes_per_s"):
            pools.transfer_s(r1, hardware.chip("mi300x"), n_input=8192, precision=FP8, n_from=8, n_to=8)

    def test_the_first_token_is_the_prompt_the_transfer_and_a_whole_step(self):
        """Also with drafts, where a step makes several tokens. Who reads is told by its own axes."""
        of, chip, how = models.MODELS["qwen3_235b_a22b"], hardware.chip("gb300"), dict(n_draft=3, acceptance=0.8)
        found = sweep(modes=["disaggregated"], keep="all", workload=replace(LOAD, ttft_limit_s=0.05), **how)
        pool = pools.prefill_pool(of, chip, n_chips=[4, 8], n_input=2048, precision=FP4, engine="sglang")
        assert (found["prefill_dp"] != found["prefill_ep"]).any()
        for i in range(0, len(found), 29):
            at = np.ones(len(pool.ttft_s), bool)
            for axis in ("tp_attention", "dp", "ep", "pp"):
                at &= np.asarray(getattr(pool.layout, axis)) == found[f"prefill_{axis}"][i]
            at = int(np.flatnonzero(at & (pool.n_chunks == found["prefill_n_chunks"][i]))[0])
            n_from, n_to = int(np.asarray(pool.layout.n_gpus)[at]), int(found["n_gpus"][i])
            sent = pools.transfer_s(of, chip, n_input=2048, precision=FP4, n_from=n_from, n_to=n_to)
            step = sum(found[f"{part}_s"][i] for part in PARTS)
            assert found["ttft_s"][i] == pytest.approx(float(pool.ttft_s[at] + sent + step))
            assert found["tpot_s"][i] == pytest.approx(step / end_to_end.tokens_a_step(3, 0.8))

    def test_states_are_sent_with_the_cache(self):
        of, chip = models.MODELS["jamba_1_5_mini"], hardware.chip("gb300")
        took = pools.transfer_s(of, chip, n_input=1024, precision=FP4, n_from=8, n_to=8)
        size = models.kv_bytes(of, 1024, "fp8") + models.state_bytes(of, "bf16", with_convolution=True)
        assert models.state_bytes(of, "fp8") > 0 and took == pytest.approx(float(size / 8 / chip.link_bytes_per_s))

    def test_a_reader_holds_a_prompt_a_replica_and_stage(self):
        """Prompts so long that few fit: each stage of each replica holds one, and its activations."""
        of, chip = models.MODELS["llama_3_1_405b"], hardware.chip("h200_sxm")
        mix = Precision(weights="fp8", activations="fp8", kv="bf16")
        found = pools.reading_layouts(of, chip, n_chips=[8, 16], n_input=524_288, precision=mix)
        every = layouts([8, 16], of, precision=mix)
        fits = [
            bool(memory.memory(of, chip, layout=x, batch=x.dp * x.pp, n_context=524_288, n_step_tokens=524_288,
                               precision=mix).fits)
            for x in (every[i] for i in range(len(every))) if x.kvp == 1
        ]  # fmt: skip
        one = [
            bool(memory.memory(of, chip, layout=x, batch=x.dp, n_context=524_288, n_step_tokens=524_288,
                               precision=mix).fits)
            for x in (every[i] for i in range(len(every))) if x.kvp == 1
        ]  # fmt: skip
        assert len(found) == sum(fits) < sum(one) < len(one)

    def test_another_size_makes_it_worse_by_no_more_than_the_tie(self):
        how = dict(precisions={"fp4": FP4}, modes=["disaggregated"], routing="skewed")
        few, more = (sweep("deepseek_r1", n_chips=n, **how) for n in ([72], [4, 72]))
        for x, y in zip(few["interactivity_per_s"], few["throughput_per_s"], strict=True):
            assert more["throughput_per_s"][more["interactivity_per_s"] >= x].max() >= (1 - pools.AS_GOOD) * y

    def test_a_shorter_prompt_is_read_by_fewer(self):
        few, many = (
            sweep(modes=["disaggregated"], workload=Workload(n_input=n, n_output=512, n_concurrent=64), keep="all")
            for n in (128, 8192)
        )
        assert few["prefill_fraction"].max() < many["prefill_fraction"].max()


def test_decoding_alone_is_the_most_there_is():
    alone, split, shared = (
        sweep(modes=[m], keep="all", n_chips=[8]) for m in ("decode", "disaggregated", "aggregated")
    )
    assert same(alone[np.arange(0)], alone[np.arange(0)]) and len(alone) == len(split) > len(shared)
    assert alone["tpot_s"] == pytest.approx(split["tpot_s"])
    assert (alone["throughput_per_s"] > split["throughput_per_s"]).all()
    assert alone["prefill_fraction"].max() == 0
    every = alone["batch"] / (alone["ttft_s"] + 511 * alone["tpot_s"]) * 512 / alone["n_gpus"]
    assert alone["throughput_per_s"] == pytest.approx(every)


def test_decoding_alone_is_the_most_with_drafts_too():
    load = Workload(n_input=1024, n_output=64, n_concurrent=[1, 8, 64])
    how = dict(workload=load, keep="all", n_chips=[8], n_draft=7, acceptance=0.95)
    alone, split = (sweep(modes=[m], **how) for m in ("decode", "disaggregated"))
    decoded = split["throughput_per_s"] / (1 - split["prefill_fraction"])
    assert decoded == pytest.approx(alone["throughput_per_s"])
    assert (alone["throughput_per_s"] > split["throughput_per_s"]).all()


def test_the_drafter_s_time_is_counted():
    free, paid = (sweep(n_draft=3, acceptance=0.8, draft_s=s, keep="all") for s in (0.0, 1e-3))
    assert paid["tpot_s"] - free["tpot_s"] == pytest.approx(1e-3 / end_to_end.tokens_a_step(3, 0.8))


def test_drafts_are_a_column():
    found = sweep(n_draft=[0, 3], acceptance=0.8)
    assert set(found["n_draft"].tolist()) == {0, 3}
    fastest = {d: found["interactivity_per_s"][found["n_draft"] == d].max() for d in (0, 3)}
    assert fastest[3] > 1.5 * fastest[0]


class KilledWorker(Exception):
    """As Dask's: no relative of what concurrent.futures raises."""


class Here(Executor):
    """Runs at once; the second task's worker dies, and from task ``breaks`` on none is taken."""

    def __init__(self, error, breaks=np.inf):
        self.n, self.error, self.breaks = 0, error, breaks

    def submit(self, work, *args):
        self.n += 1
        if self.n >= self.breaks:
            raise BrokenProcessPool("broken")
        future = Future()
        if self.n == 2:
            future.set_exception(self.error)
        else:
            future.set_result(work(*args))
        return future


def same(a: Points, b: Points) -> bool:
    return len(a) == len(b) and all((a[name] == b[name]).all() for name in a.columns)


MIXES = {"fp4": FP4, "fp8": FP8, "fp4 wide": Precision(weights="nvfp4", activations="nvfp4", kv="bf16")}


@pytest.mark.parametrize(
    "error", [BrokenProcessPool("killed"), OSError("connection lost"), KilledWorker("three times")],
    ids=["killed", "lost", "Dask"],
)  # fmt: skip
def test_a_worker_that_died_loses_nothing(error):
    assert same(sweep(precisions=MIXES, executor=Here(error)), sweep(precisions=MIXES))


@pytest.mark.parametrize("breaks", [1, 3], ids=["from the start", "while submitting"])
def test_a_broken_pool_loses_nothing(breaks):
    assert same(sweep(precisions=MIXES, executor=Here(KilledWorker(), breaks=breaks)), sweep(precisions=MIXES))


class Hangs(Executor):
    """The first task never ends."""

    n = 0

    def submit(self, work, *args):
        self.n += 1
        future = Future()
        if self.n > 1:
            future.set_result(work(*args))
        if self.n == len(MIXES):
            signal.setitimer(signal.ITIMER_REAL, 0.3)
        return future


def test_an_interruption_keeps_what_finished_behind_what_hangs():
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        found = sweep(precisions=MIXES, executor=Hangs())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert not found.complete and set(found["precision"].tolist()) == {"fp8", "fp4 wide"}


def test_a_refusal_is_not_taken_for_a_dead_worker():
    with pytest.raises(ValueError, match="hand made"):
        sweep(precisions={"a": FP4, "b": FP4}, executor=Here(ValueError("hand made")))


def test_processes_give_the_same():
    with ProcessPoolExecutor(2) as two:
        assert same(
            sweep(precisions={"fp4": FP4, "fp8": FP8}, executor=two), sweep(precisions={"fp4": FP4, "fp8": FP8})
        )


def test_small_blocks_give_the_same(monkeypatch):
    whole = sweep(modes=frontier.MODES)
    monkeypatch.setattr(frontier, "BLOCK_POINTS", 64)
    parts = sweep(modes=frontier.MODES)
    assert same(frontier.frontier(whole), frontier.frontier(parts)) and parts.n_tried == whole.n_tried


def test_an_interruption_keeps_what_is_done(monkeypatch):
    real, calls = frontier.points_of, []

    def once(b):
        calls.append(b)
        if len(calls) > 1:
            signal.raise_signal(signal.SIGINT)
        return real(b)

    monkeypatch.setattr(frontier, "points_of", once)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        found = sweep(precisions={"fp4": FP4, "fp8": FP8})
        assert not found.complete and set(found["precision"].tolist()) == {"fp4"}
        calls.append(None)
        with pytest.raises(KeyboardInterrupt):
            sweep()
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_bar_is_shown_where_asked_for(monkeypatch):
    shown = []

    def bar(points, *, total, **_):
        for i, done in enumerate(points, 1):
            shown.append((i, total))
            yield done

    monkeypatch.setitem(sys.modules, "tqdm.auto", SimpleNamespace(tqdm=bar))
    mixes = {"fp4": FP4, "fp8": FP8}
    assert same(sweep(progress=True, precisions=mixes), sweep(precisions=mixes))
    assert shown == [(1, 2), (2, 2)]
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)  # not installed
    assert same(sweep(progress=True), sweep())


def test_what_is_refused_cancels_the_rest():
    class Waits(Here):
        left = None

        def submit(self, work, *args):
            if self.n == 2:
                self.left = Future()
                return self.left
            return super().submit(work, *args)

    executor = Waits(ValueError("hand made"))
    with pytest.raises(ValueError, match="hand made"):
        sweep(precisions=MIXES, executor=executor)
    assert executor.left.cancelled()


def named_number(refused, pattern: str) -> float:
    digits = re.search(pattern, str(refused.value)).group(1).replace(",", "")
    return float(digits) if "." in digits else int(digits)


class TestRefusals:
    def test_nothing_fits(self):
        with pytest.raises(
            ValueError, match=r"2,560 tokens a request on 4 H200 SXM: nothing fits; nearest that does: 8 "
        ):
            sweep("deepseek_r1", "h200_sxm", n_chips=4, precisions={"fp8": FP8}, engine="trtllm")

    def test_nothing_fits_disaggregated(self):
        bf16 = Precision(weights="fp8", activations="fp8", kv="fp8")
        how = dict(modes=["disaggregated"], precisions={"fp8": bf16}, engine="trtllm")
        with pytest.raises(ValueError, match=r"on 1 H200 SXM: nothing fits; nearest that does: 4 of them in fp8"):
            sweep("llama_3_1_405b", "h200_sxm", n_chips=1, **how)
        assert len(sweep("llama_3_1_405b", "h200_sxm", n_chips=4, **how))

    def test_nothing_fits_anywhere(self):
        load = Workload(n_input=10**9, n_output=1, n_concurrent=1)
        with pytest.raises(ValueError, match=r"nor on 72 of them; allowed: at most about .* or narrower") as refused:
            sweep("llama_3_1_405b", n_chips=8, workload=load)
        n = named_number(refused, r"at most about ([\d,]+) tokens")
        assert len(sweep("llama_3_1_405b", n_chips=72, workload=replace(load, n_input=n - 1)))

    @pytest.mark.parametrize("mode", frontier.MODES)
    def test_too_many_requests_at_once(self, mode):
        load = Workload(n_input=2048, n_output=512, n_concurrent=[100_000])
        how = dict(n_chips=[4, 8], modes=[mode])
        with pytest.raises(ValueError, match="100,000 requests at once do not fit; nearest that does") as refused:
            sweep(workload=load, **how)
        most = named_number(refused, "at most ([0-9,]+) requests at once, in fp4")
        assert len(sweep(workload=replace(load, n_concurrent=[most]), **how))
        with pytest.raises(ValueError, match="requests at once"):
            sweep(workload=replace(load, n_concurrent=[most + 1]), **how)

    @pytest.mark.parametrize("mode", frontier.MODES)
    @pytest.mark.parametrize("limit", ["tpot_limit_s", "ttft_limit_s"])
    def test_nothing_is_fast_enough(self, limit, mode):
        load = Workload(n_input=2048, n_output=512, n_concurrent=[8, 64], **{limit: 1e-5})
        with pytest.raises(ValueError, match=f"no point keeps the limits; allowed: {limit} of at least") as refused:
            sweep(workload=load, modes=[mode])
        least = named_number(refused, "at least ([0-9.]+)")
        assert len(sweep(workload=replace(load, **{limit: least}), modes=[mode]))
        with pytest.raises(ValueError, match="no point keeps"):
            sweep(workload=replace(load, **{limit: 0.998 * least}), modes=[mode])

    def test_each_limit_is_named_beside_the_other(self):
        load = Workload(n_input=2048, n_output=512, n_concurrent=[8, 64], ttft_limit_s=0.5, tpot_limit_s=1e-5)
        with pytest.raises(ValueError, match=r"tpot_limit_s of at least \S+ with ttft_limit_s 0.5, or a longer tpot"):
            sweep(workload=load)

    @pytest.mark.parametrize("mode", frontier.MODES)
    def test_both_limits_where_neither_alone_helps(self, mode):
        load = Workload(n_input=2048, n_output=512, n_concurrent=[8, 64], ttft_limit_s=1e-5, tpot_limit_s=1e-5)
        with pytest.raises(ValueError, match=r"allowed: both longer: tpot_limit_s .* and ttft_limit_s .*, each") as no:
            sweep(workload=load, modes=[mode])
        for limit, other in (("tpot_limit_s", "ttft_limit_s"), ("ttft_limit_s", "tpot_limit_s")):
            least = named_number(no, f"{limit} of at least ([0-9.]+)")
            assert len(sweep(workload=replace(load, **{limit: least, other: None}), modes=[mode]))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                dict(modes="aggregated"),
                "modes is 'aggregated'; allowed: a sequence of aggregated",
            ),
            (dict(modes=["both"]), "allowed: a sequence of"),
            (dict(executor=2), "executor is 2; allowed: one of concurrent.futures"),
            (dict(precisions=[FP4, FP8]), "precisions is .*; allowed: a Precision, or several in a dict by name"),
            (dict(precisions="fp8"), "precisions is 'fp8'; allowed: a Precision"),
            (dict(precisions={"a": "fp8"}), r"precisions\['a'\]: precision is 'fp8'; allowed: Precision\("),
            (dict(keep="best"), "keep is 'best'; allowed: frontier, all"),
            (dict(workload=Workload(n_input=[1, 2], n_output=1, n_concurrent=1)), "workload.n_input is an array"),
            (dict(chip="h200_sxm"), "H200 SXM has no nvfp4 peak"),
            (dict(chip="mi300x"), "MI300X has no calibrated kernels of sglang; allowed: .*gb300"),
            (dict(n_chips=997), "does not divide over"),
            (dict(n_draft=1, acceptance=1.5), "allowed: 0 to 1"),
            (dict(n_draft=[]), "n_draft is empty; allowed: one number, or several"),
            (dict(n_draft=1, acceptance=[0.5, 0.6]), r"acceptance is \[0.5, 0.6\]; allowed: one number"),
            (dict(draft_s=-1.0), "draft_s is -1.0; allowed: finite numbers of at least 0"),
            (dict(draft_s=[0.0]), r"draft_s is \[0.0\]; allowed: one number"),
            (dict(modes=(m for m in ["decode"])), "modes is <generator.*; allowed: a sequence of"),
            (dict(workload=None), "workload is None; allowed: a Workload"),
            (dict(workload=Workload(n_input=1, n_output=1, n_concurrent=[])), "workload.n_concurrent is empty"),
            (dict(precisions={1: FP4, "1": FP8}), r"precisions has the names \[1, '1'\]; allowed: texts"),
        ],
    )
    def test_wrong_input(self, change, message):
        with pytest.raises(ValueError, match=message):
            sweep(**change)


class TestPoints:
    def test_columns_rows_and_files(self, tmp_path):
        found = sweep()
        found.to_csv(tmp_path / "x.csv")
        rows = list(csv.DictReader((tmp_path / "x.csv").open()))
        assert len(rows) == len(found)
        assert float(rows[0]["tpot_s"]) == pytest.approx(found["tpot_s"][0])
        assert found.row(0)["batch"] == int(found["batch"][0])
        unnamed = sweep(precisions=FP4)  # the name it is given holds a comma
        unnamed.to_csv(tmp_path / "y.csv")
        rows = list(csv.DictReader((tmp_path / "y.csv").open()))
        assert rows[0]["precision"] == "nvfp4, KV fp8" and rows[0]["mode"] == "aggregated"
        assert [float(row["tpot_s"]) for row in rows] == pytest.approx(unnamed["tpot_s"].tolist())
        with pytest.raises(ValueError, match="best: there are no points; allowed: at least one"):
            frontier.best(found[found["batch"] < 0], under=LOAD)
        with pytest.raises(ValueError, match=r"no column 'tpot'; it has precision, mode"):
            found["tpot"]
        with pytest.raises(ValueError, match="one axis, of equal length"):
            Points(columns={"a": [1], "b": [1, 2]}, n_tried=2)
        with pytest.raises(ValueError, match="at least one"):
            joined([])

    def test_dataframe(self, monkeypatch):
        pandas = pytest.importorskip("pandas")
        assert isinstance(sweep().to_dataframe(), pandas.DataFrame)

    def test_without_pandas(self, monkeypatch):
        def missing(name):
            raise ModuleNotFoundError(name)

        monkeypatch.setattr("importlib.import_module", missing)
        with pytest.raises(ModuleNotFoundError, match="to_dataframe needs pandas"):
            sweep().to_dataframe()


def test_a_block_counts_what_it_tried():
    of, chip = models.MODELS["llama_3_1_8b"], hardware.chip("h100_sxm")
    bf16 = Precision(weights="bf16", activations="bf16", kv="bf16")
    one = block.Block(
        model=of, chip=chip, workload=LOAD, name="bf16", precision=bf16, mode="aggregated", layout=layouts(8, of)[:3],
        pool=None, engine="trtllm", routing="balanced", n_draft=0, acceptance=0.0, draft_s=0.0,
    )  # fmt: skip
    assert block.points_of(one).n_tried == 3 * BATCHES.size
    assert isinstance(block.points_of(one).layout(0), Layout)
