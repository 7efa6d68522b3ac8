package api

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/errgroup"

	"berth"
	"berth/db"
	"berth/internal/control/blob"
	"berth/wire"
)

// This file serves the chunks of checkpoints, the content that the checkpoints of a tenant share
// (docs/adr/0098-unchanged-content-is-stored-once.md).

// comparesAbreast is the number of chunks that one call compares with the store at the same time.
const comparesAbreast = 8

// chunkHandlers serve the calls of machines about chunks.
type chunkHandlers struct{ *agentObjectHandlers }

func (h *chunkHandlers) mount(r *router) {
	r.agents.POST("/"+wire.ChunkedCheckpoints, h.register)
	r.agents.POST("/chunks", h.answer)
	r.agents.GET("/chunks/:job/:attempt/:rank/:step/:sha256", h.read)
}

// register records one member's shard of a checkpoint with chunks.
func (h *chunkHandlers) register(c echo.Context) error {
	if _, err := h.blobs(); err != nil {
		return err
	}
	return h.takeCheckpoint(c, true)
}

// answer answers a question about chunks of one member's part of a checkpoint.
func (h *chunkHandlers) answer(c echo.Context) error {
	req, err := readAgent[wire.ChunkRequest](c)
	if err != nil {
		return err
	}
	if _, err := h.blobs(); err != nil {
		return err
	}
	most := wire.MaxChunksInCall
	if req.Want == wire.ChunkAsk {
		most = wire.MaxAskedChunks
	}
	sums, err := distinct(req.Chunks, most)
	if err != nil {
		return err
	}
	x := chunkCall{chunkHandlers: h, c: c, req: req, sums: sums}
	if req.Want == wire.ChunkRead {
		return x.addressesToRead()
	}
	// The tenant is that of the job's row.
	before, err := h.objects.ShardBefore(c.Request().Context(), req.Job, req.Step, req.Attempt, req.Rank)
	if err != nil {
		return err
	}
	x.member = db.Member{Tenant: before.Tenant, Job: req.Job, Attempt: req.Attempt, Rank: req.Rank}
	x.place = blob.Place{Tenant: before.Tenant, Job: req.Job, Attempt: req.Attempt, Rank: req.Rank,
		Path: db.StoredCheckpoints + "/step-" + strconv.FormatInt(req.Step, 10) + "/chunks"}
	x.at = db.Session{AgentBoot: req.AgentBoot, Epoch: req.Epoch}
	if err := h.reporter(c, x.place, x.at); err != nil {
		return err
	}
	switch req.Want {
	case wire.ChunkAsk:
		return x.held()
	case wire.ChunkStore:
		return x.addressesToStore()
	case wire.ChunkStored:
		return x.compare()
	case wire.ChunkRead:
	}
	return berth.Errorf(berth.CodeInvalid, "want %.20q: allowed are ask, store, stored, read", req.Want)
}

// distinct returns the hashes of the chunks of a call.
func distinct(chunks []wire.Chunk, most int) ([]string, error) {
	if len(chunks) == 0 || len(chunks) > most {
		return nil, berth.Errorf(berth.CodeInvalid, "%d chunks: allowed are 1 to %d", len(chunks), most)
	}
	sums, seen := make([]string, len(chunks)), make(map[string]bool, len(chunks))
	for i, chunk := range chunks {
		if !chunk.Valid() || seen[chunk.SHA256] {
			return nil, berth.Errorf(berth.CodeInvalid, "chunk %.70q of %d bytes is named twice, or is none",
				chunk.SHA256, chunk.Bytes)
		}
		sums[i], seen[chunk.SHA256] = chunk.SHA256, true
	}
	return sums, nil
}

// chunkCall is one call about chunks. member, place and at are not set for a call that reads.
type chunkCall struct {
	*chunkHandlers
	c      echo.Context
	req    wire.ChunkRequest
	sums   []string
	member db.Member
	place  blob.Place // of the step
	at     db.Session
}

