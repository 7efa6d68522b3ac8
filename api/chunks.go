package api

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
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
		if err := x.storeWithin(x.c, "", x.place, max(bytes, x.req.Rest), x.at); err != nil {
			return err
		}
		if copies, err = x.chunks.Load(ctx, x.member, sent); err != nil {
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
				same[i], err = x.isStored(abreast, load, chunk)
				return err
			})
		}
		if err := all.Wait(); err != nil {
			return err
		}
	}
	var stored []string
	for i, sum := range x.sums {
		if same[i] {
			stored = append(stored, sum)
		}
	}
	if len(stored) > 0 {
		if err := x.chunks.Stored(ctx, x.member, stored); err != nil {
			return err
		}
	}
	return x.held()
}

// isStored reports whether the object of a copy has the content that its hash names.
func (x *chunkCall) isStored(ctx context.Context, load wire.ChunkCopy, chunk wire.Chunk) (bool, error) {
	sum, err := blob.ParseSHA256(chunk.SHA256)
	if err != nil {
		return false, err
	}
	o, err := x.store.Info(ctx, load.Key())
	if berth.CodeOf(err) == berth.CodeNotFound {
		return false, nil
	}
	return err == nil && o.Is(chunk.Bytes, sum), err
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

// read sends one chunk of a checkpoint that the machine may restore. The chunk is compared with its hash first: one
// that is missing or damaged is answered with the slug object_missing, and recorded as broken.
func (h *chunkHandlers) read(c echo.Context) error {
	store, err := h.blobs()
	if err != nil {
		return err
	}
	job, err := berth.ParseJobID(c.Param("job"))
	if err != nil {
		return err
	}
	attempt, bad1 := strconv.Atoi(c.Param("attempt"))
	rank, bad2 := strconv.Atoi(c.Param("rank"))
	step, bad3 := strconv.ParseInt(c.Param("step"), 10, 64)
	sum := c.Param("sha256")
	if errors.Join(bad1, bad2, bad3) != nil || !(wire.Chunk{SHA256: sum, Bytes: 1}).Valid() {
		return berth.Errorf(berth.CodeInvalid, "the path must name a job, an attempt, a rank, a step and a sha256")
	}
	ctx := c.Request().Context()
	part := db.Member{Job: job, Attempt: attempt, Rank: rank}
	copies, err := h.chunks.Readable(ctx, machineOf(c), part, step, []string{sum})
	if err != nil {
		return err
	}
	stored, ok := copies[sum]
	if !ok {
		return berth.Errorf(berth.CodeNotFound, "no such chunk")
	}
	wait, cancel := context.WithTimeout(ctx, manifestsWait)
	defer cancel()
	if err := h.manifests.Acquire(wait, wire.MaxChunkBytes); err != nil {
		return berth.Errorf(berth.CodeUnavailable, "the server sends other chunks; try again")
	}
	defer h.manifests.Release(wire.MaxChunkBytes)
	body, err := h.intact(ctx, store, stored)
	if err != nil {
		return err
	}
	h.count(c, "get")
	return c.Blob(http.StatusOK, echo.MIMEOctetStream, body)
}

// intact returns the content of a chunk after its comparison with the hash.
func (h *chunkHandlers) intact(ctx context.Context, store *blob.Store, stored wire.ChunkCopy) ([]byte, error) {
	body, err := store.ReadAll(ctx, stored.Key(), wire.MaxChunkBytes)
	if err != nil && berth.CodeOf(err) != berth.CodeNotFound && berth.CodeOf(err) != berth.CodeInvalid {
		return nil, err
	}
	if sum := sha256.Sum256(body); err == nil && hex.EncodeToString(sum[:]) == stored.SHA256 {
		return body, nil
	}
	h.log.Error("chunk of checkpoints is missing or damaged", "key", stored.Key(), "err", err)
	if err := h.chunks.Broken(ctx, stored); err != nil {
		return nil, err
	}
	return nil, &berth.Error{Code: berth.CodeNotFound, Slug: wire.SlugObjectMissing,
		Message: "chunk " + stored.SHA256 + " is missing or damaged"}
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
	if loads[sent.SHA256] != sent {
		held, err := h.chunks.Held(ctx, member, []string{sent.SHA256})
		if err == nil && !held[sent.SHA256] {
			err = berth.Errorf(berth.CodeInvalid, "chunk %s was not announced", sent.SHA256)
		}
		if err != nil {
			return err
		}
		_, _ = io.CopyN(io.Discard, r.Body, wire.MaxChunkBytes) // the answer to an earlier call was lost
		return c.NoContent(http.StatusNoContent)
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
	if err := h.chunks.Stored(t.ctx, member, []string{sent.SHA256}); err != nil {
		return err
	}
	h.count(c, "put")
	return c.NoContent(http.StatusNoContent)
}
