package agent

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"berth"
	"berth/internal/machine/cgroupstats"
)

// lookout reads the signs of life of a running container: what it says of its
// progress, and for stall_timeout also its log, checkpoints, CPU and GPU use.
type lookout struct {
	r     *member
	stamp time.Time // of the progress file as last read
	size  int64
	due   time.Time // of the next look at the progress file
	same  int       // looks in a row that found the file as it was

	last   time.Time // of the last sign
	looked time.Time // when signs were last looked for
	lines  int64
	newest int64
	cpu    time.Duration
	gauge  *cgroupstats.Gauge // nil before the first look
}

const (
	progressFile   = ".berth/progress"
	maxProgress    = 64 << 10
	maxMessage     = 1 << 10
	progressReport = 2 * time.Second // at most one report in this time
	blindLooks     = 10              // so many looks that were missed in a row count as quiet
	briskLooks     = 8               // looks without a change before they become rarer
	maxSlowdown    = 2               // the rarest looks are 1<<maxSlowdown times ProgressPoll apart
)

func newLookout(r *member) *lookout {
	now := time.Now()
	l := &lookout{r: r, last: now, looked: now}
	l.due = now.Add(r.sup.beat.next(l.pause()))
	return l
}

// pause returns the time between two looks at the progress file. A file that has not
// changed for a while is looked at less often, yet at least ten times in the job's
// stall_timeout.
func (l *lookout) pause() time.Duration {
	poll := l.r.timing().ProgressPoll
	pause := poll << min(l.same/briskLooks, maxSlowdown)
	if limit := l.r.claim.Spec.StallTimeout.Std(); limit > 0 {
		pause = min(pause, max(poll, limit/10))
	}
	return pause
}

// readIfDue reads the progress file if its next look has come.
func (l *lookout) readIfDue(now time.Time) {
	if now.Before(l.due) {
		return
	}
	if l.readProgress() {
		l.same = 0
	} else {
		l.same++
	}
	l.due = now.Add(l.r.sup.beat.next(l.pause()))
}

// readProgress reads the progress file and reports whether it has changed.
func (l *lookout) readProgress() (changed bool) {
	info, err := l.r.scratch.workspace.Stat(progressFile)
	if err != nil || info.ModTime().Equal(l.stamp) && info.Size() == l.size {
		return false
	}
	l.stamp, l.size = info.ModTime(), info.Size()
	b, err := readRegular(l.r.scratch.workspace, progressFile, maxProgress)
	var p berth.Progress
	if err != nil || json.Unmarshal(b, &p) != nil {
		l.stamp = time.Time{} // it is being written; look again
		return true
	}
	p.At = plausible(info.ModTime(), time.Now()).UTC()
	if len(p.Message) > maxMessage {
		p.Message = p.Message[:maxMessage]
	}
	p.Message = strings.ToValidUTF8(strings.ReplaceAll(p.Message, "\x00", ""), string(utf8.RuneError))
	if was := l.r.reports.progress(); was != nil && was.Step == p.Step && was.Total == p.Total && was.Message == p.Message {
		return true
	}
	l.last = time.Now()
	// Reports of all members of the machine are due at one instant, and travel together.
	l.r.reports.edit(l.r.sup.beat.next(progressReport), func(report *berth.RankReport) { report.Progress = &p })
	return true
}

// plausible is a file's time if it can be true. A container may set any, even
// one that JSON cannot hold.
func plausible(at, now time.Time) time.Time {
	if at.After(now) || at.Before(time.Unix(0, 0)) {
		return now
	}
	return at
}

// readRegular reads a file that a container may have put there: nothing but a
// regular file inside the root, and no more than limit bytes.
func readRegular(root *os.Root, name string, limit int64) ([]byte, error) {
	f, err := openRegular(root, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%s is longer than %d bytes", name, limit)
	}
	return b, err
}

// openRegular never blocks: opening a named pipe would, without O_NONBLOCK.
func openRegular(root *os.Root, name string) (*os.File, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", name)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// quietFor is how long there has been no sign of life. A sign counts from when
// it was seen. Time in which nobody looked proves nothing: when this process was
// held up, the signs of that time have yet to reach it.
func (l *lookout) quietFor(now time.Time) time.Duration {
	if blind := now.Sub(l.looked) - blindLooks*l.r.timing().ProgressPoll; blind > 0 {
		l.last = l.last.Add(blind)
	}
	l.looked = now
	if lines := l.r.shipper.lines.Load(); lines != l.lines {
		l.lines, l.last = lines, now
	}
	if l.r.keeper != nil {
		if newest := l.r.keeper.newest(); newest != l.newest {
			l.newest, l.last = newest, now
		}
	}
	if at := time.Unix(0, l.r.meter.busy.Load()); at.After(l.last) {
		l.last = at
	}
	// A hundredth of a core over the time looked at is no idle process.
	if cpu, ok := l.cpuUse(); ok && cpu-l.cpu > max(now.Sub(l.last)/100, 10*time.Millisecond) {
		l.cpu, l.last = cpu, now
	}
	return now.Sub(l.last)
}

// cpuUse is the CPU time that the container has used; not known for engines
// whose containers have no control groups.
func (l *lookout) cpuUse() (time.Duration, bool) {
	if l.gauge == nil {
		c, err := l.r.runtime().Inspect(l.r.ctx, l.r.name())
		if err != nil {
			return 0, false
		}
		g := cgroupstats.Host{}.Open(c.PID)
		l.gauge = &g
	}
	return l.gauge.CPU()
}