// held answers which chunks the member may leave out. Other chunks of the tenant are not mentioned, so no job learns
// whether another one has stored some content.
func (x *chunkCall) held() error {
	held, err := x.chunks.Held(x.c.Request().Context(), x.member, x.sums)
	if err != nil {
		return err
	}
	a := wire.ChunkAnswer{Chunks: make([]wire.ChunkAccess, len(x.sums))}
	for i, sum := range x.sums {
		a.Chunks[i].Have = held[sum]
	}
	return x.c.JSON(http.StatusOK, a)
}

// addressesToStore answers with an address for each chunk that the member must send. The key of each is new and is
// known to this member alone, also if the tenant has the chunk.
func (x *chunkCall) addressesToStore() error {
	ctx := x.c.Request().Context()
	declared, err := x.objects.Declares(ctx, x.req.Job, "")
	if err != nil {
		return err
	}
	if !x.shares {
		// As a server of a version without chunks: the agent, which knows an earlier policy, then stores whole files.
		return berth.Errorf(berth.CodeNotFound, "this server stores no chunks")
	}
	if !declared {
		return berth.Errorf(berth.CodeInvalid, "job %s stores no chunks", x.req.Job)
	}
	held, err := x.chunks.Held(ctx, x.member, x.sums)
	if err != nil {
		return err
	}
	var sent []wire.Chunk
	bytes := int64(0)
	for _, chunk := range x.req.Chunks {
		if !held[chunk.SHA256] {
			sent = append(sent, chunk)
			bytes += chunk.Bytes
		}
	}
	a := wire.ChunkAnswer{Chunks: make([]wire.ChunkAccess, len(x.sums))}
	var copies map[string]wire.ChunkCopy
	if len(sent) > 0 {
		if err := x.fits(sent, max(bytes, x.req.Rest)); err != nil {
			return err
		}
		if copies, err = x.chunks.Load(ctx, x.member, x.req.Step, sent); err != nil {
			return err
		}
	}
	signs := x.signs() && x.signing.holds(context.WithoutCancel(ctx), x.store)
	for i, chunk := range x.req.Chunks {
		if a.Chunks[i].Have = held[chunk.SHA256]; a.Chunks[i].Have {
			continue
		}
		if a.Chunks[i], err = x.toStore(ctx, chunk, copies[chunk.SHA256].Key(), signs); err != nil {
			return err
		}
	}
	x.c.Response().Header().Set(echo.HeaderCacheControl, "no-store")
	return x.c.JSON(http.StatusOK, a)
}

// fits refuses chunks that exceed a storage quota of the tenant, with the whole step. rest is the length of these
// chunks and of all that follow. Where a quota has no room for all of them, the ones that the tenant already has count
// nothing. Chunks that members of the tenant have announced count too, for whichever step: otherwise the steps that a
// quota refuses could fill the store, each with as much as there is room.
func (x *chunkCall) fits(sent []wire.Chunk, rest int64) error {
	ctx := x.c.Request().Context()
	limits, err := x.admission.StorageLimits(ctx, x.member.Tenant)
	if err != nil || len(db.Binding(limits, db.StoredCheckpoints)) == 0 {
		return err
	}
	announced, err := x.chunks.Announced(ctx, x.member.Tenant)
	if err != nil {
		return err
	}
	_, err = x.storage.Room(ctx, limits, db.StoredCheckpoints, rest+announced, rest)
	if !berth.IsSlug(err, berth.SlugStorageQuota) {
		return err
	}
	fresh, all, err := x.chunks.NewBytes(ctx, x.member.Tenant, sent)
	if err != nil || fresh == 0 {
		return err
	}
	err = x.storeWithin(x.c, "", x.place, all, x.at)
	if berth.IsSlug(err, berth.SlugStorageQuota) {
		return cmp.Or(x.chunks.Refused(ctx, x.member, x.req.Step), err)
	}
	return err
}

// toStore returns the key of a chunk to store, and the address if this server signs any.
func (x *chunkCall) toStore(
	ctx context.Context, chunk wire.Chunk, key string, signs bool,
) (a wire.ChunkAccess, err error) {
	a.Key = key
	if !signs {
		return a, nil
	}
	sum, err := blob.ParseSHA256(chunk.SHA256)
	if err != nil {
		return a, err
	}
	a.Address, err = x.signed(ctx, "put", func(ctx context.Context) (blob.SignedAddress, error) {
		return x.store.SignPut(ctx, key, chunk.Bytes, sum, blob.AddressLife)
	})
	return a, err
}

