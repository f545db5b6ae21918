"""Writes random PyTorch networks and what they compute, for the Rust tests of windrow-policy to
repeat.

Usage: torch_policy.py OUTDIR

For each network N: ``N.safetensors`` with its parameters under PyTorch's names,
``N.io.safetensors`` with ``input`` ``[rows, inputs]`` and what is to be compared; ``manifest.json``
says how each network is built. Expected values are computed in float32, as a user would get them,
and again in float64 (names ending in ``64``).
"""

import json
import random
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributions import Categorical, Normal, TransformedDistribution
from torch.distributions.transforms import AffineTransform, TanhTransform

ACTIVATIONS = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "elu": lambda: nn.ELU(alpha=0.7),
}


def build(layers: list[list]) -> nn.Sequential:
    """The module that a manifest's layers describe."""
    made = []
    for kind, *sizes in layers:
        if kind == "linear":
            made.append(nn.Linear(sizes[0], sizes[1], bias=sizes[2]))
        elif kind == "layer_norm":
            made.append(nn.LayerNorm(sizes[0]))
        elif kind == "flatten":
            made.append(nn.Flatten())
        else:
            made.append(ACTIVATIONS[kind]())
    net = nn.Sequential(*made)
    for module in net:
        if isinstance(module, nn.LayerNorm):
            nn.init.normal_(module.weight, 1.0, 0.2)
            nn.init.normal_(module.bias, 0.0, 0.2)
    return net


def random_layers(rng: random.Random, outputs: int | None = None) -> list[list]:
    """One to four linear layers of 1 to 300 numbers, with anything between them."""
    sizes = [rng.choice([1, 2, 4, 17, 64, rng.randint(1, 300)]) for _ in range(rng.randint(2, 5))]
    if outputs is not None:
        sizes[-1] = outputs
    layers = [["flatten"]] if rng.random() < 0.3 else []
    for i, (fan_in, fan_out) in enumerate(zip(sizes, sizes[1:])):
        layers.append(["linear", fan_in, fan_out, rng.random() < 0.8])
        if i + 2 < len(sizes):
            # Over a few features the deviation may vanish, and rounding with it becomes everything.
            if fan_out > 16 and rng.random() < 0.4:
                layers.append(["layer_norm", fan_out])
            layers.append([rng.choice(list(ACTIVATIONS))])
    return layers


def inputs_of(layers: list[list]) -> int:
    return next((sizes[0] for kind, *sizes in layers if sizes), 1)


class Writer:
    """Collects networks and writes them with their inputs and expected outputs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cases: list[dict] = []

    def add(self, layers, weights, tensors, **more) -> None:
        name = f"net{len(self.cases)}"
        clean = {key: value.detach().float().contiguous() for key, value in weights.items()}
        if clean:
            save_file(clean, self.folder / f"{name}.safetensors")
        tensors = {key: value.detach().contiguous().clone() for key, value in tensors.items()}
        save_file(tensors, self.folder / f"{name}.io.safetensors")
        self.cases.append({"name": name, "layers": layers, "weights": bool(clean), **more})

    def finish(self) -> None:
        manifest = {"torch": torch.__version__, "cases": self.cases}
        (self.folder / "manifest.json").write_text(json.dumps(manifest))


def both(net: nn.Sequential, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """The network's output in float32 and in float64."""
    single = net(x)
    double = net.double()(x.double())
    net.float()
    return {"input": x, "output": single, "output64": double}


def plain(writer: Writer, rng: random.Random) -> None:
    for kind in ACTIVATIONS:
        x = torch.cat([torch.linspace(-30, 30, 60001), torch.logspace(-30, 0, 200)])[:, None]
        writer.add([[kind]], {}, both(build([[kind]]), x))
    for _ in range(60):
        layers = random_layers(rng)
        net = build(layers)
        x = torch.randn(rng.choice([1, 2, 3, 7, 64, rng.randint(1, 150)]), inputs_of(layers))
        writer.add(layers, net.state_dict(), both(net, x))


def categorical(writer: Writer, rng: random.Random) -> None:
    for _ in range(10):
        n = rng.randint(2, 18)
        layers = random_layers(rng, n)
        net = build(layers)
        x = torch.randn(rng.randint(1, 70), inputs_of(layers))
        tensors = both(net, x)
        logits = tensors["output64"]
        table = Categorical(logits=logits).logits
        best = tensors["output"].argmax(-1)
        more = {"table64": table, "greedy": best}
        weights = {f"actor.{key}": value for key, value in net.state_dict().items()}
        writer.add(layers, weights, tensors | more, head="categorical", prefix="actor.", actions=n)


def softplus_scale(x: torch.Tensor) -> torch.Tensor:
    """The mapping called ``biased_softplus_1.0``: 1 at 0, at least 0.01."""
    shift = torch.log(torch.expm1(torch.tensor(0.99, dtype=torch.float64))).item()
    return nn.functional.softplus(x + shift) + 0.01


def normal(writer: Writer, rng: random.Random) -> None:
    for kind in ["normal", "normal_log_std", "tanh_normal"] * 5:
        n = rng.randint(1, 8)
        free = kind == "normal_log_std"
        layers = random_layers(rng, n if free else 2 * n)
        net = build(layers)
        x = torch.randn(rng.randint(1, 70), inputs_of(layers))
        tensors = both(net, x)
        weights = dict(net.state_dict())
        if free:
            weights["log_std"] = torch.randn(n)
            loc = tensors["output64"]
            scale = weights["log_std"].double().exp().expand_as(loc)
        else:
            loc, raw = tensors["output64"].chunk(2, -1)
            scale = softplus_scale(raw)
        low, high = -torch.rand(n) * 3, torch.rand(n) * 3 + 0.1
        distribution = Normal(loc, scale)
        action = loc
        if kind == "tanh_normal":
            middle, half = (high + low).double() / 2, (high - low).double() / 2
            squash = [TanhTransform(), AffineTransform(middle, half)]
            distribution = TransformedDistribution(distribution, squash)
            action = loc.tanh() * half + middle
        log_prob = distribution.log_prob(action).sum(-1)
        more = {"loc64": loc, "scale64": scale, "action64": action, "log_prob64": log_prob}
        bounds = {"low": low, "high": high}
        writer.add(layers, weights, tensors | more | bounds, head=kind, prefix="", actions=n)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rng = random.Random(0)
    writer = Writer(folder)
    with torch.no_grad():
        plain(writer, rng)
        categorical(writer, rng)
        normal(writer, rng)
    writer.finish()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
