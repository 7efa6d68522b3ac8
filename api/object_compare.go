package api

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/semaphore"

	"berth"
	"berth/db"
	"berth/internal/control/blob"
	"berth/wire"
)

// This file compares the reports of machines with the object store, where machines may store objects without this
// server.

// Bounds of all comparisons of manifests at once. A manifest is written by a machine, which may lie: reading one needs
// at most three times its length of memory, and counts with leastWeight at least.
const (
	manifestRoom  = 2 * blob.MaxManifest
	leastWeight   = 1 << 20
	manifestsWait = 10 * time.Second // for room
	maxHeads      = 1000             // look-ups of single objects that a listing lacks
	maxExtra      = 1000             // objects in a folder that the manifest does not list
)

// newManifests returns the room for manifests that are compared.
func newManifests() *semaphore.Weighted { return semaphore.NewWeighted(manifestRoom) }

// errMissing refuses a report about an object that is not in the store as reported.
func errMissing(format string, args ...any) error {
	return &berth.Error{Code: berth.CodeConflict, Slug: wire.SlugObjectMissing, Message: fmt.Sprintf(format, args...)}
}

// compares reports whether reports are compared with the store: not if all objects pass this server, and not in a
// store that was found to ignore conditions.
func (h *agentObjectHandlers) compares() bool { return h.signs() && !h.signing.ignores() }

// verifyOutput compares a reported output with the object in the store: its bytes may have passed no server of
// Berth. A repeated report of a registered output needs no object.
func (h *agentObjectHandlers) verifyOutput(c echo.Context, p wire.OutputReport) error {
	if !h.compares() {
		return nil
	}
	ctx := c.Request().Context()
	tenant, known, err := h.objects.OutputBefore(ctx, p.Job, p.Attempt, p.Rank, p.Output.Name)
	if err != nil || known {
		return err
	}
	key := berth.OutputKey(tenant, p.Job, p.Attempt, p.Rank, p.Output.Name)
	place, err := blob.ParseKey(key)
	if err != nil {
		return err
	}
	if err := h.reporter(c, place, db.Session{AgentBoot: p.AgentBoot, Epoch: p.Epoch}); err != nil {
		return err
	}
	sum, err := blob.ParseSHA256(p.Output.SHA256)
	if err != nil {
		return err
	}
	o, err := h.store.Info(ctx, key)
	switch {
	case berth.CodeOf(err) == berth.CodeNotFound:
		return errMissing("output %.100q: the object store does not have it", p.Output.Name)
	case err != nil:
		return err
	// The checksum of an object in parts was compared when the object was completed.
	case o.Bytes != p.Output.Stored || o.Parts == 0 && o.SHA256 != nil && *o.SHA256 != sum:
		return errMissing("output %.100q: the object store has %d other bytes than the reported %d", p.Output.Name,
			o.Bytes, p.Output.Stored)
	}
	return nil
}

// verifyShard compares a reported checkpoint with the objects in the store: the manifest by its hash, the files that
// it lists by their sizes, and their sum with the size that the tenant's quota counts. A repeated report of a
// registered or pruned shard needs no objects. The tenant is that of the job's row: the key in the report is checked
// against it and is not trusted. extra are the keys of objects in the folder that the manifest does not list.
//
// A report about a checkpoint with chunks is always compared with its manifest, whose chunks verifyShard notes in the
// report. The registration compares them with the rows.
func (h *agentObjectHandlers) verifyShard(
	c echo.Context, p *wire.CheckpointReport, chunked bool,
) (extra []string, err error) {
	if !h.compares() && !chunked || p.Bad != "" || p.Manifest == "" || p.SHA256 == "" {
		return nil, nil
	}
	ctx := c.Request().Context()
	before, err := h.objects.ShardBefore(ctx, p.Job, p.Step, p.Attempt, p.Rank)
	if err != nil {
		return nil, err
	}
	if berth.CheckpointKey(before.Tenant, p.Job, p.Attempt, p.Rank, p.Step)+"/"+berth.ManifestName != p.Manifest {
		return nil, berth.Errorf(berth.CodeInvalid, "manifest %.200q is not the key of this member's part of step %d",
			p.Manifest, p.Step)
	}
	place, err := blob.ParseKey(p.Manifest)
	if err != nil {
		return nil, err
	}
	if err := h.reporter(c, place, db.Session{AgentBoot: p.AgentBoot, Epoch: p.Epoch}); err != nil || before.Known() {
		return nil, err
	}
	extra, fault := h.compareShard(ctx, p, chunked)
	if !berth.IsSlug(fault, wire.SlugObjectMissing) {
		return extra, fault
	}
	// The step may have been pruned during the comparison.
	if before, err = h.objects.ShardBefore(ctx, p.Job, p.Step, p.Attempt, p.Rank); err != nil || before.Known() {
		return nil, err
	}
	return nil, fault
}

