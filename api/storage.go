package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"berth"
	"berth/db"
	"berth/internal/control/blob"
	"berth/wire"
)

// This file enforces storage quotas. Only tenants with a limit, their own or one
// above them, cost a query.

// uploadRoom returns the greatest compressed length of an upload of the tenant, and the
// limits under which the upload is stored. announced is its length in bytes, -1 if
// unknown.
func (h *uploadHandlers) uploadRoom(
	ctx context.Context, tenant berth.TenantID, a berth.Address, announced int64,
) (room int64, limits []db.StorageLimit, err error) {
	all, err := h.admission.StorageLimits(ctx, tenant)
	if err != nil {
		return 0, nil, err
	}
	limits = db.Binding(all, db.StoredUploads)
	if len(limits) == 0 {
		return maxUpload, nil, nil
	}
	room, err = h.storage.Room(ctx, limits, db.StoredUploads, max(1, announced), maxUpload)
	if berth.IsSlug(err, berth.SlugStorageQuota) {
		if _, known := h.uploads.Get(ctx, tenant, a); known == nil {
			return maxUpload, nil, nil // the same content is stored: nothing is added
		}
	}
	return room, limits, err
}

// storeWithin refuses an object of a machine that exceeds a storage quota of its tenant,
// before its body is read. A checkpoint is refused as a whole step, and the shards
// already stored of the step are deleted. An object that counts already, because a
// restarted agent repeats the transfer, is accepted. bytes is the size of the object, or of
// all objects that are still to come of the same checkpoint.
func (h *agentObjectHandlers) storeWithin(
	c echo.Context, key string, place blob.Place, bytes int64, at db.Session,
) error {
	kind, _, _ := strings.Cut(place.Path, "/")
	manifest := strings.HasSuffix(place.Path, "/"+berth.ManifestName)
	if kind != db.StoredOutputs && kind != db.StoredCheckpoints || manifest {
		return nil // a manifest comes last, and does not count
	}
	ctx := c.Request().Context()
	limits, err := h.admission.StorageLimits(ctx, place.Tenant)
	if err != nil || len(db.Binding(limits, kind)) == 0 {
		return err
	}
	_, err = h.storage.Room(ctx, limits, kind, bytes, bytes)
	if !berth.IsSlug(err, berth.SlugStorageQuota) {
		return err
	}
	step, ok := stepOf(place)
	if !ok || kind == db.StoredOutputs {
		step = -1
	}
	counts, failed := h.storage.Counts(ctx, db.StoredObject{
		Key: key, Job: place.Job, Attempt: place.Attempt, Rank: place.Rank, Step: step, Bytes: bytes,
	})
	if failed != nil {
		return failed
	}
	if counts {
		return nil
	}
	if step < 0 {
		return err
	}
	shards, failed := h.objects.RefuseCheckpoint(ctx, machineOf(c), wire.CheckpointReport{
		AgentBoot: at.AgentBoot, Epoch: at.Epoch,
		Job: place.Job, Attempt: place.Attempt, OfAttempt: place.Attempt, Rank: place.Rank, Step: step,
	}, err)
	if failed != nil {
		return failed
	}
	h.deleteShards(ctx, shards)
	return err
}

// stepOf reads the step from the path of a checkpoint's object.
func stepOf(place blob.Place) (int64, bool) {
	parts := strings.Split(place.Path, "/")
	if len(parts) < 3 || parts[0] != db.StoredCheckpoints {
		return 0, false
	}
	digits, ok := strings.CutPrefix(parts[1], "step-")
	step, err := strconv.ParseInt(digits, 10, 64)
	return step, ok && err == nil && step >= 0
}

// deleteShards deletes the objects of shards, best effort. The deletion outlives the
// call, up to pruneTimeout.
func (h *agentObjectHandlers) deleteShards(ctx context.Context, shards []db.PrunedShard) {
	if h.store == nil || len(shards) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pruneTimeout)
	defer cancel()
	for _, shard := range shards {
		if err := h.store.DeleteFolder(ctx, shard.Key()); err != nil {
			h.log.Warn("cannot delete an old checkpoint", "job_id", shard.Job, "step", shard.Step, "err", err)
		}
	}
}

// cutNote begins the last line of a log that exceeds a storage quota.
const cutNote = "berth: the rest of this log is not stored: "

