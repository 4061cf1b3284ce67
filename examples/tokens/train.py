"""A small GPT on packed samples: several documents in each, which do not see each other.

    penstock train examples/tokens/train.yaml -- python examples/tokens/train.py

The spec reads text, tokenises it with a function in Python (tokenizer.py), and packs documents to samples of 128 tokens; a batch has input_ids, position_ids,
segment_ids and loss_mask.
"""

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import penstock


class Block(nn.Module):
    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        b, t, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, w))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, layers: int, width: int, vocabulary: int = 256, length: int = 128) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: torch.Tensor, places: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        t = ids.shape[1]
        # A token sees those before it in its own document.
        mask = (segments[:, :, None] == segments[:, None, :]) & torch.ones(t, t, dtype=torch.bool, device=ids.device).tril()
        x = self.tokens(ids) + self.places(places)
        for block in self.blocks:
            x = block(x, mask[:, None])
        return self.head(x)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    me, config, device = penstock.get_context(), penstock.get_config(), penstock.get_device()
    net = GPT(config.get("layers", 2), config.get("width", 64))
    model = penstock.prepare_model(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.get("lr", 3e-3))
    steps = 0
    saved = penstock.get_checkpoint()
    if saved:
        state = torch.load(saved / "state.pt", map_location=device)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        steps = state["steps"]

    train = penstock.shard("train")
    with tempfile.TemporaryDirectory() as folder:
        while True:
            for batch in train.iter_torch_batches(device=device):
                logits = model(batch["input_ids"], batch["position_ids"], batch["segment_ids"])
                # The next token, where it is one of the same document.
                same = batch["segment_ids"][:, 1:] == batch["segment_ids"][:, :-1]
                weight = batch["loss_mask"][:, 1:] * same
                losses = F.cross_entropy(logits[:, :-1].transpose(1, 2), batch["input_ids"][:, 1:], reduction="none")
                loss = (losses * weight).sum() / weight.sum().clamp(min=1)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                steps += 1
                last = steps >= config.get("steps", 60) or penstock.preempted()
                save = last or steps % 50 == 0
                if save and me.rank == 0:
                    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "steps": steps}, Path(folder, "state.pt"))
                penstock.report({"loss": loss.item()}, checkpoint=folder if save and me.rank == 0 else None)
                if me.rank == 0 and (last or steps % 20 == 0):
                    print(f"step {steps}: loss {loss.item():.3f}", flush=True)
                if last:
                    return


if __name__ == "__main__":
    main()
