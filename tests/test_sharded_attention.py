"""Attention over shards of the cache against attention over the whole of it, and against plain loops."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codesign_lib.serving import sharded_attention as sharded

EXACT = {"rtol": 1e-7, "atol": 1e-7}


def by_hand(q, k, v, mask=None, scale=None):
    """Softmax in plain loops, for one sequence."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    n_heads, d = q.shape
    n_tokens, n_kv = k.shape[:2]
    out = np.zeros((n_heads, v.shape[-1]))
    for h in range(n_heads):
        head = h * n_kv // n_heads
        seen = [s for s in range(n_tokens) if mask is None or mask[h, s]]
        logits = [(1 / math.sqrt(d) if scale is None else scale) * float(q[h] @ k[s, head]) for s in seen]
        if seen:
            weights = [math.exp(x - max(logits)) for x in logits]
            out[h] = sum(w * v[s, head] for w, s in zip(weights, seen, strict=True)) / sum(weights)
    return out


@st.composite
def cases(draw):
    n_kv, group = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    n_tokens, n_shards = draw(st.integers(0, 40)), draw(st.integers(1, 9))
    d, d_value = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    size = draw(st.sampled_from([1e-8, 1.0, 30.0, 1e4, 1e8]))
    dtype = draw(st.sampled_from([np.float64, np.float32]))
    x = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    q, k, v = (
        x.normal(size=shape).astype(dtype)
        for shape in ((n_kv * group, d), (n_tokens, n_kv, d), (n_tokens, n_kv, d_value))
    )
    seen = draw(st.sampled_from([None, 0.0, 0.1, 0.6, 1.0]))
    mask = None if seen is None else x.random((n_kv * group, n_tokens)) < seen
    return size * q, k, v, mask, x.integers(0, n_shards, n_tokens)