// reporter checks that a report comes from the machine that holds the member, with the answers of the registration.
// Any error stops the report, so a report without a comparison is not registered.
func (h *agentObjectHandlers) reporter(c echo.Context, place blob.Place, at db.Session) error {
	err := h.authorize(c, place, true, at)
	if berth.CodeOf(err) == berth.CodeNotFound {
		return &berth.Error{Code: berth.CodeConflict, Slug: berth.SlugStaleAttempt,
			Message: fmt.Sprintf("attempt %d of job %s is not this machine's current one", place.Attempt, place.Job)}
	}
	return err
}

// compareShard is verifyShard without the look for an earlier report.
func (h *agentObjectHandlers) compareShard(
	ctx context.Context, p *wire.CheckpointReport, chunked bool,
) (extra []string, err error) {
	folder := path.Dir(p.Manifest)
	read, free, err := h.readManifest(ctx, *p)
	if err != nil {
		return nil, err
	}
	defer free()
	listed, total := read.Files, read.Chunked
	if err := noteChunks(p, read, chunked); err != nil {
		return nil, err
	}
	if !h.compares() {
		for _, bytes := range listed {
			total += bytes
		}
		return nil, sameTotal(*p, total)
	}
	sizes, err := h.store.Sizes(ctx, folder, len(listed)+1+maxExtra)
	if berth.CodeOf(err) == berth.CodeInvalid {
		return nil, errMissing("step %d: the object store has more than %d objects that the manifest does not list",
			p.Step, maxExtra)
	}
	if err != nil {
		return nil, err
	}
	heads := 0
	for name, want := range listed {
		got, ok := sizes[name]
		if !ok || got != want {
			// A listing may be behind: the object itself decides.
			if heads++; heads > maxHeads {
				return nil, berth.Errorf(berth.CodeUnavailable, "step %d: the object store does not list %d objects "+
					"yet; try again", p.Step, heads)
			}
			if err := h.compareObject(ctx, p.Step, folder+"/"+name, want); err != nil {
				return nil, err
			}
		}
		total += want
		delete(sizes, name)
	}
	if err := sameTotal(*p, total); err != nil {
		return nil, err
	}
	delete(sizes, berth.ManifestName)
	for name := range sizes {
		extra = append(extra, folder+"/"+name)
	}
	return extra, nil
}

// noteChunks notes the chunks of a manifest in its report, which must have come by the route of checkpoints with
// chunks.
func noteChunks(p *wire.CheckpointReport, read blob.Listed, chunked bool) error {
	if len(read.Chunks) > 0 && !chunked {
		return berth.Errorf(berth.CodeInvalid, "step %d: the manifest lists chunks: report it at %s", p.Step,
			wire.ChunkedCheckpoints)
	}
	p.Chunked = read.Chunked
	for _, sum := range slices.Sorted(maps.Keys(read.Chunks)) {
		p.Chunks = append(p.Chunks, wire.Chunk{SHA256: sum, Bytes: read.Chunks[sum]})
	}
	return nil
}

// sameTotal compares the bytes of the manifest with the reported ones, which the tenant's quota counts.
func sameTotal(p wire.CheckpointReport, total int64) error {
	if total != p.Bytes {
		return errMissing("step %d: %d bytes are reported, and the manifest lists %d", p.Step, p.Bytes, total)
	}
	return nil
}

