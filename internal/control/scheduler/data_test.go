package scheduler_test

import (
	"slices"
	"testing"

	"berth"
	"berth/spec"
)

func TestAJobGoesWhereItsDataIsAndDoesNotWaitForIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	in := spec.Input{From: "s3://bucket/images/", To: "/data"}
	reads := func(cores int) func(*spec.Job) {
		return func(s *spec.Job) {
			cpus(cores)(s)
			s.Inputs = []spec.Input{in}
		}
	}
	goes := func(cores int, want string) {
		t.Helper()
		id := r.queued(reads(cores))
		r.hint()
		r.awaitState(id, berth.Scheduled)
		if got := r.machinesOf(id); !slices.Equal(got, []string{want}) {
			t.Errorf("a job of %d cores is on %v, want %s", cores, got, want)
		}
	}
	for _, m := range []string{"m0", "m1", "m2"} {
		r.machine(m, 8, 0)
	}
	r.exec(`INSERT INTO machine_caches (machine_id, keys, mib) VALUES ('m2', ARRAY[$1::bigint], ARRAY[40960])`, int64(in.SourceKey("default")))
	r.lead(nil)
	goes(6, "m2") // the others are as good
	goes(6, "m0") // there is no room where it is
	r.sound()
}