// signed returns the address that a function signs, or none while signatures fail.
func (x *chunkCall) signed(
	ctx context.Context, method string, try func(context.Context) (blob.SignedAddress, error),
) (wire.ObjectAddress, error) {
	a, ok, err := x.signing.sign(ctx, try)
	if err != nil || !ok {
		return wire.ObjectAddress{}, err
	}
	x.transfers.WithLabelValues(method, waySigned).Inc()
	return wire.ObjectAddress{URL: a.URL, Header: a.Header, Until: a.Until}, nil
}

// compare compares the objects that the member has stored by addresses with their hashes, as the store has computed
// them, and answers which ones it now has. A chunk without a hash of the store goes through this server.
func (x *chunkCall) compare() error {
	ctx := x.c.Request().Context()
	loads, err := x.chunks.Loads(ctx, x.member, x.sums)
	if err != nil {
		return err
	}
	for _, chunk := range x.req.Chunks {
		if load, ok := loads[chunk.SHA256]; ok && load.Bytes != chunk.Bytes {
			return errOtherLength(load, chunk.Bytes)
		}
	}
	same := make([]bool, len(x.sums))
	if x.compares() {
		all, abreast := errgroup.WithContext(ctx)
		all.SetLimit(comparesAbreast)
		for i, chunk := range x.req.Chunks {
			load, ok := loads[chunk.SHA256]
			if !ok {
				continue
			}
			all.Go(func() (err error) {
				same[i], err = x.isStored(abreast, load)
				return err
			})
		}
		if err := all.Wait(); err != nil {
			return err
		}
	}
	var stored []db.ChunkObject
	for i, sum := range x.sums {
		if same[i] {
			stored = append(stored, loads[sum])
		}
	}
	if len(stored) > 0 {
		if err := x.record(ctx, x.store, x.member, stored); err != nil {
			return err
		}
	}
	return x.held()
}

// isStored reports whether the object of a load has the announced length and the content that its hash names.
func (x *chunkCall) isStored(ctx context.Context, load db.ChunkObject) (bool, error) {
	sum, err := blob.ParseSHA256(load.SHA256)
	if err != nil {
		return false, err
	}
	o, err := x.store.Info(ctx, load.Key())
	if berth.CodeOf(err) == berth.CodeNotFound {
		return false, nil
	}
	return err == nil && o.Is(load.Bytes, sum), err
}

// errOtherLength refuses a chunk with another length than the one that the member has announced.
func errOtherLength(load db.ChunkObject, bytes int64) error {
	return berth.Errorf(berth.CodeInvalid, "chunk %s: %d bytes were announced, and not %d", load.SHA256, load.Bytes,
		bytes)
}

// addressesToRead answers with an address for each chunk, which the named part of a checkpoint must have.
func (x *chunkCall) addressesToRead() error {
	ctx := x.c.Request().Context()
	part := db.Member{Job: x.req.Job, Attempt: x.req.Attempt, Rank: x.req.Rank}
	copies, err := x.chunks.Readable(ctx, machineOf(x.c), part, x.req.Step, x.sums)
	if err != nil {
		return err
	}
	a := wire.ChunkAnswer{Chunks: make([]wire.ChunkAccess, len(x.sums))}
	signs := x.signs() && x.signing.holds(context.WithoutCancel(ctx), x.store)
	for i, sum := range x.sums {
		stored, ok := copies[sum]
		if !ok {
			return berth.Errorf(berth.CodeNotFound, "no such chunk")
		}
		if !signs {
			continue
		}
		a.Chunks[i].Address, err = x.signed(ctx, "get", func(ctx context.Context) (blob.SignedAddress, error) {
			return x.store.SignGet(ctx, stored.Key(), blob.AddressLife)
		})
		if err != nil {
			return err
		}
	}
	x.c.Response().Header().Set(echo.HeaderCacheControl, "no-store")
	return x.c.JSON(http.StatusOK, a)
}

