package api

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	"berth"
	"berth/db"
	"berth/internal/control/admission"
	"berth/internal/control/blob"
	"berth/internal/lib/background"
	"berth/internal/lib/failpoint"
	"berth/wire"
)

// maxObject is the longest object a machine may store, in bytes; one file of a checkpoint
// is one object.
const maxObject = 1 << 40

// agentLogHandlers store the logs that machines send.
type agentLogHandlers struct {
	blobStore
	logs      *db.Logs
	storage   *db.Storage
	admission *admission.Controller
	room      *logRoom
}

func (h *agentLogHandlers) mount(r *router) { r.agents.PUT("/logs/:alloc", h.agentLog) }

// agentLog appends a piece to a member's log by compare-and-append: ?offset must be the
// end of the log. The object is written first, once, under a name derived from its
// offset; the row that makes the object a part of the log comes second. A sender that was
// cut off between the two steps finds its own object in the store, and the row is written
// for that object.
func (h *agentLogHandlers) agentLog(c echo.Context) error {
	alloc, err := strconv.ParseInt(c.Param("alloc"), 10, 64)
	if err != nil {
		return berth.Errorf(berth.CodeInvalid, "allocation %.40q is no number", c.Param("alloc"))
	}
	offset, err := strconv.ParseInt(c.QueryParam("offset"), 10, 64)
	if err != nil || offset < 0 {
		return berth.Errorf(berth.CodeInvalid, "offset %.40q is no number of bytes", c.QueryParam("offset"))
	}
	store, err := h.blobs()
	if err != nil {
		return err
	}
	chunk, err := readAll(c, blob.MaxLogChunk)
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	place, err := h.logs.Place(ctx, machineOf(c), session(c), berth.AllocationID(alloc))
	if err != nil {
		return err
	}
	if place.Cut { // by a storage quota: the sender goes on, nothing is stored
		return c.JSON(http.StatusOK, wire.LogAck{End: offset + int64(len(chunk))})
	}
	if place.End < offset {
		if place.End, err = h.restoreLog(ctx, store, berth.AllocationID(alloc), place, offset); err != nil {
			return err
		}
	}
	if place.End != offset || len(chunk) == 0 { // an empty piece only asks for the end
		return c.JSON(http.StatusOK, wire.LogAck{End: place.End})
	}
	end, err := h.takeLog(ctx, store, berth.AllocationID(alloc), place, chunk)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, wire.LogAck{End: end})
}

// takeLog appends a piece to a log, or cuts the log where a storage quota has no room for
// the piece. It returns the end of the log as the sender should see it: past the piece,
// even if the piece was dropped, so that the sender does not repeat it.
func (h *agentLogHandlers) takeLog(
	ctx context.Context, store *blob.Store, alloc berth.AllocationID, place db.LogPlace, chunk []byte,
) (end int64, err error) {
	err = h.mayLog(ctx, place.Tenant, int64(len(chunk)))
	if berth.IsSlug(err, berth.SlugStorageQuota) {
		return place.End + int64(len(chunk)), h.cutLog(ctx, store, alloc, place, err)
	}
	if err != nil {
		return 0, err
	}
	// These failpoints and the one in appendLog lie here because a piece has two commits, an
	// object and a row, and other calls make the same two: restored pieces, and the note of a cut.
	if err := failpoint.Hit("api.log.before"); err != nil {
		return 0, err
	}
	if end, err = h.appendLog(ctx, store, alloc, place, chunk); err != nil {
		return 0, err
	}
	return end, failpoint.Hit("api.log.after")
}

// maxRestored bounds the pieces that one call recovers from the store.
const maxRestored = 64

// restoreLog records pieces again that a restored database lacks and the store still has.
// The returned end of the log is less than offset if the store lacks some pieces as well,
// or if more than maxRestored are missing; the sender then continues from that end.
func (h *agentLogHandlers) restoreLog(
	ctx context.Context, store *blob.Store, alloc berth.AllocationID, place db.LogPlace, offset int64,
) (end int64, err error) {
	for range maxRestored {
		chunk, err := store.ReadAll(ctx, berth.LogChunkKey(place.Tenant, place.Job, place.Attempt, place.Rank,
			place.End), blob.MaxLogChunk)
		if berth.CodeOf(err) == berth.CodeNotFound {
			return place.End, nil
		}
		if err != nil {
			return 0, err
		}
		if end, err = h.recordStored(ctx, alloc, place, chunk, errCutBefore); err != nil {
			return 0, err
		}
		if end <= place.End || end >= offset {
			return end, nil
		}
		place.End = end
	}
	return place.End, nil
}

// session reads the session of a call from its headers. Without headers it returns a
// session that matches no machine.
func session(c echo.Context) db.Session {
	h := c.Request().Header
	epoch, err := strconv.ParseInt(h.Get(wire.HeaderEpoch), 10, 64)
	if err != nil {
		return db.Session{}
	}
	return db.Session{AgentBoot: h.Get(wire.HeaderAgentBoot), Epoch: epoch}
}

