"""Add up numbers in several members, and survive a change of their number.

Each member adds 1 to its share of SUMS sums, one step a second. At the start it takes its share from the parts of all
members that saved the checkpoint, if there is another number of members now.
"""

import json
import os
import time

SUMS = int(os.environ.get("SUMS", "12"))
STEPS = int(os.environ.get("STEPS", "60"))
FOLDER = os.environ["BERTH_CHECKPOINT_DIR"]
MEMBER = int(os.environ["BERTH_MEMBER"])
MEMBERS = int(os.environ["BERTH_MEMBERS"])


def parts(step):
    """The folders with the saved parts: one for each member that saved, or the member's own part alone."""
    folder = os.path.join(FOLDER, f"step-{step}")
    saved = int(os.environ.get("BERTH_RESTORED_MEMBERS") or 0)
    if saved == 0:
        return [folder]
    return [os.path.join(folder, f"member-{n}") for n in range(saved)]


def load():
    """The step to continue from, and the sums of this member by their number."""
    step = int(os.environ.get("BERTH_RESTORED_STEP") or 0)
    sums = {n: 0 for n in range(MEMBER, SUMS, MEMBERS)}
    if step > 0:
        for folder in parts(step):
            with open(os.path.join(folder, "sums.json")) as f:
                saved = json.load(f)
            sums.update({n: saved[str(n)] for n in sums if str(n) in saved})
    return step, sums


def save(step, sums):
    """Write this member's part. DONE comes last, so a torn part never counts."""
    folder = os.path.join(FOLDER, f"step-{step}")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "sums.json"), "w") as f:
        json.dump(sums, f)
        f.flush()
        os.fsync(f.fileno())
    with open(os.path.join(folder, "DONE"), "w") as f:
        f.write("ok\n")


step, sums = load()
print(f"member {MEMBER} of {MEMBERS} starts at step {step} with {len(sums)} sums", flush=True)
while step < STEPS:
    time.sleep(1)
    step += 1
    sums = {n: value + 1 for n, value in sums.items()}
    if step % 10 == 0:
        save(step, sums)
if any(value != STEPS for value in sums.values()):
    raise SystemExit(f"member {MEMBER} has lost work: {sums}")
print(f"member {MEMBER} is done", flush=True)