// cutLog ends a log with a line that names the reason, and records the cut. A piece that
// was stored at this place and not recorded before is recorded instead; a later piece of
// the sender then cuts the log.
func (h *agentLogHandlers) cutLog(
	ctx context.Context, store *blob.Store, alloc berth.AllocationID, place db.LogPlace, why error,
) error {
	key := berth.LogChunkKey(place.Tenant, place.Job, place.Attempt, place.Rank, place.End)
	note := wire.AppendLogLine(nil, time.Now(), true, cutNote+why.Error())
	err := store.Create(ctx, key, note)
	if berth.CodeOf(err) == berth.CodeConflict {
		stored, err := store.ReadAll(ctx, key, blob.MaxLogChunk)
		if err != nil {
			return err
		}
		_, err = h.recordStored(ctx, alloc, place, stored, why)
		return err
	}
	if err != nil {
		return err
	}
	_, err = h.recordCut(ctx, alloc, place, note, why)
	return err
}

// errCutBefore is the reason of a recovered cut: the note was stored without its row.
var errCutBefore = errors.New("its last line says why")

// recordStored makes a piece that was found in the store part of the log. The note of a
// cut cuts the log.
func (h *agentLogHandlers) recordStored(
	ctx context.Context, alloc berth.AllocationID, place db.LogPlace, chunk []byte, why error,
) (int64, error) {
	if isCutNote(chunk) {
		return h.recordCut(ctx, alloc, place, chunk, why)
	}
	return h.recordChunk(ctx, alloc, place, chunk)
}

// isCutNote reports whether a piece is the note of a cut: one line of stderr that begins
// with cutNote.
func isCutNote(chunk []byte) bool {
	_, text, _ := bytes.Cut(chunk, []byte(" "))
	return bytes.Count(chunk, []byte("\n")) == 1 && bytes.HasPrefix(text, []byte("e "+cutNote))
}

// recordCut writes the row of a stored note, after which the log takes no more pieces.
func (h *agentLogHandlers) recordCut(
	ctx context.Context, alloc berth.AllocationID, place db.LogPlace, note []byte, why error,
) (int64, error) {
	lines, first, last, err := blob.DescribeLog(note)
	if err != nil {
		return 0, err
	}
	return h.logs.Cut(ctx, alloc, place,
		db.LogChunk{Offset: place.End, Bytes: len(note), Lines: lines, FirstAt: first, LastAt: last}, why)
}

// logRoom leases each tenant with a limit room for its logs: a replica may use a
// sixteenth of the remaining room, for a second, and asks for each piece once a sixteenth
// is less than a piece. So a tenant far below its limit costs one query a second. Other
// replicas, and other tenants below the same limit, hold leases of the same room: logs
// exceed a limit only by the bytes sent in the second after the limit is reached.
type logRoom struct {
	mu     sync.Mutex
	leases *recent[berth.TenantID, *logLease]
}

// logLease is the room leased to one tenant, in bytes; logRoom.mu guards the fields.
type logLease struct {
	left  int64
	until time.Time
}

const (
	logShare     = 16
	logLeaseTime = time.Second
	logLeases    = 10_000
)

func newLogRoom() *logRoom {
	return &logRoom{leases: newRecent[berth.TenantID, *logLease](logLeases)}
}

// use takes bytes from the tenant's lease. It reports false if the lease has expired or
// has too few left.
func (l *logRoom) use(tenant berth.TenantID, bytes int64, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	lease, ok := l.leases.get(tenant)
	if !ok || lease.left < bytes || !now.Before(lease.until) {
		return false
	}
	lease.left -= bytes
	return true
}

// grant sets the lease of a tenant with room bytes left below its limits.
func (l *logRoom) grant(tenant berth.TenantID, room int64, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leases.put(tenant, &logLease{left: room / logShare, until: now.Add(logLeaseTime)})
}

// mayLog refuses, with slug storage_quota, a piece of a log that exceeds a storage quota.
func (h *agentLogHandlers) mayLog(ctx context.Context, tenant berth.TenantID, bytes int64) error {
	limits, err := h.admission.StorageLimits(ctx, tenant)
	if err != nil || len(db.Binding(limits, db.StoredLogs)) == 0 {
		return err
	}
	now := time.Now()
	if h.room.use(tenant, bytes, now) {
		return nil
	}
	room, err := h.storage.Room(ctx, limits, db.StoredLogs, bytes, 1<<60)
	if err != nil {
		return err
	}
	h.room.grant(tenant, room-bytes, now)
	return nil
}

// describeQuota names the slug of a refused upload in the API's description.
var describeQuota = fmt.Sprintf("413 `%s` says which storage quota has no room for it.", berth.SlugStorageQuota)
