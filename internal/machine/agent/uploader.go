package agent

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"berth"
	"berth/internal/lib/failpoint"
	"berth/internal/lib/tracing"
	"berth/spec"
	"berth/wire"
)

// checkpointUploader stores a member's checkpoints while its container runs, and once
// more after its end. It uploads and registers complete steps in ascending order, so
// that a newer step never overtakes an older one.
type checkpointUploader struct {
	*core
	control *control
	retry   *retrier
	scratch *scratch
	spans   spans
	helpers *sync.WaitGroup

	begun   bool
	done    chan struct{} // closed after the last look
	last    int64         // steps up to this one need no upload
	seen    atomic.Int64  // newest complete step in the folder
	found   atomic.Int64  // when that step was found, in nanoseconds since 1970
	storing atomic.Int64  // how long the last stored step took to store, as a time.Duration
	bad     map[int64]bool

	metric *bestMetric        // nil without checkpoint.keep_best
	values map[int64]*float64 // of the metric, for complete steps that are not stored yet; nil: none
	before time.Time          // when the step before was complete

	foreign int64 // step of another job that the agent has put into the folder; -1: none

	ended chan struct{} // closed when the container has ended
}

const (
	doneFile     = "DONE"
	maxFiles     = 100_000
	maxPathBytes = 1024
)

// resume sets the uploader up after the claim, which lists the steps that an earlier
// process has stored.
func (u *checkpointUploader) resume() {
	u.last, u.foreign = -1, -1
	u.done, u.ended, u.bad = make(chan struct{}), make(chan struct{}), map[int64]bool{}
	u.values = map[int64]*float64{}
	u.seen.Store(-1)
	for _, p := range u.claim.Restore {
		if p.Attempt == u.attempt && p.Job == "" {
			u.last = max(u.last, p.Step)
		}
	}
}

// skip leaves out the step that the agent itself has put into the folder. After a step of the
// job itself, lower steps are left out, too: the job repeats them. A step of another job says
// nothing about the count of this one, which may begin at 0.
func (u *checkpointUploader) skip(restored *int64, source berth.JobID) {
	switch {
	case restored == nil:
	case source == "":
		u.last = max(u.last, *restored)
	default:
		u.foreign = *restored
	}
}

// newest returns the newest complete step in the folder, stored or not.
func (u *checkpointUploader) newest() int64 { return u.seen.Load() }

// took returns the time from the discovery of the last stored step until its storage; 0: none was stored.
func (u *checkpointUploader) took() time.Duration { return time.Duration(u.storing.Load()) }

// foundAt returns the time at which the newest complete step was found.
func (u *checkpointUploader) foundAt() time.Time { return time.Unix(0, u.found.Load()) }

// begin starts looking for steps, until finish or the end of the member.
func (u *checkpointUploader) begin() {
	u.begun = true
	u.helpers.Go(func() {
		defer close(u.done)
		u.run()
	})
}

// finish asks for a last look after the container's end, and waits for its completion.
func (u *checkpointUploader) finish(ctx context.Context) {
	if !u.begun {
		return
	}
	close(u.ended)
	select {
	case <-u.done:
	case <-ctx.Done():
	}
}

// run looks for new checkpoints until the container's end, and once more after it.
func (u *checkpointUploader) run() {
	tick := time.NewTimer(u.beat.next(u.timing.CheckpointPoll))
	defer tick.Stop()
	for {
		last := false
		select {
		case <-u.ended:
			last = true
		case <-tick.C:
			tick.Reset(u.beat.next(u.timing.CheckpointPoll))
		case <-u.ctx.Done():
			return
		}
		if err := u.store(); err != nil {
			return
		}
		if last {
			return
		}
	}
}

