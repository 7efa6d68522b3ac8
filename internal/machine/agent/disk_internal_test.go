package agent

import (
	"log/slog"
	"testing"
	"time"

	"berth/failure"
	"berth/internal/machine/diskuse"
)

const gib = int64(1 << 30)

// shortMachine is a watch over a machine with 1000 GiB and a million inodes, 5 % of them in
// reserve.
func shortMachine() *diskWatch {
	return &diskWatch{machine: "m1", reserve: 5, log: slog.New(slog.DiscardHandler)}
}

// spacesOf returns two file systems, or one for both places.
func spacesOf(one bool, free, freeInodes int64) [2]diskuse.Space {
	s := diskuse.Space{Device: 1, Total: 1000 * gib, Free: free, Inodes: 1_000_000, FreeInodes: freeInodes}
	other := s
	if !one {
		other = diskuse.Space{Device: 2, Total: 1000 * gib, Free: 500 * gib, Inodes: 1_000_000, FreeInodes: 500_000}
	}
	return [2]diskuse.Space{inState: s, inLayer: other}
}

func (w *diskWatch) relieved(users []*diskUser, spaces [2]diskuse.Space) {
	w.relieve(users, spaces, w.shortage(spaces, 1))
}

func user(name string, limit, state, layer int64) *diskUser {
	u := &diskUser{name: name, limit: limit, wake: func() {}}
	u.use[inState], u.use[inLayer] = diskuse.Use{Bytes: state, Inodes: 1}, diskuse.Use{Bytes: layer, Inodes: 1}
	return u
}

// ended returns the names of the users with a verdict.
func endedUsers(t *testing.T, users []*diskUser) (names []string) {
	t.Helper()
	for _, u := range users {
		if v := u.judged(); v != nil {
			if v.cause != failure.CauseDiskReserve || v.says == "" {
				t.Errorf("verdict on %s is %+v", u.name, v)
			}
			names = append(names, u.name)
		}
	}
	return names
}

func TestReserveEndsTheJobFarthestBeyondItsRequest(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spaces [2]diskuse.Space
		users  []*diskUser
		want   string // "": none
	}{
		"nothing is short": {spacesOf(true, 50*gib, 50_000), []*diskUser{user("a", 0, 900*gib, 0)}, ""},
		"the greatest excess, not the greatest use": {
			spacesOf(true, 49*gib, 500_000),
			[]*diskUser{user("within", 800*gib, 700*gib, 0), user("small", 0, gib, 0), user("beyond", gib, 2*gib, 2*gib)},
			"beyond",
		},
		"nobody is far beyond": {
			spacesOf(true, 0, 500_000), []*diskUser{user("a", gib, gib, 0), user("b", 0, 1<<20, 0)}, "",
		},
		"only the file system that is short counts": {
			spacesOf(false, 49*gib, 500_000), []*diskUser{user("other", 0, 0, 300*gib), user("here", 0, gib, 0)}, "here",
		},
		"inodes": {
			spacesOf(true, 500*gib, 49_999),
			func() []*diskUser {
				many, big := user("many", 900*gib, gib, 0), user("big", 0, 400*gib, 0)
				many.use[inState].Inodes = 800_000
				return []*diskUser{big, many}
			}(), "many",
		},
		"one that cannot be measured": {
			spacesOf(true, 49*gib, 500_000),
			func() []*diskUser {
				deep := user("deep", 0, 0, 0)
				deep.deep = true
				return []*diskUser{user("a", 0, 100*gib, 0), deep}
			}(), "deep",
		},
	} {
		w := shortMachine()
		w.relieved(c.users, c.spaces)
		got := ""
		for _, n := range endedUsers(t, c.users) {
			got += n
		}
		if got != c.want {
			t.Errorf("%s: ended %q, want %q", name, got, c.want)
		}
	}
}

// The files of an ended job are here until their removal. The next job is ended only if the space
// shrinks all the same, or once the first one's files are gone.
func TestReserveEndsOneJobAtATime(t *testing.T) {
	t.Parallel()
	w := shortMachine()
	a, b, c := user("a", 0, 30*gib, 0), user("b", 0, 20*gib, 0), user("c", 0, 10*gib, 0)
	all := []*diskUser{a, b, c}
	step := func(claim string, users []*diskUser, free int64, want int) {
		t.Helper()
		w.relieved(users, spacesOf(true, free, 500_000))
		if got := len(endedUsers(t, all)); got != want {
			t.Errorf("%s: %d jobs are ended, want %d", claim, got, want)
		}
	}
	step("the reserve is touched", all, 49*gib, 1)
	step("its files are still here", all, 49*gib, 1)
	a.ended.Store(true)
	step("its container has ended", all, 46*gib, 1)
	step("the space shrinks", all, 43*gib, 2)
	step("the space shrinks no more", all, 43*gib, 2)
	step("the files of the second are gone", []*diskUser{a, c}, 48*gib, 2) // those of a come next
	step("the files of both are gone", []*diskUser{c}, 49*gib, 3)
	step("the reserve is whole", []*diskUser{c}, 60*gib, 3)
	if w.victim != nil {
		t.Errorf("%s is still awaited", w.victim.name)
	}
}

// The use of the whole file systems shows whether a job can have reached its limit.
func TestMeasurementsAreDueByGrowth(t *testing.T) {
	t.Parallel()
	now := time.Now()
	u := user("a", 10*gib, 3*gib, gib)
	w := &diskWatch{recheck: 30 * time.Second}
	for _, c := range []struct {
		claim string
		age   time.Duration
		took  time.Duration
		used  int64
		short bool
		want  bool
	}{
		{"nothing has grown", time.Second, time.Millisecond, 100 * gib, false, false},
		{"all have grown by less than it may", time.Second, time.Millisecond, 105 * gib, false, false},
		{"all have grown by as much as it may", time.Second, time.Millisecond, 106 * gib, false, true},
		{"the last one took long", time.Second, time.Second, 200 * gib, true, false},
		{"the last one is old", 30 * time.Second, time.Second, 90 * gib, false, true},
		{"the reserve is short", time.Second, time.Millisecond, 90 * gib, true, true},
	} {
		u.at, u.took, u.before = now.Add(-c.age), c.took, 100*gib
		if got := w.due(u, now, c.used, c.short); got != c.want {
			t.Errorf("%s: due is %v", c.claim, got)
		}
	}
	if u := user("new", 0, 0, 0); !w.due(u, now, 0, false) {
		t.Error("the first measurement is not due")
	}
}
