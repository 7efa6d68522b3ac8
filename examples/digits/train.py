"""Train a small neural network on the UCI handwritten digits.

The data ships with scikit-learn; nothing is downloaded. Every epoch is a step: the script
writes a checkpoint under $BERTH_CHECKPOINT_DIR every few steps, tells its progress, and when
it is started again after a machine was lost it goes on from $BERTH_RESTORED_STEP.

The same seed gives the same model, resumed or not: the order of the samples depends on the
epoch alone.
"""

import json
import os
import pickle
import signal
import sys
import time

import numpy
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

EPOCHS = int(os.environ.get("EPOCHS", "40"))
PACE = float(os.environ.get("PACE_SECONDS", "0.5"))  # an epoch takes at least this long
EVERY = int(os.environ.get("CHECKPOINT_EVERY", "5"))
CHECKPOINTS = os.environ.get("BERTH_CHECKPOINT_DIR", "")
PROGRESS = "/workspace/.berth/progress"

stopping = False
saving = False


def on_stop(signum, frame):
    """Finish the epoch, save, and leave: Berth calls this a clean stop, not a success."""
    global stopping
    stopping = True


def on_save(signum, frame):
    """Save after this epoch and go on: the cloud ends this machine soon."""
    global saving
    saving = True


def save(model, step):
    """Write step-N whole: DONE comes last, so a torn checkpoint is never taken for one."""
    if not CHECKPOINTS:
        return
    folder = os.path.join(CHECKPOINTS, f"step-{step}")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "model.pickle"), "wb") as f:
        pickle.dump(model, f)
        f.flush()
        os.fsync(f.fileno())
    with open(os.path.join(folder, "DONE"), "w") as f:
        f.write("ok\n")


def load():
    """Return the model and the step to go on from, as Berth restored them."""
    step = os.environ.get("BERTH_RESTORED_STEP", "")
    if not step:
        return None, 0
    with open(os.path.join(CHECKPOINTS, f"step-{step}", "model.pickle"), "rb") as f:
        return pickle.load(f), int(step)


def tell(step, message):
    os.makedirs(os.path.dirname(PROGRESS), exist_ok=True)
    with open(PROGRESS + ".new", "w") as f:
        json.dump({"step": step, "total": EPOCHS, "message": message}, f)
    os.replace(PROGRESS + ".new", PROGRESS)


def main():
    global saving
    signal.signal(signal.SIGTERM, on_stop)
    signal.signal(signal.SIGUSR1, on_save)
    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x / 16.0, y, test_size=0.25, random_state=7, stratify=y)

    model, step = load()
    if model is None:
        print(f"fresh start: {len(x_train)} samples to learn, {len(x_test)} to test", flush=True)
        model = MLPClassifier(hidden_layer_sizes=(64,), learning_rate_init=0.002, random_state=7)
    else:
        print(f"resumed from step {step}", flush=True)

    while step < EPOCHS and not stopping:
        begun = time.monotonic()
        order = numpy.random.default_rng(step).permutation(len(x_train))
        for batch in numpy.array_split(order, 22):
            model.partial_fit(x_train[batch], y_train[batch], classes=numpy.arange(10))
        step += 1
        accuracy = model.score(x_test, y_test)
        print(f"epoch {step}/{EPOCHS} loss={model.loss_:.4f} accuracy={accuracy:.4f}", flush=True)
        tell(step, f"accuracy {accuracy:.4f}")
        if step % EVERY == 0 or step == EPOCHS or stopping or saving:
            saving = False
            save(model, step)
        time.sleep(max(0.0, PACE - (time.monotonic() - begun)))

    if step < EPOCHS:
        save(model, step)
        print(f"stopped at step {step}", flush=True)
        sys.exit(143)
    print(f"accuracy={model.score(x_test, y_test):.4f}", flush=True)


if __name__ == "__main__":
    main()