// store uploads complete and new steps, oldest first. If uploads cannot keep up, it
// leaves out steps that checkpoint.keep and keep_best would delete at once. An error ends
// the uploader.
func (u *checkpointUploader) store() error {
	steps, err := u.complete()
	if err != nil {
		u.log.Warn("cannot read the checkpoint folder", "err", err)
		return nil
	}
	u.measure(steps)
	steps = u.withinKeep(steps)
	for _, step := range steps {
		began := time.Now()
		err := u.save(step)
		switch {
		case u.ctx.Err() != nil:
			return context.Cause(u.ctx)
		case errors.Is(err, errGivenUp):
			u.reports.warn(fmt.Sprintf("checkpoint of step %d was not stored: %v", step, err))
			return err
		case errors.Is(err, fs.ErrNotExist):
			u.log.Info("checkpoint removed by its job before its upload", "step", step)
		case overQuota(err): // the server has added an event, and deletes the stored part
			u.log.Warn("checkpoint exceeds a storage quota", "step", step, "err", err)
			u.bad[step] = true
			continue
		case err != nil:
			u.reports.warn(fmt.Sprintf("checkpoint of step %d was rejected: %v", step, err))
			u.bad[step] = true
			continue
		}
		u.storing.Store(int64(time.Since(began)))
		u.last = step
		maps.DeleteFunc(u.values, func(s int64, _ *float64) bool { return s <= step })
	}
	return nil
}

// measure looks up the metric's values for steps that were found since the last call.
func (u *checkpointUploader) measure(steps []int64) {
	if u.metric == nil {
		return
	}
	for _, step := range steps {
		if _, known := u.values[step]; known {
			continue
		}
		info, err := u.scratch.checkpoint.Lstat(path.Join(stepName(step), doneFile))
		if err != nil {
			continue
		}
		u.values[step] = u.metric.of(step, u.before, info.ModTime())
		u.before = info.ModTime()
	}
}

// withinKeep returns the steps, in ascending order, that the server would keep
// if it had all of them.
func (u *checkpointUploader) withinKeep(steps []int64) []int64 {
	policy := u.claim.Spec.Checkpoint
	older := len(steps) - max(policy.Keep, 1)
	if older <= 0 {
		return steps
	}
	best := map[int64]bool{}
	if b := policy.Best; b != nil && u.metric != nil {
		measured := slices.DeleteFunc(slices.Clone(steps), func(s int64) bool { return u.values[s] == nil })
		slices.SortFunc(measured, func(x, y int64) int {
			c := cmp.Compare(*u.values[x], *u.values[y])
			if b.Mode == spec.BestIsMax {
				c = -c
			}
			return cmp.Or(c, cmp.Compare(y, x))
		})
		for _, s := range measured[:min(b.Count, len(measured))] {
			best[s] = true
		}
	}
	kept := slices.DeleteFunc(slices.Clone(steps[:older]), func(s int64) bool { return !best[s] })
	return append(kept, steps[older:]...)
}

// complete lists the complete steps that are not stored yet, ascending.
func (u *checkpointUploader) complete() ([]int64, error) {
	folder, err := u.scratch.checkpoint.Open(".")
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	names, err := folder.Readdirnames(maxFiles)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	var steps []int64
	for _, name := range names {
		step, ok := stepOf(name)
		if !ok || step == u.foreign || step <= u.last && step <= u.seen.Load() {
			continue
		}
		info, err := u.scratch.checkpoint.Lstat(path.Join(name, doneFile))
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		if step > u.seen.Load() {
			u.found.Store(time.Now().UnixNano()) // before seen, whose readers ask for the time
			u.seen.Store(step)
		}
		if step > u.last && !u.bad[step] {
			steps = append(steps, step)
		}
	}
	slices.Sort(steps)
	return steps, nil
}

// stepOf reads step-<number>, in its one spelling.
func stepOf(name string) (int64, bool) {
	digits, ok := strings.CutPrefix(name, "step-")
	n, err := strconv.ParseInt(digits, 10, 64)
	return n, ok && err == nil && n >= 0 && stepName(n) == name
}

// stepName returns the name of a step's folder.
func stepName(step int64) string { return "step-" + strconv.FormatInt(step, 10) }

