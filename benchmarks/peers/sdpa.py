"""Speed of heddle's attend() beside PyTorch's scaled_dot_product_attention: same shapes, same number of threads, interleaved, medians over rounds.

Rows are the last ones of the sequence. PyTorch gets its keys contiguous per head, its best case, grouped (enable_gqa) and also expanded to one key head
per query head beforehand, whichever is faster; for one row no mask is needed, for several rows the bottom-right causal mask is passed, for a
whole prompt is_causal. It computes f32 in f32, f16 and bf16 in their own type throughout; heddle has f32 queries and output in every case.
"""
import argparse
import json
import statistics
import subprocess
import time

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
options.add_argument("--ours", required=True, help="attend_measure")
options.add_argument("--threads", type=int, default=2)
options.add_argument("--rounds", type=int, default=5)
given = options.parse_args()
torch.set_num_threads(given.threads)

shapes = [dict(query_heads=32, kv_heads=8, head_dim=128, keys=16384, rows=r) for r in (1, 4, 16)]
shapes += [dict(query_heads=9, kv_heads=3, head_dim=64, keys=4096, rows=1), dict(query_heads=32, kv_heads=32, head_dim=128, keys=8192, rows=1)]
shapes += [dict(query_heads=32, kv_heads=8, head_dim=128, keys=2048, rows=2048)]
types = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def torch_calls(element, query_heads, kv_heads, head_dim, keys, rows):
    make = lambda heads, tokens: (torch.rand(1, heads, tokens, head_dim) * 2 - 1).to(types[element])
    q, k, v = make(query_heads, rows), make(kv_heads, keys), make(kv_heads, keys)
    mask, is_causal = None, rows == keys
    if 1 < rows < keys:
        mask = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)
    group = query_heads // kv_heads
    calls = [lambda: sdpa(q, k, v, attn_mask=mask, is_causal=is_causal, enable_gqa=group > 1)]
    if group > 1:
        wide_k, wide_v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        calls.append(lambda: sdpa(q, wide_k, wide_v, attn_mask=mask, is_causal=is_causal))
    return calls


def timed(call, repeats):
    call()
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - begin) / repeats


ours = subprocess.Popen([given.ours, str(given.threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
print(f"torch {torch.__version__}, {given.threads} threads; medians of {given.rounds} rounds")
print(f"{'':44}{'PyTorch':>12}{'heddle':>12}{'ratio':>9}")
with torch.no_grad():
    for shape in shapes:
        for element in types:
            repeats = 1 if shape["rows"] > 100 else 10
            calls = torch_calls(element, **shape)
            theirs, own = [], []
            for _ in range(given.rounds):
                theirs.append(min(timed(call, repeats) for call in calls))
                ours.stdin.write(json.dumps(dict(element=element, repeats=repeats, **shape)) + "\n")
                ours.stdin.flush()
                own.append(json.loads(ours.stdout.readline())["seconds"])
            name = f"{element} h{shape['query_heads']}x{shape['kv_heads']}d{shape['head_dim']} keys {shape['keys']} rows {shape['rows']}"
            ratio = statistics.median(t / o for t, o in zip(theirs, own))
            print(f"{name:44}{statistics.median(theirs) * 1e3:9.2f} ms{statistics.median(own) * 1e3:9.2f} ms{ratio:8.2f}x", flush=True)
ours.stdin.close()
ours.wait()
