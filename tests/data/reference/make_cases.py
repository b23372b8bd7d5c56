#!/usr/bin/env python3
"""Makes the small attention problems that the oracle in kernels/reference is checked against.

    tests/data/reference/make_cases.py

A second formulation, independent of the C++ one: whole matrices in NumPy float64, masks from
broadcast index grids, log-sum-exp by pairwise logaddexp, probabilities as exp(s - lse). Inputs are
float32 or float16 values, so that both sides start from the same numbers. Each case is NAME_*.npy
and one line of cases.txt. Run with Debian's python3-numpy 1.24; the output is the same each time.
"""

import os

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))

# seqlens and heads; then what differs from plain attention.
CASES = [
    dict(name="plain", sq=9, sk=13, hq=2, hk=2, d=8, dv=8),
    dict(name="one_key", sq=3, sk=1, hq=2, hk=1, d=4, dv=6),
    dict(name="groups", sq=7, sk=11, hq=6, hk=2, d=5, dv=9),
    dict(name="causal", sq=12, sk=12, hq=2, hk=1, d=16, dv=16, causal=1),
    dict(name="causal_more_keys", sq=5, sk=14, hq=2, hk=2, d=7, dv=3, causal=1),
    dict(name="causal_fewer_keys", sq=14, sk=5, hq=2, hk=2, d=7, dv=3, causal=1),
    dict(name="window", sq=15, sk=15, hq=2, hk=2, d=8, dv=8, left=3, right=2),
    dict(name="window_zero", sq=6, sk=9, hq=1, hk=1, d=8, dv=8, left=0, right=0),
    dict(name="window_left_causal", sq=10, sk=16, hq=2, hk=1, d=8, dv=8, left=4, causal=1),
    dict(name="scale_negative", sq=6, sk=8, hq=2, hk=2, d=8, dv=8, scale=-0.75),
    dict(name="scale_zero", sq=6, sk=8, hq=1, hk=1, d=8, dv=8, scale=0.0),
    dict(name="softcap", sq=8, sk=10, hq=2, hk=2, d=8, dv=8, scale=1.0, softcap=1.5),
    dict(name="bias", sq=8, sk=10, hq=2, hk=2, d=8, dv=8, bias=1),
    dict(name="bias_masked", sq=8, sk=10, hq=2, hk=1, d=8, dv=8, bias=2),
    dict(name="alibi", sq=8, sk=12, hq=4, hk=2, d=8, dv=8, alibi=1),
    dict(name="sinks", sq=8, sk=12, hq=4, hk=2, d=8, dv=8, sinks=1),
    dict(name="sinks_no_keys", sq=4, sk=0, hq=2, hk=2, d=8, dv=8, sinks=1),
    dict(name="large", sq=8, sk=12, hq=2, hk=2, d=8, dv=8, scale=40.0),
    dict(name="half", sq=9, sk=17, hq=2, hk=2, d=12, dv=10, half=1, causal=1),
    dict(name="everything", sq=11, sk=19, hq=6, hk=3, d=10, dv=7, scale=0.6, softcap=2.5, causal=1,
         left=9, bias=2, alibi=1, sinks=1),
]


def attention(case, q, k, v, bias, slopes, sinks):
    """o [Sq, Hq, Dv] and lse [Hq, Sq] in float64."""
    sq, sk, group = case["sq"], case["sk"], case["hq"] // case["hk"]
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    s = np.float64(np.float32(case.get("scale", 1 / np.sqrt(np.float32(case["d"]))))) * np.einsum(
        "ihd,jhd->hij", q, k)
    cap = case.get("softcap", 0)
    if cap:
        s = cap * np.tanh(s / cap)
    if bias is not None:
        s = s + bias.astype(np.float64)
    position = np.arange(sq)[:, None] + sk - sq
    key = np.arange(sk)[None, :]
    if slopes is not None:
        s = s - slopes.astype(np.float64)[:, None, None] * np.abs(position - key)
    hidden = np.zeros((sq, sk), bool)
    if case.get("causal"):
        hidden |= key > position
    if "left" in case:
        hidden |= key < position - case["left"]
    if "right" in case:
        hidden |= key > position + case["right"]
    s = np.where(hidden, -np.inf, s)
    lse = np.logaddexp.reduce(s, axis=2, initial=-np.inf)
    sees_nothing = np.isneginf(lse)
    if sinks is not None:
        lse = np.logaddexp(lse, sinks.astype(np.float64)[:, None])
    with np.errstate(invalid="ignore"):
        p = np.where(sees_nothing[:, :, None], 0, np.exp(s - lse[:, :, None]))
    return np.einsum("hij,jhd->ihd", p, v), lse


def main():
    lines, inputs, outputs = [], [], []
    for index, case in enumerate(CASES):
        rng = np.random.default_rng(20240 + index)
        dtype = np.float16 if case.get("half") else np.float32

        def draw(*shape):
            return rng.standard_normal(shape).astype(dtype)

        q = draw(case["sq"], case["hq"], case["d"])
        k = draw(case["sk"], case["hk"], case["d"])
        v = draw(case["sk"], case["hk"], case["dv"])
        bias = slopes = sinks = None
        if case.get("bias"):
            bias = rng.standard_normal((case["hq"], case["sq"], case["sk"])).astype(np.float32)
            if case["bias"] == 2:
                bias[rng.random(bias.shape) < 0.3] = -np.inf
                bias[:, 2, :] = -np.inf
        if case.get("alibi"):
            slopes = (0.5 ** np.arange(1, case["hq"] + 1)).astype(np.float32)
        if case.get("sinks"):
            sinks = rng.standard_normal(case["hq"]).astype(np.float32)
        inputs += [x for x in (q, k, v, bias, slopes, sinks) if x is not None]
        outputs += attention(case, q, k, v, bias, slopes, sinks)
        lines.append(" ".join(f"{key}={value}" for key, value in case.items()))
    flat = lambda arrays: np.concatenate([x.astype(np.float64).ravel() for x in arrays])
    np.save(os.path.join(HERE, "inputs.npy"), flat(inputs))
    np.save(os.path.join(HERE, "outputs.npy"), flat(outputs))
    with open(os.path.join(HERE, "cases.txt"), "w") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
