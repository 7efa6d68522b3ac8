package spec_test

import (
	"slices"
	"testing"

	"berth/spec"
)

func TestUsersAreNumbers(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]spec.UserID{
		"0": {}, "0:0": {}, "1000": {UID: 1000, GID: 1000}, "1000:100": {UID: 1000, GID: 100},
		"2147483646": {UID: spec.MaxUserID, GID: spec.MaxUserID},
	} {
		if u, ok := spec.ParseUserID(text); !ok || u != want {
			t.Errorf("%q is %v, %v", text, u, ok)
		}
	}
	for _, text := range []string{
		"", ":", "1000:", ":1000", "root", "1000:users", "-1", "+1", "01", "1.0", "1 ", "2147483647", "4294967295",
		"18446744073709551616", "1:2:3", "1000:-1",
	} {
		if u, ok := spec.ParseUserID(text); ok {
			t.Errorf("%q is %v", text, u)
		}
	}
}

func TestRangesHoldUserAndGroup(t *testing.T) {
	t.Parallel()
	r := spec.UserRange{First: 2000, Last: 2999}
	for u, want := range map[spec.UserID]bool{
		{UID: 2000, GID: 2999}: true, r.User(): true, {UID: 2000, GID: 1999}: false, {UID: 3000, GID: 2000}: false, {}: false,
	} {
		if got := r.Holds(u); got != want {
			t.Errorf("%s holds %s: %v", r, u, got)
		}
	}
	if (spec.UserRange{}).Holds(spec.UserID{}) {
		t.Error("an empty range holds root")
	}
}

func TestPoolsOfUsers(t *testing.T) {
	t.Parallel()
	p, err := spec.ParseUserPool("2000000000-2099999999/1000")
	if err != nil || p.First != 2_000_000_000 || p.Last != 2_099_999_999 || p.PerTenant != 1000 ||
		p.String() != "2000000000-2099999999/1000" {
		t.Errorf("%v, %v", p, err)
	}
	for _, text := range []string{
		"", "1000-2000", "1000/1", "999-2000/1", "1000-2147483646/1", "2000-1000/1", "1000-1009/11", "1000-2000/0", "a-b/c",
	} {
		if p, err := spec.ParseUserPool(text); err == nil {
			t.Errorf("%q is %v", text, p)
		}
	}
}

func TestUserAndRootAreChecked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		edit func(*spec.Job)
		want string // "": valid
	}{
		"tenant":    {func(j *spec.Job) { j.User = "tenant" }, ""},
		"image":     {func(j *spec.Job) { j.User = "image" }, ""},
		"number":    {func(j *spec.Job) { j.User = "1000:1000" }, ""},
		"name":      {func(j *spec.Job) { j.User = "root" }, "user"},
		"read only": {func(j *spec.Job) { j.ReadOnlyRoot = true }, ""},
		"size":      {func(j *spec.Job) { j.ReadOnlyRoot, j.TmpSize = true, 512 }, ""},
		"alone":     {func(j *spec.Job) { j.TmpSize = 512 }, "tmp_size"},
		"too large": {func(j *spec.Job) { j.ReadOnlyRoot, j.TmpSize = true, 4096 }, "tmp_size"},
		"negative":  {func(j *spec.Job) { j.ReadOnlyRoot, j.TmpSize = true, -1 }, "tmp_size"},
		"input": {func(j *spec.Job) {
			j.ReadOnlyRoot, j.Inputs = true, []spec.Input{{From: "https://example.org/x", To: "/tmp"}}
		}, "inputs[0].to"},
		"output": {func(j *spec.Job) {
			j.ReadOnlyRoot, j.Outputs = true, []spec.Output{{Name: "x", Path: "/tmp/x"}}
		}, "outputs[0].path"},
		"output in the image": {func(j *spec.Job) {
			j.ReadOnlyRoot, j.Outputs = true, []spec.Output{{Name: "x", Path: "/tmpfile"}}
		}, "outputs[0].path"},
		"output in a folder": {func(j *spec.Job) {
			j.ReadOnlyRoot, j.Checkpoint = true, &spec.CheckpointPolicy{Path: "/ckpt"}
			j.Inputs = []spec.Input{{From: "data", To: "/data"}}
			j.Outputs = []spec.Output{{Name: "a", Path: "/workspace/x"}, {Name: "b", Path: "/ckpt"}, {Name: "c", Path: "/data/x"}}
		}, ""},
		"output in a read-only input": {func(j *spec.Job) {
			j.ReadOnlyRoot, j.Inputs = true, []spec.Input{{From: "s3://bucket/x/", To: "/data"}}
			j.Outputs = []spec.Output{{Name: "c", Path: "/data/x"}}
		}, "outputs[0].path"},
	} {
		j := spec.Job{Name: "x", Image: "busybox"}
		c.edit(&j)
		faults := j.WithDefaults().Validate()
		if c.want == "" && len(faults) > 0 || c.want != "" && (len(faults) != 1 || faults[0].Field != c.want) {
			t.Errorf("%s: faults are %+v, want %q", name, faults, c.want)
		}
	}
}

// Outputs outside of all mounts need a folder of the image.
func TestImageOutputsLieOutsideOfMounts(t *testing.T) {
	t.Parallel()
	j := spec.Job{Checkpoint: &spec.CheckpointPolicy{Path: "/ckpt"}}
	j.Inputs = []spec.Input{{From: "data", To: "/data"}, {From: "s3://bucket/x/", To: "/fixed"}}
	for _, p := range []string{"/out", "/workspace/x", "/ckpt/best", "/data", "/fixed/x", "/workspaces", "/datas/x"} {
		j.Outputs = append(j.Outputs, spec.Output{Name: "x", Path: p})
	}
	if got, want := spec.ImageOutputs(j), []string{"/out", "/workspaces", "/datas/x"}; !slices.Equal(got, want) {
		t.Errorf("outputs in the image are %q, want %q", got, want)
	}
}
