"""Runs one workload after the other on the first GPU, as the lines of its input ask.

Each line of the input is a command with arguments; each line of the output is a JSON object, at
least one for each command. A workload runs until the next line arrives.
"""
import ctypes
import json
import os
import select
import sys
import time


def say(**fields):
    print(json.dumps(fields), flush=True)


def pending(seconds=0.0):
    return bool(select.select([0], [], [], seconds)[0])


def read_line():
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            sys.exit(0)
        line += piece
    return line.decode().split()


try:
    import torch
except ImportError as e:
    say(event="missing", why=str(e))
    sys.exit(0)

kept = []  # tensors that a command holds until the process ends


def hold(gib):
    t = torch.empty(int(float(gib) * 2**30), dtype=torch.uint8, device="cuda")
    t.fill_(1)
    torch.cuda.synchronize()
    kept.append(t)
    say(event="on", bytes=t.numel())


def context():
    kept.append(torch.zeros(1, device="cuda"))
    torch.cuda.synchronize()
    say(event="on")


def trainer():
    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, 6).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(16, 512, 1024, device="cuda", dtype=torch.bfloat16)

    def step():
        loss = model(x).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()

    for _ in range(3):
        step()
    return step


def train(asleep="0"):
    """Trains; sleeps for the given share of the time, as a loop that waits for its input."""
    share, steps, step = float(asleep), 0, trainer()
    say(event="on")
    while not pending():
        begun = time.monotonic()
        step()
        steps += 1
        time.sleep((time.monotonic() - begun) * share / (1 - share))
    say(event="off", steps=steps)


def small():
    """Trains a model so small that the CPU holds up the GPU."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, steps = torch.randn(32, 64, device="cuda"), 0
    say(event="on")
    while not pending():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        steps += 1
        if steps % 100 == 0:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    say(event="off", steps=steps)


def matmul(size):
    """Multiplies matrices that fit the cache: arithmetic with little memory traffic."""
    a = torch.randn(int(size), int(size), device="cuda", dtype=torch.bfloat16)
    b, count = a.clone(), 0
    say(event="on")
    while not pending():
        for _ in range(50):
            torch.matmul(a, a, out=b)
        torch.cuda.synchronize()
        count += 50
    say(event="off", steps=count)


# As the kernel of a collective operation that waits for a peer: threads read a flag until another
# process sets it. In NCCL one thread for each peer reads, and the others of its block wait for it.
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin_all(.param .u64 flag)
{
  .reg .pred %p<2>;
  .reg .b32 %r<2>;
  .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [flag];
ALL:
  ld.volatile.u32 %r1, [%rd1];
  setp.eq.s32 %p1, %r1, 0;
  @%p1 bra ALL;
  ret;
}
.visible .entry spin_one(.param .u64 flag)
{
  .reg .pred %p<3>;
  .reg .b32 %r<3>;
  .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [flag];
  mov.u32 %r2, %tid.x;
  setp.ne.s32 %p2, %r2, 0;
  @%p2 bra MEET;
ONE:
  ld.volatile.u32 %r1, [%rd1];
  setp.eq.s32 %p1, %r1, 0;
  @%p1 bra ONE;
MEET:
  bar.sync 0;
  ret;
}
.visible .entry fault(.param .u64 flag)
{
  .reg .b32 %r<2>;
  .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [flag];
  mov.u32 %r1, 1;
  st.global.u32 [%rd1], %r1;
  ret;
}
\0"""


class Kernels:
    def __init__(self):
        self.cuda, self.module = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        torch.zeros(1, device="cuda")
        self.check(self.cuda.cuModuleLoadData(ctypes.byref(self.module), PTX))

    def check(self, code):
        if code:
            raise RuntimeError(f"the CUDA driver answered {code}")

    def launch(self, name, blocks, threads, address):
        function, pointer = ctypes.c_void_p(), ctypes.c_uint64(address)
        self.check(self.cuda.cuModuleGetFunction(ctypes.byref(function), self.module, name.encode()))
        arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(pointer), ctypes.c_void_p))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.check(self.cuda.cuLaunchKernel(
            function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, None))


kernels = None


def own_kernels():
    global kernels
    kernels = kernels or Kernels()
    return kernels


def spin(kernel, blocks, threads, where):
    """Runs a kernel that waits for a flag, in the device's memory or in the host's."""
    own_kernels()
    flag = torch.zeros(1, dtype=torch.int32).pin_memory()
    one = torch.ones(1, dtype=torch.int32).pin_memory()
    side = torch.cuda.Stream()
    if where == "device":
        flag = torch.zeros(1, dtype=torch.int32, device="cuda")
    with torch.cuda.stream(side):  # before the kernel waits: loading code would wait for the kernel
        flag.copy_(one, non_blocking=True)
        side.synchronize()
        flag.zero_()
        side.synchronize()
    torch.cuda.synchronize()
    kernels.launch(kernel, int(blocks), int(threads), flag.data_ptr())
    say(event="on")
    pending(60)
    with torch.cuda.stream(side):
        flag.copy_(one, non_blocking=True)
    torch.cuda.synchronize()
    say(event="off")


def sleep_kernel():
    """Runs PyTorch's kernel of one thread that reads the clock."""
    say(event="on")
    while not pending():
        torch.cuda._sleep(100_000_000)
        torch.cuda.synchronize()
    say(event="off")


def fault():
    """Writes to an address that is not mapped: the driver ends the context with XID 31."""
    own_kernels().launch("fault", 1, 1, 0x7000_0000_0000)
    try:
        torch.cuda.synchronize()
        say(event="on", error="")
    except Exception as e:
        say(event="on", error=str(e).splitlines()[0])


COMMANDS = {f.__name__: f for f in [hold, context, train, small, matmul, spin, sleep_kernel, fault]}

say(event="ready", pid=os.getpid(), torch=torch.__version__, cuda=torch.version.cuda)
while True:
    name, *arguments = read_line()
    try:
        COMMANDS[name](*arguments)
    except Exception as e:
        say(event="failed", why=f"{type(e).__name__}: {e}")
