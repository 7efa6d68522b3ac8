package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"berth"
	"berth/activities/node"
	"berth/failure"
	"berth/internal/machine/deadman"
)

// layered is an engine that measures layers.
type layered struct {
	node.Runtime
	asked []string
	use   func(ctx context.Context, name string) (int64, error)
}

func (l *layered) LayerUse(ctx context.Context, name string, _ int64) (bytes, inodes int64, err error) {
	l.asked = append(l.asked, name)
	bytes, err = l.use(ctx, name)
	return bytes, 1, err
}

func (l *layered) Inspect(_ context.Context, name string) (node.Container, error) {
	return node.Container{}, fmt.Errorf("%s: %w", name, node.ErrNoContainer)
}

// watching is a watch without a reserve, and its users, which have a limit of 1 GiB.
func watching(t *testing.T, l *layered, names ...string) (*diskWatch, []*diskUser) {
	t.Helper()
	w := &diskWatch{
		runtime: l, state: t.TempDir(), recheck: 30 * time.Second, health: &engineHealth{},
		log: slog.New(slog.DiscardHandler), users: map[berth.AllocationID]*diskUser{},
	}
	var users []*diskUser
	for i, name := range names {
		u := user(name, gib, 0, 0)
		u.alloc = berth.AllocationID(i + 1)
		w.users[u.alloc] = u
		users = append(users, u)
	}
	return w, users
}

// A folder that is moved during a measurement counts twice.
func TestMeasurementsMustAgreeBeforeAJobIsEnded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		found []int64
		want  bool
	}{
		{[]int64{gib / 2}, false},
		{[]int64{2 * gib, gib}, false},
		{[]int64{2 * gib, gib + 1}, true},
	} {
		l := &layered{}
		l.use = func(context.Context, string) (int64, error) { return c.found[len(l.asked)-1], nil }
		w, users := watching(t, l, "a")
		w.look(t.Context())
		v := users[0].judged()
		if (v != nil) != c.want || v != nil && v.cause != failure.CauseDiskLimit || len(l.asked) != len(c.found) {
			t.Errorf("found %d: verdict is %+v after %d measurements", c.found, v, len(l.asked))
		}
	}
}

// What was found earlier counts for the growth, but is no reason to end a job that has since
// deleted it.
func TestMeasurementsThatAreCutShortHideNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &layered{}
		l.use = func(ctx context.Context, _ string) (int64, error) {
			if len(l.asked) == 1 {
				return gib, nil
			}
			<-ctx.Done()
			return gib / 4, ctx.Err()
		}
		w, users := watching(t, l, "a")
		u := users[0]
		w.look(t.Context())
		time.Sleep(w.recheck)
		w.look(t.Context())
		if u.kinds[ofLayer].Bytes != gib || u.sure != gib/4 {
			t.Errorf("use is %d of which %d are sure", u.kinds[ofLayer].Bytes, u.sure)
		}
		l.use = func(context.Context, string) (int64, error) { return gib / 4, nil }
		time.Sleep(diskRest * diskPatience)
		w.look(t.Context())
		if u.kinds[ofLayer].Bytes != gib/4 || u.judged() != nil {
			t.Errorf("use is %d after a whole measurement, verdict %+v", u.kinds[ofLayer].Bytes, u.judged())
		}
	})
}

// An engine that does not answer must not keep the watch from its other work.
func TestMeasurementsBeginWithTheOldest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &layered{use: func(ctx context.Context, _ string) (int64, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}}
		names := make([]string, 12)
		for i := range names {
			names[i] = fmt.Sprint(i)
		}
		w, _ := watching(t, l, names...)
		w.look(t.Context())
		first := len(l.asked)
		if first == 0 || first == len(names) {
			t.Fatalf("%d of %d members were measured in one look", first, len(names))
		}
		for range len(names) {
			w.look(t.Context())
			if len(l.asked) >= len(names) {
				break
			}
		}
		slices.Sort(names)
		if got := slices.Sorted(slices.Values(l.asked[:min(len(l.asked), len(names))])); !slices.Equal(got, names) {
			t.Errorf("measured are %v, want each member once", got)
		}
	})
}

// A fence renames the workspace while the container may still write to it.
func TestMeasurementsFollowAFencedWorkspace(t *testing.T) {
	t.Parallel()
	l := &layered{use: func(context.Context, string) (int64, error) { return 0, nil }}
	w, users := watching(t, l, "a")
	gate := filepath.Join(scratchDir(w.state, "a"), "workspace")
	if err := errors.Join(os.MkdirAll(filepath.Join(gate, "sub"), 0o700), deadman.CloseGate(gate)); err != nil {
		t.Fatal(err)
	}
	w.look(t.Context())
	if n := users[0].kinds[ofWorkspace].Inodes; n != 2 {
		t.Errorf("%d inodes are in the workspace, want 2", n)
	}
}

// A member may be adopted anew before its earlier goroutine has ended.
func TestDiskUsersLeaveForThemselves(t *testing.T) {
	t.Parallel()
	w, users := watching(t, &layered{}, "a")
	w.leave(nil)
	other := user("a", gib, 0, 0)
	other.alloc = users[0].alloc
	w.leave(other)
	if got := w.present(); len(got) != 1 {
		t.Errorf("%d members are left, want 1", len(got))
	}
	w.leave(users[0])
	if got := w.present(); len(got) != 0 {
		t.Errorf("%d members are left, want none", len(got))
	}
}
