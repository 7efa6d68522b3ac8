"""Data-parallel training with PyTorch over the members of a gang (gloo, CPU).

Each member has a part of the data. In every step the members add up their gradients with
torch.distributed, so that all have the same model. All save at the same steps, a step counts
when the parts of all are stored, and a gang that begins anew goes on from such a step.

The same seed gives the same model, interrupted or not: nothing depends on the clock.
"""

import json
import os
import time

import torch
import torch.distributed as dist

RANK = int(os.environ["BERTH_MEMBER"])
SIZE = int(os.environ["BERTH_MEMBERS"])
EPOCHS = int(os.environ.get("EPOCHS", "20"))
BATCHES = int(os.environ.get("BATCHES", "10"))  # of an epoch; each is a step
EVERY = int(os.environ.get("CHECKPOINT_EVERY", "20"))
PACE = float(os.environ.get("PACE_SECONDS", "0.05"))
CHECKPOINTS = os.environ["BERTH_CHECKPOINT_DIR"]
STEPS = EPOCHS * BATCHES


def data():
    """A teacher's answers to random questions: the same for everybody."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(SIZE * BATCHES * 32, 16, generator=g)
    teacher = torch.randn(16, 4, generator=g)
    return x, torch.tanh(x @ teacher)


def save(model, optimizer, step):
    folder = os.path.join(CHECKPOINTS, f"step-{step}")
    os.makedirs(folder, exist_ok=True)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, os.path.join(folder, "state.pt"))
    with open(os.path.join(folder, "DONE"), "w") as f:  # last: a torn one counts for nothing
        f.write("ok\n")


def tell(step):
    path = "/workspace/.berth/progress"
    with open(path + ".new", "w") as f:
        json.dump({"step": step, "total": STEPS, "message": f"epoch {step // BATCHES}"}, f)
    os.replace(path + ".new", path)


def reduce_gradients(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= SIZE


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step = 0
    restored = os.environ.get("BERTH_RESTORED_STEP", "")
    if restored:
        state = torch.load(os.path.join(CHECKPOINTS, f"step-{restored}", "state.pt"))
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = int(restored)

    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(RANK), str(SIZE)  # one process a member
    dist.init_process_group("gloo")
    print(f"member {RANK} of {SIZE} goes on from step {step}", flush=True)

    x, y = data()
    while step < STEPS:
        batch = step % BATCHES
        first = (batch * SIZE + RANK) * 32
        loss = torch.nn.functional.mse_loss(model(x[first : first + 32]), y[first : first + 32])
        optimizer.zero_grad()
        loss.backward()
        reduce_gradients(model)
        optimizer.step()
        step += 1
        tell(step)
        if step % EVERY == 0:
            save(model, optimizer, step)
        if step % BATCHES == 0 and RANK == 0:
            print(f"epoch {step // BATCHES}: loss {loss.item():.6f}", flush=True)
        time.sleep(PACE)

    with torch.no_grad():
        loss = torch.nn.functional.mse_loss(model(x), y)
    print(f"final loss {loss.item().hex()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
