"""Golden values and gradients of base divergences, from PyTorch in float64: tests/golden/distillation_losses.json.

    python -m venv venv && venv/bin/pip install torch==2.9.1 numpy==2.4.6
    venv/bin/python tests/golden/distillation_losses.py

Values are per row, gradients with respect to the student's raw logits of the sum over rows, all by autograd from PyTorch's own log_softmax and kl_div.
The generalised Jensen-Shannon divergence is written the way TRL's GKD trainer computes it: log of the mixture by logsumexp of the two log-probabilities and
the logs of the weights, two kl_div, beta 0 and 1 apart.
"""
import json
import math
import pathlib

import torch
from torch.nn.functional import kl_div, log_softmax

torch.manual_seed(20)
torch.set_default_dtype(torch.float64)
N, V = 3, 29


def forward_kl(s, t):
    return kl_div(s, t, reduction="none", log_target=True).sum(-1)


def reverse_kl(s, t):
    return kl_div(t, s, reduction="none", log_target=True).sum(-1)


def generalized_jsd(beta):
    def value(s, t):
        if beta == 0:
            return forward_kl(s, t)
        if beta == 1:
            return reverse_kl(s, t)
        mixture = torch.logsumexp(torch.stack([s + math.log(1 - beta), t + math.log(beta)]), dim=0)
        return beta * kl_div(mixture, t, reduction="none", log_target=True).sum(-1) + (1 - beta) * kl_div(mixture, s, reduction="none", log_target=True).sum(-1)

    return value


def total_variation(s, t):
    return 0.5 * (s.exp() - t.exp()).abs().sum(-1)


def top_k_tail(divergence, k):
    def value(s, t):
        ids = t.topk(k, dim=-1).indices
        def buckets(p):
            inside = p.gather(-1, ids)
            return torch.cat([inside, torch.log1p(-inside.exp().sum(-1, keepdim=True))], dim=-1)
        return divergence(buckets(s), buckets(t))

    return value


def renormalised(divergence, k):
    def value(s, t):
        ids = s.topk(k, dim=-1).indices
        return divergence(log_softmax(s.gather(-1, ids), -1), log_softmax(t.gather(-1, ids), -1))

    return value


def sampled(which):
    def value(s, t):
        r = (t - s).gather(-1, TOKENS[:, None])[:, 0]
        return {"k1": -r, "k2": r * r / 2, "k3": torch.expm1(r) - r, "policy_gradient": -r.detach() * s.gather(-1, TOKENS[:, None])[:, 0]}[which]

    return value


TOKENS = torch.tensor([4, 28, 0])
STUDENT, TEACHER = 2 * torch.randn(N, V), 2 * torch.randn(N, V)
LOSSES = {
    "forward_kl": forward_kl,
    "reverse_kl": reverse_kl,
    "generalized_jsd/0": generalized_jsd(0.0),
    "generalized_jsd/0.1": generalized_jsd(0.1),
    "generalized_jsd/0.5": generalized_jsd(0.5),
    "generalized_jsd/0.9": generalized_jsd(0.9),
    "generalized_jsd/1": generalized_jsd(1.0),
    "total_variation": total_variation,
    "top_k_tail/forward_kl": top_k_tail(forward_kl, 5),
    "top_k_tail/reverse_kl": top_k_tail(reverse_kl, 5),
    "top_k_tail/generalized_jsd/0.3": top_k_tail(generalized_jsd(0.3), 5),
    "top_k_tail/total_variation": top_k_tail(total_variation, 5),
    "renormalised/reverse_kl": renormalised(reverse_kl, 6),
    "renormalised/forward_kl": renormalised(forward_kl, 6),
    "k1": sampled("k1"),
    "k2": sampled("k2"),
    "k3": sampled("k3"),
    "policy_gradient": sampled("policy_gradient"),
}

cases = []
for name, loss in LOSSES.items():
    for student_temperature, teacher_temperature in ((1.0, 1.0), (2.0, 2.0), (0.7, 1.5)):
        z = STUDENT.clone().requires_grad_()
        value = loss(log_softmax(z / student_temperature, -1), log_softmax(TEACHER / teacher_temperature, -1))
        value.sum().backward()
        cases.append(dict(loss=name, temperature=student_temperature, teacher_temperature=teacher_temperature, values=value.tolist(), gradient=z.grad.flatten().tolist()))

golden = dict(source=f"torch {torch.__version__.split('+')[0]}", rows=N, vocabulary=V, student=STUDENT.flatten().tolist(), teacher=TEACHER.flatten().tolist(), tokens=TOKENS.tolist(), cases=cases)
path = pathlib.Path(__file__).with_suffix(".json")
path.write_text(json.dumps(golden, indent=None, separators=(",", ":")).replace('{"loss"', '\n{"loss"') + "\n")
print(f"{len(cases)} cases in {path.name}")
