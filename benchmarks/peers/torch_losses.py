"""Speed of heddle's losses beside the same losses in PyTorch, value and gradient with respect to the student's logits: same shapes, same number of threads,
interleaved, medians over rounds.

In PyTorch the losses are those a trainer writes: log_softmax of both, kl_div (TRL's mixture by logsumexp for the Jensen-Shannon divergence), autograd. f32 is
computed in f32; bf16 logits are widened to f32 first, as trainers do, and the gradient comes back in bf16.
"""
import argparse
import json
import math
import statistics
import subprocess
import time

import torch
from torch.nn.functional import kl_div, log_softmax

options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
options.add_argument("--ours", required=True, help="loss_measure")
options.add_argument("--threads", type=int, default=2)
options.add_argument("--rounds", type=int, default=3)
options.add_argument("--rows", type=int, default=256)
options.add_argument("--vocabulary", type=int, default=49152)
given = options.parse_args()
torch.set_num_threads(given.threads)


def jsd(s, t):
    mixture = torch.logsumexp(torch.stack([s + math.log(0.5), t + math.log(0.5)]), dim=0)
    return 0.5 * (kl_div(mixture, t, reduction="sum", log_target=True) + kl_div(mixture, s, reduction="sum", log_target=True))


losses = {
    "reverse_kl": lambda s, t: kl_div(t, s, reduction="sum", log_target=True),
    "forward_kl": lambda s, t: kl_div(s, t, reduction="sum", log_target=True),
    "jsd": jsd,
}
types = {"f32": torch.float32, "bf16": torch.bfloat16}


def torch_seconds(loss, z, y):
    begin = time.perf_counter()
    z.grad = None
    (loss(log_softmax(z.float(), -1), log_softmax(y.float(), -1)) / len(z)).backward()
    return time.perf_counter() - begin


ours = subprocess.Popen([given.ours, str(given.threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
print(f"torch {torch.__version__}, {given.threads} threads, {given.rows} rows of {given.vocabulary}; medians of {given.rounds} rounds")
print(f"{'':24}{'PyTorch':>12}{'heddle':>12}{'ratio':>9}")
for element, dtype in types.items():
    z, y = ((torch.rand(given.rows, given.vocabulary) * 8 - 4).to(dtype) for _ in range(2))
    z.requires_grad_()
    for name, loss in losses.items():
        torch_seconds(loss, z, y)
        theirs, own = [], []
        for _ in range(given.rounds):
            theirs.append(torch_seconds(loss, z, y))
            request = dict(loss=name, element=element, rows=given.rows, vocabulary=given.vocabulary, repeats=3)
            print(json.dumps(request), file=ours.stdin, flush=True)
            own.append(json.loads(ours.stdout.readline())["seconds"])
        a, b = statistics.median(theirs), statistics.median(own)
        print(f"{name + ' ' + element:24}{a * 1e3:9.1f} ms{b * 1e3:9.2f} ms{a / b:9.1f}", flush=True)
ours.stdin.close()
