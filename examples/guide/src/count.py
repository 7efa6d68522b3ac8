"""Count to TOTAL, one step a second, and survive the loss of the machine.

The script follows Berth's checkpoint contract: it writes step-N/ with the
file DONE last, and starts from the step in BERTH_RESTORED_STEP.
"""

import json
import os
import time

TOTAL = int(os.environ.get("TOTAL", "60"))
FOLDER = os.environ["BERTH_CHECKPOINT_DIR"]
PROGRESS = "/workspace/.berth/progress"


def save(step):
    """Write a whole checkpoint. DONE comes last, so a torn one never counts."""
    folder = os.path.join(FOLDER, f"step-{step}")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "state.json"), "w") as f:
        json.dump({"step": step}, f)
        f.flush()
        os.fsync(f.fileno())
    with open(os.path.join(folder, "DONE"), "w") as f:
        f.write("ok\n")


def report(step):
    """Replace the progress file in one move, so that no reader sees half of it."""
    os.makedirs(os.path.dirname(PROGRESS), exist_ok=True)
    with open(PROGRESS + ".new", "w") as f:
        json.dump({"step": step, "total": TOTAL, "message": f"counted to {step}"}, f)
    os.replace(PROGRESS + ".new", PROGRESS)


step = int(os.environ.get("BERTH_RESTORED_STEP") or 0)
print(f"start at step {step}", flush=True)
while step < TOTAL:
    time.sleep(1)
    step += 1
    print(f"step {step}", flush=True)
    report(step)
    if step % 10 == 0:
        save(step)
