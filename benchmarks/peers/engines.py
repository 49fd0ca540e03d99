"""Speed of the example engine beside llama.cpp and its fork ik_llama.cpp: same file, same tokens, same number of threads.

Every engine is a process of its own that loads the model once and then measures what it is asked for. The measurements are interleaved: each round asks
every engine for the same thing in turn, and the table shows medians over the rounds, because a shared machine changes speed within a minute.
Ratios are what counts: how many times llama.cpp's speed of the same rounds.

    prefill N      N tokens into an empty context, logits of the last
    decode @C      one token after another behind C tokens of context
    R rows @C      R tokens in one call behind C tokens of context, logits of each: what verifying a draft costs
    start          from starting the process to the first token after a prompt of 20 tokens; for the others, which Python starts, from the moment their
                   library is loaded (the time of Python and its imports stands beside it)
"""
import argparse
import ctypes
import json
import random
import statistics
import subprocess
import sys
import time

VOCABULARY = 49152
CONTEXT = 4096


def tokens(count, seed):
    return [random.Random(seed * 1000003 + i).randrange(100, VOCABULARY) for i in range(count)]


# ------------------------------------------------------------------------------------------------------------------------------------- workers


class LlamaCpp:
    """llama.cpp through llama-cpp-python's low-level bindings."""

    def __init__(self, path, threads):
        import llama_cpp.llama_cpp as api
        self.api = api
        self.imported = time.perf_counter()
        self.log = api.llama_log_callback(lambda level, text, data: None)
        api.llama_log_set(self.log, None)
        api.llama_backend_init()
        model_params = api.llama_model_default_params()
        self.model = api.llama_model_load_from_file(path.encode(), model_params)
        params = api.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = CONTEXT, 2048, 512
        params.n_threads = params.n_threads_batch = threads
        self.context = api.llama_init_from_model(self.model, params)
        self.memory = api.llama_get_memory(self.context)
        self.batch = api.llama_batch_init(2048, 0, 1)

    def truncate(self, length):
        self.api.llama_memory_seq_rm(self.memory, 0, length, -1)

    def evaluate(self, ids, position, all_logits):
        batch = self.batch
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, position + i, 1, 0
            batch.logits[i] = 1 if all_logits or i + 1 == len(ids) else 0
        begin = time.perf_counter()
        if self.api.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        logits = self.api.llama_get_logits_ith(self.context, len(ids) - 1)
        assert logits[0] == logits[0]
        return time.perf_counter() - begin


class IkLlamaCpp(LlamaCpp):
    """The fork ik_llama.cpp through ik-llama-cpp-python's low-level bindings."""

    def __init__(self, path, threads):
        import ik_llama_cpp._ctypes_api as api
        self.api = api
        self.imported = time.perf_counter()
        api.llama_backend_init()
        model_params = api.llama_model_default_params()
        model_params.repack_tensors = True
        self.model = api.llama_model_load_from_file(path.encode(), model_params)
        params = api.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = CONTEXT, 2048, 512
        params.n_threads = params.n_threads_batch = threads
        self.context = api.llama_init_from_model(self.model, params)
        self.batch = api.llama_batch_init(2048, 0, 1)
        self.remove = api._lib.llama_kv_cache_seq_rm
        self.remove.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32]

    def truncate(self, length):
        self.remove(self.context, 0, length, -1)


def serve(engine):
    length = 0  # of the context that is filled: tokens(length, 1)
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "prefill":
            engine.truncate(0)
            length = 0
            seconds = engine.evaluate(tokens(request["tokens"], 2), 0, False)
            engine.truncate(0)
        else:
            context = request["context"]
            if context < length:
                engine.truncate(context)
            elif context > length:
                engine.truncate(length)
                fill = tokens(context, 1)[length:]
                for at in range(0, len(fill), 512):
                    engine.evaluate(fill[at:at + 512], length + at, False)
            length = context
            seconds = 0.0
            if request["op"] == "decode":
                for i, token in enumerate(tokens(request["tokens"], 3)):
                    seconds += engine.evaluate([token], context + i, True)
            else:
                for repeat in range(request["repeats"]):
                    seconds += engine.evaluate(tokens(request["rows"], 4 + repeat), context, True)
                    engine.truncate(context)
            engine.truncate(context)
        print(json.dumps({"seconds": seconds}), flush=True)