// appendLog stores a piece at the log's end. If an object already exists at that place,
// and one of the two is a prefix of the other, an earlier call stored the object without
// writing its row, and the object is adopted. Any other object belongs to an attempt that
// a restored database has forgotten, and whose number was given again: it is replaced.
func (h *agentLogHandlers) appendLog(
	ctx context.Context, store *blob.Store, alloc berth.AllocationID, place db.LogPlace, chunk []byte,
) (int64, error) {
	if _, _, _, err := blob.DescribeLog(chunk); err != nil {
		return 0, err
	}
	key := berth.LogChunkKey(place.Tenant, place.Job, place.Attempt, place.Rank, place.End)
	err := store.Create(ctx, key, chunk)
	record := h.recordChunk
	if berth.CodeOf(err) == berth.CodeConflict {
		chunk, err = adoptLog(ctx, store, key, chunk)
		record = func(ctx context.Context, alloc berth.AllocationID, place db.LogPlace, chunk []byte) (int64, error) {
			return h.recordStored(ctx, alloc, place, chunk, errCutBefore)
		}
	}
	if err != nil {
		return 0, err
	}
	if err := failpoint.Hit("api.log.between"); err != nil {
		return 0, err
	}
	return record(ctx, alloc, place, chunk)
}

// adoptLog returns the content of the object at key after making sure that the object is
// a piece of the same log as chunk. The note of a cut is never replaced: another call may
// be about to record it.
func adoptLog(ctx context.Context, store *blob.Store, key string, chunk []byte) ([]byte, error) {
	stored, err := store.ReadAll(ctx, key, blob.MaxLogChunk)
	same := bytes.HasPrefix(stored, chunk) || bytes.HasPrefix(chunk, stored) && len(stored) > 0
	if err != nil || same || isCutNote(stored) {
		return stored, err
	}
	_, err = store.Put(ctx, key, bytes.NewReader(chunk), int64(len(chunk)))
	return chunk, err
}

// recordChunk writes the row that makes a stored object the log's next piece, and returns
// the log's end.
func (h *agentLogHandlers) recordChunk(
	ctx context.Context, alloc berth.AllocationID, place db.LogPlace, chunk []byte,
) (int64, error) {
	lines, first, last, err := blob.DescribeLog(chunk)
	if err != nil {
		return 0, err
	}
	return h.logs.Append(ctx, alloc, place,
		db.LogChunk{Offset: place.End, Bytes: len(chunk), Lines: lines, FirstAt: first, LastAt: last})
}

// agentObjectHandlers serve the objects of machines: checkpoints, outputs, and the
// archives that their work needs.
type agentObjectHandlers struct {
	blobStore
	objects   *db.Objects
	reported  objects // the same store, for the reports of agents
	storage   *db.Storage
	admission *admission.Controller
	streams   *streams
	log       *slog.Logger

	chunks     *db.Chunks
	guard      blob.Guard
	shares     bool     // machines may store chunks
	signing    *signing // nil: the operator wants all objects to pass this server
	parts      PartSizes
	manifests  *semaphore.Weighted // room for manifests that are compared
	chunkReads *semaphore.Weighted // room for chunks that are sent
	completes  *completions
	transfers  *prometheus.CounterVec
}

// newAgentObjectHandlers returns the handlers. owner owns completions of objects, which outlive their calls.
func newAgentObjectHandlers(
	d Deps, admission *admission.Controller, streams *streams, owner *background.Group,
) *agentObjectHandlers {
	return &agentObjectHandlers{
		blobStore: blobStore{d.Agent.Blobs}, guard: blob.Guard{Store: d.Agent.Blobs, IDs: d.DB.Cluster},
		objects: d.DB.Objects, chunks: d.DB.Chunks, shares: d.Agent.Chunks,
		reported: withFailpoints(writes{objects: d.DB.Objects}).objects,
		storage:  d.DB.Storage, admission: admission, streams: streams, log: d.Logger, signing: newSigning(d),
		parts: d.Agent.Parts.orDefaults(), manifests: newManifests(),
		chunkReads: newChunkReads(), completes: newCompletions(owner),
		transfers: newObjectTransfers(d.Metrics),
	}
}

func (h *agentObjectHandlers) mount(r *router) {
	r.agents.POST("/checkpoints", h.agentCheckpoint)
	r.agents.POST("/outputs", h.agentOutput)
	r.agents.PUT("/objects/*", h.agentPutObject)
	r.agents.GET("/objects/*", h.agentGetObject)
	r.agents.GET("/uploads/:alloc/:address", h.agentUpload)
	r.agents.GET("/object-access", h.objectAccess)
	r.agents.POST("/object-access", h.agentAddress)
	(&chunkHandlers{h}).mount(r)
}

// object parses the key of a call and authorizes the calling machine to read or write the
// object. Writes need the current session, so that an agent of an older session cannot
// replace objects.
func (h *agentObjectHandlers) object(
	c echo.Context, write bool,
) (store *blob.Store, key string, place blob.Place, err error) {
	if store, err = h.blobs(); err != nil {
		return nil, "", place, err
	}
	key = c.Param("*")
	if place, err = blob.ParseKey(key); err != nil {
		return nil, "", place, err
	}
	return store, key, place, h.authorize(c, place, write, session(c))
}