// save uploads one step: its files, then the manifest that completes the step, then the row that
// registers the step as a checkpoint of the job.
func (u *checkpointUploader) save(step int64) error {
	_, span := u.spans.start(u.ctx, "checkpoint", attribute.Int64("berth.step", step))
	err := u.saveTraced(step, span)
	span.End(faultOf(u.ctx, nil, err))
	return err
}

// saveTraced is save inside a span. A step with large files is stored by chunks where the server shares these.
func (u *checkpointUploader) saveTraced(step int64, span *tracing.Span) error {
	names, bytes, err := u.files(stepName(step))
	if err != nil {
		return err
	}
	s := stepUpload{checkpointUploader: u, step: step, began: time.Now(), names: names, bytes: bytes,
		chunked: u.sharesChunks(bytes)}
	err = s.save()
	if errors.Is(err, errNoChunks) {
		u.log.Info("server stores no chunks, will store whole files", "step", step)
		s.chunked = false
		err = s.save()
	}
	if err == nil {
		span.Set(attribute.Int("berth.files", len(names)), attribute.Int64("berth.bytes", s.total))
		u.log.Info("checkpoint stored", "step", step, "files", len(names), "bytes", s.total)
	}
	return err
}

// stepUpload is the storage of one step.
type stepUpload struct {
	*checkpointUploader
	step    int64
	began   time.Time
	names   []string // of the files
	bytes   int64    // of the files together, before they are read
	chunked bool

	total int64 // bytes of the files, as read
}

// save stores the files, the manifest and the row of the step. If the server no longer has a chunk that it let the
// member leave out, the chunk is sent and the report is repeated.
func (s *stepUpload) save() error {
	wrote := writeTime(s.scratch.checkpoint, s.step)
	done, err := s.scratch.checkpoint.Lstat(path.Join(stepName(s.step), doneFile))
	if err != nil {
		return err
	}
	m := wire.CheckpointManifest{Job: s.job, Attempt: s.attempt, Rank: s.number, Step: s.step, At: savedAt(done)}
	folder := berth.CheckpointKey(s.claim.Tenant, s.job, s.attempt, s.number, s.step)
	cuts, err := s.storeFiles(folder, &m)
	if err != nil {
		return err
	}
	chunks := &chunkStore{checkpointUploader: s.checkpointUploader, step: s.step, server: map[string]bool{}}
	if err := chunks.store(cuts); err != nil {
		return err
	}
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(body)
	key := folder + "/" + berth.ManifestName
	_ = failpoint.Hit("agent.manifest.before")
	err = s.retry.insist("store the manifest of a checkpoint", func(ctx context.Context) error {
		return s.control.putObject(ctx, key, bytes.NewReader(body), int64(len(body)))
	})
	if err != nil {
		return err
	}
	_ = failpoint.Hit("agent.manifest.after")
	p := wire.CheckpointReport{Step: s.step, Manifest: key, SHA256: hex.EncodeToString(sum[:]), Bytes: s.total,
		MetricValue: s.values[s.step], WriteTime: wrote}
	for _, f := range cuts {
		p.Chunks = append(p.Chunks, f.file.Chunks...)
	}
	for round := 1; ; round++ {
		err := s.register(p, s.began)
		if len(cuts) == 0 || !objectMissing(err) || round >= chunkRounds {
			return err
		}
		s.log.Info("server lacks chunks of a checkpoint, will send them", "step", s.step, "err", err)
		if err := chunks.store(cuts); err != nil {
			return err
		}
	}
}