class TestAgainstTheWhole:
    @settings(deadline=None, max_examples=300)
    @given(cases())
    def test_any_shards_any_mask_any_size(self, case):
        q, k, v, mask, owner = case
        merged = sharded.merge(sharded.attend_sharded(q, k, v, owner=owner, mask=mask))
        whole = sharded.attend(q, k, v, mask=mask)
        np.testing.assert_allclose(merged.out, whole.out, **EXACT)
        np.testing.assert_allclose(merged.out, by_hand(q, k, v, mask), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(merged.lse, whole.lse, **EXACT)
        assert merged.out.dtype == np.float64

    @settings(deadline=None, max_examples=100)
    @given(cases(), st.randoms(use_true_random=False))
    def test_in_any_order_and_in_steps(self, case, order):
        q, k, v, mask, owner = case
        parts = sharded.attend_sharded(q, k, v, owner=owner, mask=mask)
        order.shuffle(parts)
        cut = len(parts) // 2
        steps = sharded.merge([sharded.merge(parts[: cut + 1]), *parts[cut + 1 :]])
        np.testing.assert_allclose(steps.out, sharded.attend(q, k, v, mask=mask).out, **EXACT)

    @settings(deadline=None, max_examples=60)
    @given(cases())
    def test_each_rank_may_merge_its_own_heads(self, case):
        # what the all-to-all hands a rank: its slice of the heads from every shard
        q, k, v, mask, owner = case
        parts = sharded.attend_sharded(q, k, v, owner=owner, mask=mask)
        heads = range(len(q))
        slices = [sharded.merge(sharded.Partial(*(x[h : h + 1] for x in p)) for p in parts).out for h in heads]
        np.testing.assert_allclose(np.concatenate(slices), sharded.attend(q, k, v, mask=mask).out, **EXACT)

    def test_key_value_heads_of_other_ranks_do_not_matter(self):
        x = np.random.default_rng(1).normal
        q, k, v = x(size=(8, 4)), x(size=(20, 4, 4)), x(size=(20, 4, 3))
        ranks = [sharded.attend(q[2 * r : 2 * r + 2], k[:, r : r + 1], v[:, r : r + 1]).out for r in range(4)]
        np.testing.assert_allclose(np.concatenate(ranks), sharded.attend(q, k, v).out, **EXACT)

    def test_appending_a_token_at_a_time(self):
        x = np.random.default_rng(2).normal
        q, k, v = x(size=(50, 4, 8)), x(size=(50, 2, 8)), x(size=(50, 2, 8))
        held = [[], [], []]
        for t in range(50):
            held[sharded.owners(t + 1, n_shards=3, block_tokens=4)[-1]].append(t)
            parts = [sharded.attend(q[t], k[h], v[h]) for h in (np.array(s, int) for s in held)]
            np.testing.assert_allclose(sharded.merge(parts).out, by_hand(q[t], k[: t + 1], v[: t + 1]), **EXACT)


class TestExtremes:
    @pytest.mark.parametrize("size", [1e10, 1e20, 1e150])
    def test_equal_logits_however_large_weigh_tokens_equally(self, size):
        # the logarithm of the sum alone would weigh shards, not tokens: 10²⁰ + log 3 is 10²⁰
        q, k, v = np.full((1, 1), size), np.ones((8, 1, 1)), np.arange(8.0).reshape(8, 1, 1)
        parts = sharded.attend_sharded(q, k, v, owner=[0, 0, 0, 1, 1, 1, 1, 1])
        assert sharded.merge(parts).out[0, 0] == pytest.approx(3.5)

    def test_logits_far_apart(self):
        q, k, v = np.array([[1e5]]), np.array([1.0, -1.0, 0.0]).reshape(3, 1, 1), np.arange(3.0).reshape(3, 1, 1)
        with np.errstate(all="raise", under="ignore"):
            merged = sharded.merge(sharded.attend_sharded(q, k, v, owner=[2, 1, 0]))
        assert merged.out[0, 0] == 0.0 and merged.lse[0] == 1e5

    def test_what_sees_nothing(self):
        q, k, v = np.ones((2, 3)), np.ones((4, 1, 3)), np.ones((4, 1, 2))
        mask = np.array([[False] * 4, [True] * 4])
        with np.errstate(all="raise"):
            merged = sharded.merge(sharded.attend_sharded(q, k, v, owner=[0, 0, 2, 2], mask=mask))
            nothing = sharded.attend(q, k[:0], v[:0])
        np.testing.assert_array_equal(merged.out, [[0, 0], [1, 1]])
        assert merged.lse[0] == -np.inf and nothing.lse.tolist() == [-np.inf] * 2
        np.testing.assert_array_equal(nothing.out, np.zeros((2, 2)))


class TestLatent:
    @settings(deadline=None, max_examples=60)
    @given(st.integers(0, 30), st.integers(1, 6), st.integers(0, 2**32 - 1), st.sampled_from([np.float64, np.float32]))
    def test_absorbed_and_sharded_is_expanded_and_whole(self, n_tokens, n_shards, seed, dtype):
        x = np.random.default_rng(seed)
        shapes = ((4, 5), (4, 2), (n_tokens, 7), (n_tokens, 2), (4, 5, 7), (4, 7, 3))
        q, q_rope, c, k_rope, key_up, value_up = (x.normal(size=s).astype(dtype) for s in shapes)
        mask = x.random((4, n_tokens)) < 0.8
        owner = sharded.owners(n_tokens, n_shards=n_shards, block_tokens=3)
        parts = [
            sharded.absorbed(q, q_rope, c[owner == i], k_rope[owner == i], key_up=key_up, mask=mask[:, owner == i])
            for i in range(n_shards)
        ]
        keys = np.concatenate([np.einsum("sr,hdr->shd", c, key_up), np.repeat(k_rope[:, None], 4, 1)], axis=-1)
        values = np.einsum("sr,hrv->shv", c, value_up)
        whole = by_hand(np.concatenate([q, q_rope], axis=-1).astype(float), keys.astype(float), values, mask)
        np.testing.assert_allclose(sharded.expanded(sharded.merge(parts).out, value_up), whole, rtol=1e-5, atol=1e-5)

    def test_expanding_before_or_after_the_merge_is_the_same(self):
        x = np.random.default_rng(3).normal
        q, q_rope, c, k_rope, up, down = (x(size=s) for s in ((2, 3), (2, 2), (9, 4), (9, 2), (2, 3, 4), (2, 4, 3)))
        parts = [sharded.absorbed(q, q_rope, c[i::2], k_rope[i::2], key_up=up) for i in (0, 1)]
        early = sharded.merge(p._replace(out=sharded.expanded(p.out, down)) for p in parts).out
        np.testing.assert_allclose(early, sharded.expanded(sharded.merge(parts).out, down), **EXACT)


class TestShapes:
    def test_leading_axes_broadcast(self):
        # three queries of each of two sequences, causal among themselves
        x = np.random.default_rng(4).normal
        q, k, v = x(size=(2, 3, 4, 5)), x(size=(2, 1, 7, 2, 5)), x(size=(2, 1, 7, 2, 5))
        mask = np.tril(np.ones((3, 7), bool), k=4)[:, None, :]
        merged = sharded.merge(sharded.attend_sharded(q, k, v, owner=[0, 0, 1, 1, 2, 2, 0], mask=mask))
        for b in range(2):
            for i in range(3):
                one = by_hand(q[b, i], k[b, 0], v[b, 0], np.broadcast_to(mask[i], (4, 7)))
                np.testing.assert_allclose(merged.out[b, i], one, **EXACT)

    def test_a_mask_for_all_tokens_at_once(self):
        q, k, v = np.ones((2, 3)), np.ones((4, 1, 3)), np.ones((4, 1, 2))
        parts = sharded.attend_sharded(q, k, v, owner=[0, 1, 1, 0], mask=np.array([[True], [False]]))
        np.testing.assert_array_equal(sharded.merge(parts).out, [[1, 1], [0, 0]])


class TestOwners:
    @pytest.mark.parametrize(("n_shards", "block_tokens"), [(1, 1), (3, 1), (4, 16), (5, 32), (64, 16)])
    def test_shards_differ_by_a_block_at_most(self, n_shards, block_tokens):
        for n_tokens in (0, 1, block_tokens, 1000, 1024):
            held = np.bincount(
                sharded.owners(n_tokens, n_shards=n_shards, block_tokens=block_tokens), minlength=n_shards
            )
            assert held.sum() == n_tokens and held.max() - held.min() <= block_tokens

    def test_a_block_stays_together(self):
        owner = sharded.owners(96, n_shards=3, block_tokens=8).reshape(-1, 8)
        assert (owner == owner[:, :1]).all() and owner[:, 0].tolist() == [0, 1, 2] * 4

    def test_an_owner_stays(self):
        many = sharded.owners(1000, n_shards=7, block_tokens=16)
        for n in (1, 16, 17, 500):
            np.testing.assert_array_equal(sharded.owners(n, n_shards=7), many[:n])

    @pytest.mark.parametrize("change", [{"n_shards": 0}, {"block_tokens": 1.5}, {"n_shards": True}])
    def test_refuses(self, change):
        with pytest.raises(ValueError, match=r"owners: .* allowed: whole numbers from 1"):
            sharded.owners(4, **({"n_shards": 2} | change))


Q, K, V = np.ones((4, 3)), np.ones((5, 2, 3)), np.ones((5, 2, 6))


class TestRefuses:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"queries": Q * np.nan}, "attend: queries is NaN"),
            ({"keys": K * np.inf}, "attend: keys is infinite"),
            ({"values": V.astype(str)}, "attend: values is array"),
            ({"queries": np.ones(3)}, r"queries has the shape \(3,\); allowed: 2 axes and more"),
            ({"keys": np.ones((5, 2, 4))}, r"allowed: \(…, H, d\)"),
            ({"values": np.ones((4, 2, 6))}, r"allowed: \(…, H, d\)"),
            ({"queries": np.ones((3, 3))}, "3 query heads on 2 key-value heads; allowed: a multiple"),
            ({"queries": Q * 1e200, "keys": K * 1e200}, "overflow; allowed: finite logits"),
            ({"mask": np.ones((4, 5))}, "mask of type float64; allowed: booleans"),
            ({"mask": np.ones((4, 6), bool)}, "mask of shape .* allowed: what broadcasts"),
            ({"scale": 0.0}, "scale is 0.0"),
        ],
    )
    def test_attend(self, change, message):
        with pytest.raises(ValueError, match=message):
            sharded.attend(**({"queries": Q, "keys": K, "values": V} | change))

    def test_merge_of_nothing(self):
        with pytest.raises(ValueError, match="merge: no parts"):
            sharded.merge([])

    @pytest.mark.parametrize("owner", [[0, 1], [0.0] * 5, [0, 0, -1, 0, 0], [[0] * 5]])
    def test_owners_of_other_tokens(self, owner):
        with pytest.raises(ValueError, match="a whole number from 0 for each of S tokens"):
            sharded.attend_sharded(Q, K, V, owner=owner)

    def test_latents_of_another_rank(self):
        how = dict(queries_nope=np.ones((2, 3)), queries_rope=np.ones((2, 1)), keys_rope=np.ones((4, 1)))
        with pytest.raises(ValueError, match=r"absorbed: .* allowed: \(…, H, d\)"):
            sharded.absorbed(**how, latents=np.ones((4, 5)), key_up=np.ones((2, 3, 6)))


@pytest.mark.parametrize("short", [dict(values=V[:-1]), dict(mask=np.ones(len(K) - 1, bool))])
def test_shards_of_fewer_values_or_masks_than_keys_are_refused(short):
    given = dict(keys=K, values=V, owner=np.zeros(len(K), int)) | short
    with pytest.raises(ValueError, match=f"attend_sharded: {next(iter(short))} of shape"):
        sharded.attend_sharded(Q, **given)
