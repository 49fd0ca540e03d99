"""python log_probs.py MODEL.gguf [OUT.json]    (packages: requirements.txt)

Log-probabilities of the texts in texts/ and the 64 tokens that greedy decoding appends to each, computed by transformers on the CPU in float32 from
the dequantised weights of the same GGUF file. The token ids are llama.cpp's, because transformers' own import of the tokenizer loses the
rule that splits numbers into digits.

Per text: ids; log_probs[i] of ids[i] given the ids before it (null for the first); continuation; margin, the smallest distance between the two
largest logits over the continuation, which says how much error the greedy choice bears.
"""
import hashlib
import json
import pathlib
import sys

import llama_cpp
import torch
import transformers

here = pathlib.Path(__file__).parent
model_path = pathlib.Path(sys.argv[1]).resolve()
out_path = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else here / "log_probs.json"

vocabulary = llama_cpp.Llama(str(model_path), vocab_only=True, verbose=False)
model = transformers.AutoModelForCausalLM.from_pretrained(model_path.parent, gguf_file=model_path.name, dtype=torch.float32)
model.eval()
torch.manual_seed(0)


@torch.no_grad()
def measure(text):
    ids = vocabulary.tokenize(text.encode(), add_bos=False, special=False)
    result = model(torch.tensor([ids]), use_cache=True)
    log_probs = torch.log_softmax(result.logits[0].double(), dim=-1)
    chosen = [None] + [round(log_probs[i, t].item(), 6) for i, t in enumerate(ids[1:])]
    continuation, margin = [], float("inf")
    for _ in range(64):
        best = result.logits[0, -1].topk(2)
        margin = min(margin, (best.values[0] - best.values[1]).item())
        continuation.append(best.indices[0].item())
        result = model(torch.tensor([continuation[-1:]]), past_key_values=result.past_key_values, use_cache=True)
    print(f"{len(ids)} tokens, margin {margin:.4f}: {vocabulary.detokenize(continuation)!r}")
    return {"ids": ids, "log_probs": chosen, "continuation": continuation, "margin": round(margin, 6)}


golden = {
    "model_sha256": hashlib.sha256(model_path.read_bytes()).hexdigest(),
    "versions": {"transformers": transformers.__version__, "torch": torch.__version__, "llama_cpp_python": llama_cpp.__version__},
    "texts": {path.stem: measure(path.read_text()) for path in sorted(here.glob("texts/*.txt"))},
}
out_path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
