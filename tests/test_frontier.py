"""The exact Pareto filter against comparing every point with every other; where one set of layouts starts to win."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codesign_lib.report.claims import helix_frontier
from codesign_lib.serving.decode import decode_step_s
from codesign_lib.serving.families import crossover_tokens, families
from codesign_lib.serving.frontier import pareto
from codesign_lib.serving.layout import layouts
from codesign_lib.specs import hardware, models
from codesign_lib.specs.formats import Precision

numbers = st.one_of(st.integers(-3, 3).map(float), st.floats(allow_nan=False))


@given(st.lists(st.tuples(numbers, numbers), max_size=40))
def test_against_brute_force(points):
    x, y = (np.array([p[i] for p in points], float) for i in (0, 1))
    kept = pareto(x, y).tolist()
    expected = []
    for i, (a, b) in enumerate(points):
        beaten = any(c >= a and d >= b and (c > a or d > b) for c, d in points)
        if not beaten and (a, b) not in points[:i] and min(a, b) > -np.inf:
            expected.append(i)
    assert kept == sorted(expected, key=lambda i: points[i][0])


def test_refuses():
    with pytest.raises(ValueError, match="one axis, of equal length"):
        pareto([1, 2], [1])
    with pytest.raises(ValueError, match="y is NaN at index 1"):
        pareto([1, 2], [1, np.nan])


IN_FP4 = Precision(weights="nvfp4", activations="nvfp4", kv="fp8", head="nvfp4")
LLAMA, GB200 = models.MODELS["llama_3_1_405b"], hardware.chip("gb200")
ALL = layouts([8, 16, 32, 64], LLAMA)
TP, HELIX = (ALL[families(ALL)[name]] for name in ("TP", "Helix"))


def crossover(model=LLAMA, chip=GB200, *, batch=8, bound=False, **how):
    how = {"least": 16} | how
    return crossover_tokens(model, chip, ours=HELIX, others=TP, batch=batch, precision=IN_FP4, bound=bound, **how)


def with_kv_heads(n: int) -> models.Model:
    layers = tuple(replace(x, mixers=tuple(replace(m, n_kv_heads=n) for m in x.mixers)) for x in LLAMA.config.layers)
    return replace(LLAMA, name=f"llama with {n}", config=replace(LLAMA.config, layers=layers))


class TestCrossover:
    def test_each_wins_on_its_side(self):
        found = crossover()
        for context, helix_wins in ((0.8 * found, False), (1.25 * found, True)):
            how = dict(batch=8, n_context=round(context), precision=IN_FP4)
            tp, helix = (decode_step_s(LLAMA, GB200, layout=x, **how).step_s.min() for x in (TP, HELIX))
            assert (helix < tp) == helix_wins

    def test_in_its_limits(self):
        assert crossover(most=1024) == np.inf
        assert crossover(least=2**22) == 2**22

    @settings(deadline=None, max_examples=15)
    @given(st.integers(1, 200), st.integers(2, 8), st.booleans())
    def test_more_sequences_sooner(self, batch, times, bound):
        # the cache grows with them, the weights do not
        assert crossover(batch=batch * times, bound=bound) < crossover(batch=batch, bound=bound)

    @settings(deadline=None, max_examples=15)
    @given(st.integers(1, 200), st.booleans())
    def test_more_key_value_heads_later(self, batch, bound):
        # heads that TP can divide need no division along the sequence
        found = [crossover(with_kv_heads(n), batch=batch, bound=bound) for n in (1, 8, 32, 64)]
        assert found == sorted(found) and found[-1] == np.inf

    @settings(deadline=None, max_examples=15)
    @given(st.integers(1, 200), st.floats(1.1, 8), st.booleans())
    def test_faster_memory_later_faster_links_sooner(self, batch, times, bound):
        how = dict(batch=batch, bound=bound, transfer_from=None if bound else "gb200")
        memory = replace(GB200, hbm_bytes_per_s=times * GB200.hbm_bytes_per_s)
        links = {x: times * getattr(GB200, x) for x in ("link_bytes_per_s", "link_peer_bytes_per_s")}
        at = crossover(**how)
        assert crossover(chip=memory, **how) > at
        assert crossover(chip=replace(GB200, **links), **how) < at

    def test_refuses(self):
        with pytest.raises(ValueError, match="least below most, arrays of layouts"):
            crossover(least=1024, most=512)
        with pytest.raises(ValueError, match="arrays of layouts"):
            crossover_tokens(LLAMA, GB200, ours=HELIX[0], others=TP, batch=1, precision=IN_FP4)
        with pytest.raises(ValueError, match="none empty"):
            crossover_tokens(LLAMA, GB200, ours=HELIX[:0], others=TP, batch=1, precision=IN_FP4)


def test_families_do_not_overlap():
    every = layouts([1, 4, 16], "deepseek_r1")
    found = families(every)
    assert sum(x.astype(int) for x in found.values()).max() == 1
    assert all(x.any() for x in found.values())
    assert found["TP"][[str(x) == "one GPU" for x in (every[i] for i in range(len(every)))]].all()


CROSS = dict(model="llama_3_1_405b")


@settings(max_examples=20)
@given(batch=st.integers(1, 256), more=st.integers(1, 64))
def test_more_sequences_bring_the_crossover_down(batch, more):
    few, many = (helix_frontier.crossover_tokens(**CROSS, batch=b) for b in (batch, batch + more))
    assert many <= few * (1 + 1e-9)


@settings(max_examples=20)
@given(batch=st.integers(1, 128), heads=st.sampled_from([1, 2, 4, 8, 16, 32]), bound=st.booleans())
def test_more_key_value_heads_push_the_crossover_up(batch, heads, bound):
    # TP divides them itself; up to the eight of a GPU's share nothing changes
    few, many = (
        helix_frontier.crossover_tokens(**CROSS, batch=batch, n_kv_heads=h, bound=bound) for h in (heads, 2 * heads)
    )
    assert many >= few * (1 - 1e-9)


@settings(max_examples=20)
@given(batch=st.integers(1, 128), ratio=st.floats(0.25, 4), faster=st.floats(1.1, 4))
def test_faster_memory_pushes_the_crossover_up_and_faster_links_down(batch, ratio, faster):
    for name, up in (("memory_ratio", True), ("link_ratio", False)):
        slow, fast = (
            helix_frontier.crossover_tokens(**CROSS, batch=batch, **{name: x}) for x in (ratio, ratio * faster)
        )
        assert fast >= slow * (1 - 1e-9) if up else fast <= slow * (1 + 1e-9)


def test_the_crossover_moves_with_each():
    at = helix_frontier.crossover_tokens
    here = at(**CROSS, batch=8)
    assert at(**CROSS, batch=64) < 0.5 * here < here < 0.2 * at(**CROSS, batch=1)
    assert at(**CROSS, batch=8, n_kv_heads=32) > 1.5 * here
    assert at(**CROSS, batch=8, memory_ratio=2) > 1.5 * here and at(**CROSS, batch=8, link_ratio=2) < 0.95 * here
