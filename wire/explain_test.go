package wire_test

import (
	"testing"

	"berth/wire"
)

func TestWhereDataIsIsToldToPeople(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]wire.DataAt{
		"m1 already has 12.0 GiB of the image and inputs": {Machine: "m1",
			Bytes: 12 << 30},
		"m2 already has 16.0 MiB of the image and inputs; the job would start there for this reason": {Machine: "m2",
			Bytes: 16 << 20, Chosen: true},
	} {
		if got := d.String(); got != want {
			t.Errorf("told %q, want %q", got, want)
		}
	}
}

func TestAShortfallNamesAmountsAndKinds(t *testing.T) {
	t.Parallel()
	for s, want := range map[wire.Shortfall]string{
		{Resource: "gpus", Asked: "9", Largest: "8"}:                                         "gpus: 9 requested, but the largest machine has 8",
		{Resource: "cpus", Asked: "64", Largest: "2"}:                                        "cpus: 64 requested, but the largest machine has 2",
		{Resource: "gpu_type", Asked: "B200", Largest: "A100, H100"}:                         "gpu_type: no machine has a B200 (available: A100, H100)",
		{Resource: "gpu_type", Asked: "H100", Largest: "none"}:                               "gpu_type: no machine has an H100 (no machine has a GPU)",
		{Resource: "region", Asked: "mars", Largest: "eu"}:                                   "region: no machine is in region mars (available: eu)",
		{Resource: "constraint", Asked: "machine.cpus > 100", Largest: "no machine matches"}: "constraint: machine.cpus > 100 requested, but no machine matches",
		{Resource: "machine", Asked: "4 CPUs, 8 GPUs", Largest: "no machine has all of it"}:  "machine: 4 CPUs, 8 GPUs requested, but no machine has all of it",
	} {
		if got := s.String(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
