// Package gpuproof compares what Berth reads from a real NVIDIA GPU with what real programs do
// there: the inventory with nvidia-smi, the holders of a device with processes that hold memory,
// and the sign of life `gpu` with programs that train, wait or spin. Run it with make proof-gpu on
// a machine with a GPU and PyTorch.
//
// The tests are skipped, with the reason, on a machine without NVML, and without the flag -gpu:
// they use the first GPU for four minutes, and another program on that GPU would spoil them.
//
// The one rule to know: readings go through internal/machine/gpu, the code of the agent. Raw NVML
// is asked only for values that Berth does not read, such as clocks.
package gpuproof