def first_token(kind, path, threads):
    engine = kind(path, threads)
    engine.evaluate(tokens(20, 5), 0, False)
    print(json.dumps({"first": time.perf_counter() - engine.imported}), flush=True)


# -------------------------------------------------------------------------------------------------------------------------------------- driver


class Worker:
    def __init__(self, name, command):
        self.name = name
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())["seconds"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def start(command):
    """Seconds until the process has printed its first line, and that line."""
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True) as process:
        line = process.stdout.readline()
        seconds = time.perf_counter() - begin
        process.stdout.read()
    return seconds, line


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--worker", choices=["llama.cpp", "ik_llama.cpp"], help=argparse.SUPPRESS)
    options.add_argument("--first-token", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--model", required=True)
    options.add_argument("--ours", metavar="PROGRAM", help="llama_measure of the example engine")
    options.add_argument("--activations", default="int8,int24", help="PRECISION or PRECISION/CACHE, each a column (default %(default)s; the cache is f16)")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--contexts", default="64,1000,3000")
    options.add_argument("--prefill", type=int, default=1024)
    options.add_argument("--rows", default="2,4,8,16")
    options.add_argument("--out", help="also write every sample to this JSON file")
    given = options.parse_args()
    kinds = {"llama.cpp": LlamaCpp, "ik_llama.cpp": IkLlamaCpp}
    if given.worker:
        kind = kinds[given.worker]
        return first_token(kind, given.model, given.threads) if given.first_token else serve(kind(given.model, given.threads))

    common = ["--model", given.model, "--threads", str(given.threads)]
    python = [sys.executable, __file__, *common, "--worker"]
    commands = {}
    for name, module in (("llama.cpp", "llama_cpp"), ("ik_llama.cpp", "ik_llama_cpp")):
        found = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True).returncode == 0
        if found:
            commands[name] = python + [name]
        else:
            print(f"{name}: the module {module} is not installed, its column is left out")
    if given.ours:
        for variant in given.activations.split(","):
            precision, _, cache = variant.partition("/")
            commands[f"heddle {variant}"] = [given.ours, *common, "--activations", precision, "--cache", cache or "f16"]
    workers = [Worker(name, command) for name, command in commands.items()]

    contexts = [int(c) for c in given.contexts.split(",")]
    measures = [(f"prefill {given.prefill}", given.prefill, dict(op="prefill", tokens=given.prefill))]
    for c in contexts:
        measures.append((f"decode @{c}", 16, dict(op="decode", context=c, tokens=16)))
        measures += [(f"{r} rows @{c}", 4, dict(op="rows", context=c, rows=r, repeats=4)) for r in map(int, given.rows.split(","))]

    samples = {label: {w.name: [] for w in workers} for label, _, _ in measures}
    for round_ in range(given.rounds + 1):  # the first warms up
        for label, _, request in measures:
            for worker in workers:
                seconds = worker.ask(**request)
                if round_ > 0:
                    samples[label][worker.name].append(seconds)
    for worker in workers:
        worker.close()

    names = [w.name for w in workers]
    base = names[0]
    print(f"{given.threads} threads; medians of {given.rounds} rounds; in brackets: times {base}'s speed, median over the rounds")
    print(f"{'':18}" + "".join(f"{n:>24}" for n in names))
    for label, count, request in measures:
        line = f"{label:18}"
        for name in names:
            own, other = samples[label][name], samples[label][base]
            seconds = statistics.median(own) / count
            ratio = statistics.median(o / s for o, s in zip(other, own))
            shown = f"{seconds * 1e3:.2f} ms" if request["op"] == "rows" else f"{1 / seconds:.1f} tok/s"
            line += f"{shown + f' ({ratio:.2f}x)':>24}"
        print(line)

    line, starts = f"{'start':18}", {n: [] for n in names}
    for _ in range(given.rounds):
        for name in names:
            seconds, text = start(commands[name] + ["--first-token"])
            first = json.loads(text).get("first", seconds)
            starts[name].append((first, seconds - first))
    for name in names:
        first, imports = (statistics.median(column) for column in zip(*starts[name]))
        line += f"{f'{first * 1e3:.0f} ms' + (f' + {imports * 1e3:.0f}' if imports > 0 else ''):>24}"
    print(line)
    if given.out:
        with open(given.out, "w") as out:
            json.dump({"samples": samples, "start": starts}, out)


if __name__ == "__main__":
    main()