// compareObject compares a single object with its length in the manifest.
func (h *agentObjectHandlers) compareObject(ctx context.Context, step int64, key string, want int64) error {
	o, err := h.store.Info(ctx, key)
	switch {
	case berth.CodeOf(err) == berth.CodeNotFound:
		return errMissing("step %d: the object store does not have %s", step, path.Base(key))
	case err != nil:
		return err
	case o.Bytes != want:
		return errMissing("step %d: the object store has %d bytes of %s, and the manifest says %d", step, o.Bytes,
			path.Base(key), want)
	}
	return nil
}

// readManifest reads a reported manifest within the bounds for all manifests, and compares its hash. The caller calls
// free once it no longer needs the list of files.
func (h *agentObjectHandlers) readManifest(
	ctx context.Context, p wire.CheckpointReport,
) (listed blob.Listed, free func(), err error) {
	sum, err := blob.ParseSHA256(p.SHA256)
	if err != nil {
		return listed, nil, err
	}
	r, size, err := h.store.Open(ctx, p.Manifest)
	if berth.CodeOf(err) == berth.CodeNotFound {
		return listed, nil, errMissing("step %d: the object store has no manifest", p.Step)
	}
	if err != nil {
		return listed, nil, err
	}
	defer r.Close()
	if size > blob.MaxManifest {
		return listed, nil, berth.Errorf(berth.CodeInvalid, "step %d: the manifest has %d bytes: allowed are %d",
			p.Step, size, blob.MaxManifest)
	}
	weight := max(size, leastWeight)
	wait, cancel := context.WithTimeout(ctx, manifestsWait)
	defer cancel()
	if err := h.manifests.Acquire(wait, weight); err != nil {
		return listed, nil, berth.Errorf(berth.CodeUnavailable, "step %d: the server compares other large manifests; "+
			"try again", p.Step)
	}
	free = func() { h.manifests.Release(weight) }
	listed, err = parseManifest(r, size, sum, p)
	if err != nil {
		free()
		return listed, nil, err
	}
	return listed, free, nil
}

// parseManifest reads a manifest of the given length and compares its hash.
func parseManifest(r io.Reader, size int64, sum [32]byte, p wire.CheckpointReport) (l blob.Listed, err error) {
	body := make([]byte, size)
	if _, err := io.ReadFull(r, body); err != nil {
		return l, fmt.Errorf("step %d: read the manifest: %w", p.Step, err)
	}
	if sha256.Sum256(body) != sum {
		return l, errMissing("step %d: the manifest in the object store has another sha256 than reported", p.Step)
	}
	return blob.ReadManifest(body, path.Dir(p.Manifest))
}

// holdsDeletions reports whether a backup or a quarantine holds deletions back, or that cannot be found out.
func (h *agentObjectHandlers) holdsDeletions(ctx context.Context) bool {
	held, err := h.objects.DeletionsHeld(ctx)
	return held || err != nil
}

// deleteExtra deletes objects that a registered manifest does not list, best effort: the sweep of the attempt deletes
// the rest. It deletes nothing while deletions are held back, or if the manifest of another report was registered for
// this shard. A registered manifest never changes, so no listed object is deleted.
func (h *agentObjectHandlers) deleteExtra(ctx context.Context, p wire.CheckpointReport, extra []string) {
	if len(extra) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pruneTimeout)
	defer cancel()
	before, err := h.objects.ShardBefore(ctx, p.Job, p.Step, p.Attempt, p.Rank)
	if err != nil || before.SHA256 != p.SHA256 || h.holdsDeletions(ctx) {
		return
	}
	for _, key := range extra {
		if err := h.store.Delete(ctx, key); err != nil {
			h.log.Warn("cannot delete an object that no manifest lists, the sweep of the attempt will", "key", key,
				"err", err)
			return
		}
	}
	h.log.Info("objects deleted that the manifest of a checkpoint does not list", "job_id", p.Job, "step", p.Step,
		"objects", len(extra))
}
