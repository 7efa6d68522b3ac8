"""train.py, with one member that hangs in an all-reduce of the first attempt.

HANG is the kind of hang: spin uses the CPU, sleep does not, stop stops the process. The other members wait in
the same all-reduce. See scripts/proof-gang.sh and docs/guide/hangs.md.
"""

import os
import signal
import sys
import time

sys.path.insert(0, "/app")
import train  # noqa: E402

HOW = os.environ["HANG"]
MEMBER = int(os.environ.get("HANG_MEMBER", "2"))
STEP = int(os.environ.get("HANG_STEP", "50"))
steps = 0


def hang():
    print(f"member {train.RANK} hangs: {HOW}", flush=True)
    while True:
        if HOW == "sleep":
            time.sleep(3600)
        elif HOW == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)


def reduce_gradients(model):
    """train.reduce_gradients, but for the hang after the first of the parameters."""
    global steps
    steps += 1
    for i, p in enumerate(model.parameters()):
        if i == 1 and steps == STEP and train.RANK == MEMBER and os.environ["BERTH_ATTEMPT"] == "1":
            hang()
        train.dist.all_reduce(p.grad)
        p.grad /= train.SIZE


train.reduce_gradients = reduce_gradients
train.main()