// record records objects of chunks that the server has compared with their hashes. A copy of the tenant that one of
// them would only repeat must exist: a restored database may name copies that were deleted.
func (h *chunkHandlers) record(ctx context.Context, store *blob.Store, m db.Member, stored []db.ChunkObject) error {
	sums, own := make([]string, len(stored)), make(map[wire.ChunkCopy]bool, len(stored))
	for i, o := range stored {
		sums[i], own[o.ChunkCopy] = o.SHA256, true
	}
	present, err := h.chunks.InForce(ctx, m.Tenant, sums)
	if err != nil {
		return err
	}
	all, abreast := errgroup.WithContext(ctx)
	all.SetLimit(comparesAbreast)
	for _, o := range present {
		if own[o.ChunkCopy] {
			continue
		}
		all.Go(func() error {
			sum, err := blob.ParseSHA256(o.SHA256)
			if err != nil {
				return err
			}
			ok, err := store.Holds(abreast, o.Key(), o.Bytes, sum)
			if err == nil && !ok {
				_, err = h.broken(abreast, o.ChunkCopy, nil)
			}
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	// After the comparisons: a copy in another store than the cluster's would become the one that checkpoints use.
	if err := h.guard.Check(ctx); err != nil {
		return err
	}
	return h.chunks.Stored(ctx, m, stored)
}

// chunkAt reads the name of a chunk's copy from its place.
func chunkAt(place blob.Place) (stored wire.ChunkCopy, ok bool) {
	name, ok := strings.CutPrefix(place.Path, "chunks/")
	if !ok {
		return stored, false
	}
	sum, random, ok := wire.ParseChunkName(name)
	return wire.ChunkCopy{Tenant: place.Tenant, Job: place.Job, Attempt: place.Attempt, Rank: place.Rank, SHA256: sum,
		Random: random}, ok
}

// put stores a chunk that a member sends through this server. The content must have the hash of the key. Only a copy
// that was announced is stored.
func (h *chunkHandlers) put(c echo.Context, store *blob.Store, sent wire.ChunkCopy) error {
	r := c.Request()
	if r.ContentLength < 1 || r.ContentLength > wire.MaxChunkBytes {
		return berth.Errorf(berth.CodeInvalid, "the length of a chunk must be announced, and be 1 to %d bytes",
			wire.MaxChunkBytes)
	}
	ctx := r.Context()
	member := db.Member{Tenant: sent.Tenant, Job: sent.Job, Attempt: sent.Attempt, Rank: sent.Rank}
	loads, err := h.chunks.Loads(ctx, member, []string{sent.SHA256})
	if err != nil {
		return err
	}
	load := loads[sent.SHA256]
	if load.ChunkCopy != sent {
		held, err := h.chunks.Held(ctx, member, []string{sent.SHA256})
		if err == nil && !held[sent.SHA256] { // for example after the database was restored: the member asks again
			err = berth.Errorf(berth.CodeUnavailable, "chunk %s is not announced: ask for its address again",
				sent.SHA256)
		}
		if err != nil {
			return err
		}
		_, _ = io.CopyN(io.Discard, r.Body, wire.MaxChunkBytes) // the answer to an earlier call was lost
		return c.NoContent(http.StatusNoContent)
	}
	if load.Bytes != r.ContentLength {
		return errOtherLength(load, r.ContentLength)
	}
	t, err := h.streams.begin(c, machineTransfer)
	if err != nil {
		return err
	}
	defer t.end()
	body, sum := t.machineBody(r.Body), sha256.New()
	last := lastLook{Reader: io.TeeReader(body, sum), look: func() error {
		if hex.EncodeToString(sum.Sum(nil)) != sent.SHA256 {
			return berth.Errorf(berth.CodeInvalid, "the content has another sha256 than %s", sent.SHA256)
		}
		return nil
	}}
	if _, err := store.Put(t.ctx, sent.Key(), last, r.ContentLength); err != nil {
		return cmp.Or(t.broken(), body.slow(), err)
	}
	if err := h.record(t.ctx, store, member, []db.ChunkObject{load}); err != nil {
		return err
	}
	h.count(c, "put")
	return c.NoContent(http.StatusNoContent)
}