// authorize checks that the calling machine may read or write the objects at a place. Chunks are read only by the
// checkpoints that name them.
func (h *agentObjectHandlers) authorize(c echo.Context, place blob.Place, write bool, at db.Session) error {
	if strings.HasPrefix(place.Path, "chunks/") && !write {
		return berth.Errorf(berth.CodeNotFound, "no such object")
	}
	step, ok := stepOf(place)
	if !ok {
		step = -1
	}
	return h.objects.Authorize(c.Request().Context(), machineOf(c), db.ObjectAccess{
		Tenant: place.Tenant, Job: place.Job, Attempt: place.Attempt, Rank: place.Rank, Step: step, Write: write,
		Session: at,
	})
}

// registered reports whether a place belongs to a registered part of a checkpoint, whose objects never change. A
// restarted agent stores the part again if the members of a gang have not completed the step yet.
func (h *agentObjectHandlers) registered(ctx context.Context, place blob.Place) (bool, error) {
	step, ok := stepOf(place)
	if !ok {
		return false, nil
	}
	before, err := h.objects.ShardBefore(ctx, place.Job, step, place.Attempt, place.Rank)
	return before.SHA256 != "", err
}

// agentPutObject stores an object. Its length must be announced: quotas are checked
// before the body is read, and a body that breaks off is never mistaken for a whole
// object. An object of a registered part of a checkpoint stays as it is: the body is read
// and dropped. Since a body may take long, the registration is looked up once more at its end.
func (h *agentObjectHandlers) agentPutObject(c echo.Context) error {
	store, key, place, err := h.object(c, true)
	if err != nil {
		return err
	}
	if sent, ok := chunkAt(place); ok {
		return (&chunkHandlers{h}).put(c, store, sent)
	}
	r := c.Request()
	if r.ContentLength < 0 || r.ContentLength > maxObject {
		return berth.Errorf(berth.CodeInvalid, "the length of an object must be announced, and be at most %d bytes",
			int64(maxObject))
	}
	bytes := r.ContentLength
	if rest, err := strconv.ParseInt(r.Header.Get(wire.HeaderRest), 10, 64); err == nil {
		bytes = max(bytes, rest)
	}
	if err := h.storeWithin(c, key, place, bytes, session(c)); err != nil {
		_, _ = io.CopyN(io.Discard, r.Body, drainBody) // so that the agent reads the answer
		return err
	}
	t, err := h.streams.begin(c, machineTransfer)
	if err != nil {
		return err
	}
	defer t.end()
	body := t.machineBody(r.Body)
	if err := h.putUnregistered(t.ctx, store, key, place, body, r.ContentLength); err != nil {
		return cmp.Or(t.broken(), body.slow(), err)
	}
	if h.signs() && r.ContentLength > h.parts.Above { // an earlier try may have begun an upload of parts
		h.abortUploads(t.ctx, key)
	}
	h.count(c, "put")
	return c.NoContent(http.StatusNoContent)
}

// putUnregistered stores an object, unless its part of a checkpoint is registered, now or at the end of the body: then
// the body is read and dropped. A registration while the store creates the object, which follows, is not noticed.
func (h *agentObjectHandlers) putUnregistered(
	ctx context.Context, store *blob.Store, key string, place blob.Place, body io.Reader, size int64,
) error {
	kept, err := h.registered(ctx, place)
	if err != nil {
		return err
	}
	if kept {
		_, err = io.Copy(io.Discard, body)
		return err
	}
	last := lastLook{Reader: body, look: func() (err error) {
		if kept, err = h.registered(ctx, place); kept {
			err = errRegistered
		}
		return err
	}}
	if _, err = store.Put(ctx, key, last, size); kept {
		return nil
	}
	return err
}

// errRegistered ends a PUT of an object whose part of a checkpoint was registered meanwhile.
var errRegistered = errors.New("the part of the checkpoint is registered")

// lastLook calls look at the end of a body, before the object is created. An error of look leaves no object.
type lastLook struct {
	io.Reader
	look func() error
}

// Read returns the error of look in place of the end.
func (l lastLook) Read(p []byte) (int, error) {
	n, err := l.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		err = cmp.Or(l.look(), err)
	}
	return n, err
}

// agentGetObject sends an object of the job that the machine works on. An object that the store lacks has the slug
// object_missing: an agent must not take a refused call for the proof of a lost object.
func (h *agentObjectHandlers) agentGetObject(c echo.Context) error {
	store, key, _, err := h.object(c, false)
	if err != nil {
		return err
	}
	h.count(c, "get")
	err = h.streams.sendObject(c, machineTransfer, store, key)
	if berth.CodeOf(err) == berth.CodeNotFound {
		return &berth.Error{Code: berth.CodeNotFound, Slug: wire.SlugObjectMissing, Message: err.Error()}
	}
	return err
}
