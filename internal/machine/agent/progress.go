package agent

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"berth"
	"berth/internal/machine/cgroupstats"
	"berth/spec"
	"berth/wire"
)

// progressWatcher reads the signs of life of a running container: the progress file, and for
// stall and stall_timeout also the log, checkpoints, CPU and GPU use. Only the member's goroutine
// may use it.
type progressWatcher struct {
	*core
	workspace *os.Root
	shipper   *logShipper
	uploader  *checkpointUploader // nil without checkpoints
	sampler   *usageSampler
	metric    *bestMetric // nil without checkpoint.keep_best

	stamp time.Time // of the progress file as last read
	size  int64
	due   time.Time // of the next look at the progress file
	same  int       // looks in a row that found the file unchanged

	named map[string]bool // of the job's own values; see values

	last   time.Time // of the last sign
	shown  bool      // there was a sign since the start of the container
	looked time.Time // when signs were last looked for
	lines  int64
	newest int64
	cpu    time.Duration
	gauge  *cgroupstats.Gauge // nil before the first look

	cpuReadings []cpuReading // of the last cpuSpan, with spec.stall
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

// begin starts the watch. A start counts as a sign of life.
func (w *progressWatcher) begin() {
	now := time.Now()
	w.last, w.looked = now, now
	w.shown = w.reports.progress() != nil // to an earlier process of the agent
	w.due = now.Add(w.beat.next(w.pause()))
}

// pause returns the time between two looks at the progress file. A file that has not
// changed for a while is looked at less often, yet at least ten times in the job's
// stall_timeout or stall.after.
func (w *progressWatcher) pause() time.Duration {
	poll := w.timing.ProgressPoll
	pause := poll << min(w.same/briskLooks, maxSlowdown)
	limit := w.claim.Spec.StallTimeout.Std()
	if p := w.claim.Spec.Stall; p != nil {
		limit = p.After.Std()
	}
	if limit > 0 {
		pause = min(pause, max(poll, limit/10))
	}
	return pause
}

// readIfDue reads the progress file if its next look has come.
func (w *progressWatcher) readIfDue(now time.Time) {
	if now.Before(w.due) {
		return
	}
	if w.read() {
		w.same = 0
	} else {
		w.same++
	}
	w.due = now.Add(w.beat.next(w.pause()))
}

// read reads the progress file and reports whether the file has changed.
func (w *progressWatcher) read() (changed bool) {
	info, err := w.workspace.Stat(progressFile)
	if err != nil || info.ModTime().Equal(w.stamp) && info.Size() == w.size {
		return false
	}
	w.stamp, w.size = info.ModTime(), info.Size()
	b, err := readRegular(w.workspace, progressFile, maxProgress)
	var p berth.Progress
	if err != nil || json.Unmarshal(b, &p) != nil {
		w.stamp = time.Time{} // it is being written; the next look reads it
		return true
	}
	if w.metric != nil {
		w.metric.add(b, info.ModTime())
	}
	values := w.values(b)
	p.At = plausible(info.ModTime(), time.Now()).UTC()
	if len(p.Message) > maxMessage {
		p.Message = p.Message[:maxMessage]
	}
	p.Message = strings.ToValidUTF8(strings.ReplaceAll(p.Message, "\x00", ""), string(utf8.RuneError))
	was := w.reports.progress()
	if was != nil && was.Step == p.Step && was.Total == p.Total && was.Message == p.Message {
		if values {
			w.sign(spec.SignProgress, time.Now())
		}
		return true
	}
	w.sign(spec.SignProgress, time.Now())
	// Reports of all members of the machine are due at one instant, and travel together.
	w.reports.edit(w.beat.next(progressReport), func(report *wire.RankReport) { report.Progress = &p })
	return true
}

// values takes the job's own values from the content of a progress file, such as its loss, for
// the sampler, and reports whether they have changed. Names and values beyond the bounds are left
// out, and once a member has reported wire.MaxProgressValues names no further one is taken. The
// values are not part of reports: a berthd of the version before rejects fields that it does not
// know.
func (w *progressWatcher) values(b []byte) (changed bool) {
	var file struct {
		Values map[string]any `json:"values"`
	}
	if json.Unmarshal(b, &file) != nil || len(file.Values) == 0 {
		return false
	}
	now := map[string]float64{}
	for _, name := range slices.Sorted(maps.Keys(file.Values)) {
		v, ok := file.Values[name].(float64)
		if !ok || !spec.ValidMetricName(name) {
			continue
		}
		if !w.named[name] && len(w.named) >= wire.MaxProgressValues {
			continue
		}
		if w.named == nil {
			w.named = map[string]bool{}
		}
		w.named[name], now[name] = true, v
	}
	was := w.sampler.progress.Swap(&now)
	return was == nil || !maps.Equal(*was, now)
}

// plausible returns a file's time if the time is between 1970 and now, and now otherwise. A
// container may set any time, even one that JSON cannot hold.
func plausible(at, now time.Time) time.Time {
	if at.After(now) || at.Before(time.Unix(0, 0)) {
		return now
	}
	return at
}

// readRegular reads a file that a container may have written: only a regular file
// inside the root, of at most limit bytes.
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

// quietFor returns the time since the last sign of life. A sign counts from the moment
// when it was seen. A time without looks proves nothing: if this process was held up,
// the signs of that time have yet to reach it.
func (w *progressWatcher) quietFor(now time.Time) time.Duration {
	if blind := now.Sub(w.looked) - blindLooks*w.timing.ProgressPoll; blind > 0 {
		w.last = w.last.Add(blind)
	}
	w.looked = now
	if lines := w.shipper.lines.Load(); lines != w.lines {
		w.lines = lines
		w.sign(spec.SignLog, now)
	}
	if w.uploader != nil {
		if newest := w.uploader.newest(); newest != w.newest {
			w.newest = newest
			w.sign(spec.SignCheckpoint, now)
		}
	}
	busy := &w.sampler.busy
	if w.claim.Spec.Stall != nil {
		busy = &w.sampler.works
	}
	if at := time.Unix(0, busy.Load()); at.After(w.last) {
		w.sign(spec.SignGPU, at)
	}
	cpu, ok := w.cpuUse()
	if ok && w.claim.Spec.Stall != nil {
		w.noteCPU(now, cpu)
	}
	// A process that uses a hundredth of a core on average is not idle.
	if ok && w.counts(spec.SignCPU) && cpu-w.cpu > max(now.Sub(w.last)/100, 10*time.Millisecond) {
		w.cpu = cpu
		w.sign(spec.SignCPU, now)
	}
	return now.Sub(w.last)
}

// cpuUse returns the CPU time that the container has used; false for engines with
// containers that have no control groups.
func (w *progressWatcher) cpuUse() (time.Duration, bool) {
	if w.gauge == nil {
		c, err := w.runtime.Inspect(w.ctx, w.name())
		if err != nil {
			return 0, false
		}
		g := cgroupstats.Host{}.Open(c.PID)
		w.gauge = &g
	}
	return w.gauge.CPU()
}
