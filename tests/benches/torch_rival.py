"""Times models at batch 1 by PyTorch: torch_rival.py

Each line of the standard input is a question; the answer is one line.

    bandwidth                   bytes per second that a large copy reads and writes
    peak MATH                   operations per second of a large product
    MODEL MATH HOW CALLS        seconds of one of so many calls, or `skip` and the reason

MATH is f32 (TF32 off), tf32, f16 or bf16; in the last two weights and activations are of that type. HOW is eager, graph
(a CUDA graph) or compile (torch.compile, "max-autotune"). A call begins with the input in pinned memory of the host and
ends with the output there, synchronized: as a calendar's period does. Models have the shapes of what they are compared
with and random weights; normalisations of images are folded into the convolutions, as exporters do.
"""
import sys
import time

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError as error:
    print(f"skip no PyTorch: {error}", flush=True)
    sys.exit(0)
if not torch.cuda.is_available():
    print(f"skip PyTorch {torch.__version__} finds no GPU", flush=True)
    sys.exit(0)

TYPES = {"f32": torch.float32, "tf32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def conv(inputs, outputs, size, stride=1, groups=1):
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups)


class Inverted(nn.Module):
    """A block of MobileNetV2 (Sandler et al. 2018)."""

    def __init__(self, inputs, outputs, stride, expand):
        super().__init__()
        inner = inputs * expand
        first = [conv(inputs, inner, 1), nn.ReLU6()] if expand > 1 else []
        depthwise = [conv(inner, inner, 3, stride, inner), nn.ReLU6()]
        self.body = nn.Sequential(*first, *depthwise, conv(inner, outputs, 1))
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x):
        return x + self.body(x) if self.adds else self.body(x)


def mobilenet_v2():
    layers, inputs = [conv(3, 32, 3, 2), nn.ReLU6()], 32
    for expand, outputs, count, stride in [
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ]:
        for i in range(count):
            layers.append(Inverted(inputs, outputs, stride if i == 0 else 1, expand))
            inputs = outputs
    layers += [conv(320, 1280, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000)]
    return nn.Sequential(*layers), torch.randn(1, 3, 224, 224)


class Bottleneck(nn.Module):
    """A block of ResNet-50 (He et al. 2015)."""

    def __init__(self, inputs, inner, stride):
        super().__init__()
        outputs = 4 * inner
        self.body = nn.Sequential(
            conv(inputs, inner, 1), nn.ReLU(), conv(inner, inner, 3, stride), nn.ReLU(), conv(inner, outputs, 1)
        )
        whole = stride == 1 and inputs == outputs
        self.short = nn.Identity() if whole else conv(inputs, outputs, 1, stride)

    def forward(self, x):
        return F.relu(self.short(x) + self.body(x))


def resnet50():
    layers, inputs = [conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for inner, count, stride in [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]:
        for i in range(count):
            layers.append(Bottleneck(inputs, inner, stride if i == 0 else 1))
            inputs = 4 * inner
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)]
    return nn.Sequential(*layers), torch.randn(1, 3, 224, 224)


class Layer(nn.Module):
    """A layer of an encoder: attention, then two products, a norm behind (BERT) or before each."""

    def __init__(self, width, heads, before):
        super().__init__()
        self.heads, self.before = heads, before
        self.qkv = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def attend(self, x):
        batch, length, width = x.shape
        split = lambda y: y.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
        q, k, v = (split(linear(x)) for linear in self.qkv)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        first, second = self.norms
        if self.before:
            x = x + self.attend(first(x))
            return x + self.down(F.gelu(self.up(second(x))))
        x = first(x + self.attend(x))
        return second(x + self.down(F.gelu(self.up(x))))


class Bert(nn.Module):
    """Two layers, 128 wide, 128 tokens, with embeddings of words, places and sentences, and the pooled first token."""

    def __init__(self, width=128, length=128):
        super().__init__()
        self.words, self.kinds = nn.Embedding(30522, width), nn.Embedding(2, width)
        self.places = nn.Parameter(torch.randn(1, length, width))
        self.norm, self.pool = nn.LayerNorm(width), nn.Linear(width, width)
        self.layers = nn.Sequential(*(Layer(width, 2, False) for _ in range(2)))

    def forward(self, ids):
        x = self.norm(self.words(ids) + self.places + self.kinds(torch.zeros_like(ids)))
        x = self.layers(x)
        return torch.cat([x, torch.tanh(self.pool(x[:, :1]))], 1)


def encoder():
    layers = [Layer(768, 12, True) for _ in range(12)]
    return nn.Sequential(*layers), torch.randn(1, 128, 768)


def mlp():
    layers = [part for _ in range(8) for part in (nn.Linear(1024, 1024), nn.ReLU())]
    return nn.Sequential(*layers), torch.randn(1, 1024)


MODELS = {
    "mobilenet_v2": mobilenet_v2,
    "light_resnet50": resnet50,
    "bert_tiny": lambda: (Bert(), torch.zeros(1, 128, dtype=torch.int64)),
    "encoder": encoder,
    "mlp": mlp,
}


def precision(math):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = math == "tf32"


def seconds(call, calls):
    call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def bandwidth():
    x = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)

    def call():
        y.copy_(x)
        torch.cuda.synchronize()

    return 2 * x.numel() / min(seconds(call, 10) for _ in range(5))


def peak(math):
    precision(math)
    x = torch.randn(8192, 8192, device="cuda", dtype=TYPES[math])

    def call():
        torch.mm(x, x)
        torch.cuda.synchronize()

    return 2 * 8192**3 / min(seconds(call, 3) for _ in range(5))


class Made:
    """A model, ready to be called in one way."""

    def __init__(self, name, math, how):
        torch._dynamo.reset()
        precision(math)
        torch.backends.cudnn.benchmark = True
        model, x = MODELS[name]()
        model = model.cuda().eval().to(TYPES[math])
        if x.is_floating_point():
            x = x.to(TYPES[math])
        if x.dim() == 4 and math != "f32":
            model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
        self.source, self.input = x.pin_memory(), x.cuda()
        run = torch.compile(model, mode="max-autotune") if how == "compile" else model
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.inference_mode(), torch.cuda.stream(side):
            for _ in range(5):
                output = run(self.input)
        torch.cuda.current_stream().wait_stream(side)
        self.target = torch.empty_like(output, device="cpu").pin_memory()
        if how == "graph":
            self.graph = torch.cuda.CUDAGraph()
            with torch.inference_mode(), torch.cuda.graph(self.graph):
                output = run(self.input)

            def replay():
                self.graph.replay()
                return output

            self.run = replay
        else:
            self.run = lambda: run(self.input)

    def call(self):
        with torch.inference_mode():
            self.input.copy_(self.source, non_blocking=True)
            self.target.copy_(self.run(), non_blocking=True)
        torch.cuda.synchronize()


def answer(words, made):
    if words == ["bandwidth"]:
        return bandwidth()
    if words[0] == "peak":
        return peak(words[1])
    name, math, how, calls = words
    key = (name, math, how)
    if key not in made:
        # Those of one model and type are asked by turns; what came before is not asked again.
        for other in [k for k in made if k[:2] != key[:2]]:
            del made[other]
        made[key] = Made(*key)
    precision(math)
    return seconds(made[key].call, int(calls))


print(f"ready PyTorch {torch.__version__} on {torch.cuda.get_device_name()}", flush=True)
made = {}
for line in sys.stdin:
    try:
        print(answer(line.split(), made), flush=True)
    except Exception as error:
        print("skip " + " ".join(str(error).split())[:200], flush=True)
