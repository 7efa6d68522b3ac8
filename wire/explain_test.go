package wire_test

import (
	"testing"

	"berth/wire"
)

func TestWhereDataIsIsToldToPeople(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]wire.DataAt{
		"m1 holds 12.0 GiB of it":                                 {Machine: "m1", Bytes: 12 << 30},
		"m2 holds 16.0 MiB of it, for which it would start there": {Machine: "m2", Bytes: 16 << 20, Chosen: true},
	} {
		if got := d.String(); got != want {
			t.Errorf("told %q, want %q", got, want)
		}
	}
}

func TestAShortfallNamesAmountsAndKinds(t *testing.T) {
	t.Parallel()
	for s, want := range map[wire.Shortfall]string{
		{Resource: "gpus", Asked: "9", Largest: "8"}:                                               "gpus: asked 9, largest available 8 | at most 8",
		{Resource: "gpu_type", Asked: "B200", Largest: "A100, H100"}:                               "gpu_type: asked B200, available A100, H100 | A100, H100",
		{Resource: "constraint", Asked: "machine.cpus > 100", Largest: "no machine matches"}:       "constraint: asked machine.cpus > 100, but no machine matches | ",
		{Resource: "machine", Asked: "4 cpus, 8 GPUs", Largest: "no single machine has all of it"}: "machine: asked 4 cpus, 8 GPUs, but no single machine has all of it | ",
	} {
		if got := s.String() + " | " + s.Allowed(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
