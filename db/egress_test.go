package db_test

import (
	"slices"
	"testing"

	"berth"
)

func TestMachinesWithoutALabelAreNamed(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.register("host1", "agent1")
	if _, err := s.db.Pool().Exec(t.Context(), `UPDATE machines SET labels = '{"a": "yes"}' WHERE id = 'm0'`); err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string][]berth.MachineID{"yes": nil, "no": {"m0"}} {
		got, err := s.db.Machines.Lacking(t.Context(), []berth.MachineID{"m0", "gone"}, "a", value)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("without a=%s: %v, %v; want %v", value, got, err, want)
		}
	}
	if got, err := s.db.Machines.Lacking(t.Context(), []berth.MachineID{"m0"}, "b", "yes"); err != nil || len(got) != 1 {
		t.Errorf("without b=yes: %v, %v", got, err)
	}
}
