package runtimetest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth/activities/node"
)

// logsSplitStreams checks that lines are marked as stdout or stderr, and that time stamps
// do not decrease. An unfinished last line counts as a line.
func logsSplitStreams(b *bench) {
	// The order of two streams is the order in which the engine read them, so each line
	// waits until the one before it was seen.
	dir := b.t.TempDir()
	spec := b.spec("a", "do", "echo out", "await-file /go/err", "stderr err", "await-file /go/end", "print end")
	spec.Mounts = []node.Mount{{Host: dir, Target: "/go"}}
	name := b.run(spec)
	for _, step := range []struct{ seen, next string }{{"out", "err"}, {"err", "end"}} {
		b.await(name, step.seen)
		must(b.t, os.WriteFile(filepath.Join(dir, step.next), nil, 0o644))
	}
	b.wait(name)
	lines := b.logs(name, time.Time{})
	wantLines(b.t, texts(lines), "out", "err", "end")
	for i, l := range lines {
		if l.Stderr != (l.Text == "err") {
			b.t.Errorf("line %q has stderr %v", l.Text, l.Stderr)
		}
		if l.At.IsZero() || i > 0 && l.At.Before(lines[i-1].At) {
			b.t.Errorf("line %q at %v comes out of order", l.Text, l.At)
		}
	}
}

// collect starts to follow a log; the returned function waits for its end.
func collect(b *bench, name string, since time.Time) func() ([]node.LogLine, error) {
	return async(b.t, func() (lines []node.LogLine, err error) {
		err = b.Runtime.Logs(b.ctx, name, since, true, func(l node.LogLine) error {
			lines = append(lines, l)
			return nil
		})
		return lines, err
	})
}

// logsFollowToTheLastLine checks that followers that begin before the start, during the run
// and after the end all get the same lines.
func logsFollowToTheLastLine(b *bench) {
	spec := b.spec("a", "lines", "40", "5ms")
	b.create(spec)
	early := collect(b, spec.Name, time.Time{}) // before it is even started
	b.start(spec.Name)
	b.await(spec.Name, "line 5")
	late := collect(b, spec.Name, time.Time{})
	b.wait(spec.Name)
	whole := b.logs(spec.Name, time.Time{})
	if len(whole) != 40 || whole[39].Text != "line 40" {
		b.t.Errorf("the whole log is %q", texts(whole))
	}
	for _, follow := range []func() ([]node.LogLine, error){early, late, collect(b, spec.Name, time.Time{})} {
		if lines, err := follow(); err != nil || !slices.Equal(lines, whole) {
			b.t.Errorf("followed %q (error %v), want the same as afterwards", texts(lines), err)
		}
	}
}

// logsOfAShortLife checks that a follower gets every line of a container that ends at once.
func logsOfAShortLife(b *bench) {
	for i := range 5 {
		spec := b.spec(fmt.Sprint(i), "echo", "first", "last")
		b.create(spec)
		follow := collect(b, spec.Name, time.Time{})
		b.start(spec.Name)
		lines, err := follow()
		if err != nil {
			b.t.Errorf("follow: %v", err)
		}
		wantLines(b.t, texts(lines), "first", "last")
		if c := b.inspect(spec.Name); c.State != node.ContainerExited {
			b.t.Errorf("the log ended while the container was %s", c.State)
		}
	}
}

// logsResumeInclusively checks that a read since the stamp of a line begins with that line,
// and that lines of one stamp are never split: a reader that resumes loses no line.
func logsResumeInclusively(b *bench) {
	name := b.run(b.spec("a", "do", "lines 200 0s", "sleep 50ms", "stderr a b c", "sleep 50ms", "lines 20 1ms"))
	b.wait(name)
	whole := b.logs(name, time.Time{})
	if len(whole) != 223 {
		b.t.Fatalf("the log has %d lines, want 223", len(whole))
	}
	for _, from := range []int{0, 1, 57, 199, 200, 202, 222} {
		since := whole[from].At
		first := slices.IndexFunc(whole, func(l node.LogLine) bool { return !l.At.Before(since) })
		if got := b.logs(name, since); !slices.Equal(got, whole[first:]) {
			b.t.Errorf("since line %d: %d lines from %q, want %d", from, len(got), texts(got[:min(1, len(got))]),
				len(whole)-first)
		}
		if got, err := collect(b, name, since)(); err != nil || !slices.Equal(got, whole[first:]) {
			b.t.Errorf("following since line %d: %d lines, error %v, want %d", from, len(got), err, len(whole)-first)
		}
	}
	// A nanosecond after the last stamp nothing is left.
	if got := b.logs(name, whole[222].At.Add(1)); len(got) != 0 {
		b.t.Errorf("after the last line there are %q", texts(got))
	}
}

// logsStopWhenRefused checks that an error of emit ends Logs at once and is returned
// unwrapped.
func logsStopWhenRefused(b *bench) {
	name := b.run(b.spec("a", "do", "echo 1 2 3", "sleep 1h"))
	b.await(name, "3")
	refusal := errors.New("enough")
	for _, follow := range []bool{true, false} {
		got := 0
		err := b.Runtime.Logs(b.ctx, name, time.Time{}, follow, func(node.LogLine) error {
			if got++; got == 2 {
				return refusal
			}
			return nil
		})
		if err != refusal || got != 2 {
			b.t.Errorf("follow %v: error %v after %d lines, want the reader's own after 2", follow, err, got)
		}
	}
}

// logsEndWhenRemoved checks that a follower ends with its container.
func logsEndWhenRemoved(b *bench) {
	name := b.run(b.spec("a", "do", "echo hello", "sleep 1h"))
	b.await(name, "hello")
	follow := collect(b, name, time.Time{})
	if err := b.Runtime.Remove(b.ctx, name); err != nil {
		b.t.Fatal(err)
	}
	if lines, err := follow(); err != nil && !errors.Is(err, node.ErrNoContainer) {
		b.t.Errorf("followed %q, error %v", texts(lines), err)
	}
}

// longLinesArriveWhole checks that lines longer than the 16 KiB of an engine's buffer
// arrive in parts, none of which is longer, without a lost byte.
func longLinesArriveWhole(b *bench) {
	// Two and a half times an engine's buffer.
	const size = 40_000
	name := b.run(b.spec("a", "spam", "3", fmt.Sprint(size)))
	b.wait(name)
	var all strings.Builder
	for _, l := range b.logs(name, time.Time{}) {
		if len(l.Text) > 16<<10 {
			b.t.Errorf("a part of %d bytes", len(l.Text))
		}
		all.WriteString(l.Text)
	}
	var want strings.Builder
	for i := range 3 {
		want.WriteString(fmt.Sprint(i+1, " ") + strings.Repeat("x", size-2))
	}
	if all.String() != want.String() {
		b.t.Errorf("the parts make %d bytes, want %d", all.Len(), want.Len())
	}
}