// storeFiles stores the files that are objects of the step, and cuts the others. All are listed in the manifest. Before
// each object it declares the bytes still to come, so that the server can refuse a checkpoint that exceeds the quota at
// its first file.
func (s *stepUpload) storeFiles(folder string, m *wire.CheckpointManifest) (cuts []cutFile, err error) {
	var large map[string]bool
	rest := s.bytes
	if s.chunked {
		bytes := int64(0)
		large, bytes = s.large(s.step, s.names)
		rest -= bytes
	}
	s.total = 0
	count := 0
	for i, name := range s.names {
		f := wire.CheckpointFile{Path: name, Object: fmt.Sprintf("%s/file-%06d", folder, i)}
		inStep := path.Join(stepName(s.step), name)
		_ = failpoint.Hit("agent.file.before")
		if large[name] {
			if err := s.cut(inStep, &f); err != nil {
				return nil, err
			}
			if count += len(f.Chunks); count > wire.MaxPartChunks {
				return nil, errNoChunks
			}
			cuts = append(cuts, cutFile{name: inStep, file: f})
		} else {
			if err := s.upload(inStep, &f, rest); err != nil {
				return nil, err
			}
			rest -= f.Bytes
		}
		_ = failpoint.Hit("agent.file.after")
		s.total += f.Bytes
		m.Files = append(m.Files, f)
	}
	return cuts, nil
}

// register reports a stored step. The time to store it counts from began until the report is sent.
func (u *checkpointUploader) register(p wire.CheckpointReport, began time.Time) error {
	p.Alloc, p.Job, p.Rank, p.Attempt, p.OfAttempt = u.alloc, u.job, u.number, u.attempt, u.attempt
	return u.retry.insist("register a checkpoint", func(ctx context.Context) error {
		stored := time.Since(began)
		p.StoreTime = &stored
		err := u.control.reportCheckpoint(ctx, p)
		if len(p.Chunks) > 0 && berth.CodeOf(err) == berth.CodeNotFound && answered(err) {
			return localError{errNoChunks} // a server of an earlier version
		}
		return err
	})
}

// savedAt returns the time at which a step was complete, by its last file. It is the same in each process of the
// agent, so all of them write the same manifest. A time that JSON cannot hold is zero.
func savedAt(done fs.FileInfo) time.Time {
	at := done.ModTime().UTC()
	if year := at.Year(); year < 1 || year > 9999 {
		return time.Time{}
	}
	return at
}

// files lists a step's files in order, DONE last, since the job writes DONE last. A checkpoint
// may hold only folders and regular files: a link could lead anywhere. bytes is the size of all
// files.
func (u *checkpointUploader) files(dir string) (names []string, bytes int64, err error) {
	err = fs.WalkDir(u.scratch.checkpoint.FS(), dir, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return nil
		case !d.Type().IsRegular():
			return fmt.Errorf("%s is neither a file nor a folder", name)
		case len(name) > maxPathBytes:
			return fmt.Errorf("the path of a file has more than %d bytes", maxPathBytes)
		case len(names) >= maxFiles:
			return fmt.Errorf("the checkpoint has more than %d files", maxFiles)
		}
		names = append(names, strings.TrimPrefix(name, dir+"/"))
		info, err := d.Info()
		if err == nil {
			bytes += info.Size()
		}
		return err
	})
	slices.SortStableFunc(names, func(a, b string) int {
		switch {
		case a == doneFile:
			return 1
		case b == doneFile:
			return -1
		}
		return strings.Compare(a, b)
	})
	return names, bytes, err
}

// upload stores one file and notes the hash of the bytes that were sent. rest is the
// size of this file and of all that follow.
func (u *checkpointUploader) upload(name string, f *wire.CheckpointFile, rest int64) error {
	return u.retry.insist("store a file of a checkpoint", func(ctx context.Context) error {
		file, err := openRegular(u.scratch.checkpoint, name)
		if err != nil {
			return localError{err}
		}
		defer file.Close()
		info, err := file.Stat()
		if err != nil {
			return localError{err}
		}
		body := &hashed{f: file, size: info.Size(), hash: sha256.New()}
		if err := u.control.putPart(ctx, f.Object, body, info.Size(), rest); err != nil {
			if fault := body.fault(); fault != nil {
				return localError{fault}
			}
			return err
		}
		if body.read != info.Size() {
			return localError{fmt.Errorf("%s changed while it was stored", name)}
		}
		f.SHA256, f.Bytes, f.Mode = hex.EncodeToString(body.hash.Sum(nil)), info.Size(), uint32(info.Mode().Perm())
		return nil
	})
}
