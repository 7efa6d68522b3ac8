package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/semaphore"

	"berth"
	"berth/db"
	"berth/internal/control/blob"
	"berth/wire"
)

// This file sends chunks of checkpoints to machines that restore them through this server.

const (
	chunkReads = 16               // chunks in memory that this server sends at the same time, to all machines
	chunksWait = 10 * time.Second // for another chunk to be sent
	chunkTries = 3                // copies of one chunk that a call reads, each of which replaced the one before
)

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
	free, err := h.roomToSend(c.Request().Context())
	if err != nil {
		return err
	}
	defer free()
	body, err := h.current(c, store, db.Member{Job: job, Attempt: attempt, Rank: rank}, step, sum)
	if err != nil {
		return err
	}
	h.count(c, "get")
	return h.streams.send(c, machineTransfer, sum, func(context.Context) (io.ReadCloser, int64, error) {
		return io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
	})
}

// newChunkReads returns the room for chunks that are sent. Reports of checkpoints have their own room, so readers that
// stall delay no checkpoint.
func newChunkReads() *semaphore.Weighted { return semaphore.NewWeighted(chunkReads) }

// roomToSend waits for room for a chunk. The caller calls free once the chunk is sent.
func (h *agentObjectHandlers) roomToSend(ctx context.Context) (free func(), err error) {
	wait, cancel := context.WithTimeout(ctx, chunksWait)
	defer cancel()
	if err := h.chunkReads.Acquire(wait, 1); err != nil {
		return nil, berth.Errorf(berth.CodeUnavailable, "the server sends other chunks; try again")
	}
	return func() { h.chunkReads.Release(1) }, nil
}

// current returns the content of a chunk that a part of a checkpoint names. A copy that is replaced meanwhile is no
// damage: current then reads the copy that replaces it.
func (h *chunkHandlers) current(
	c echo.Context, store *blob.Store, part db.Member, step int64, sum string,
) (body []byte, err error) {
	ctx := c.Request().Context()
	for range chunkTries {
		copies, err := h.chunks.Readable(ctx, machineOf(c), part, step, []string{sum})
		if err != nil {
			return nil, err
		}
		stored, ok := copies[sum]
		if !ok {
			return nil, berth.Errorf(berth.CodeNotFound, "no such chunk")
		}
		body, replaced, err := h.intact(ctx, store, stored)
		if err != nil || !replaced {
			return body, err
		}
	}
	return nil, berth.Errorf(berth.CodeUnavailable, "chunk %s is replaced again and again; try again", sum)
}

// intact returns the content of a copy of a chunk after its comparison with the hash. replaced reports that the copy is
// missing or damaged, and that another one has replaced it.
func (h *chunkHandlers) intact(
	ctx context.Context, store *blob.Store, stored wire.ChunkCopy,
) (body []byte, replaced bool, err error) {
	body, err = store.ReadAll(ctx, stored.Key(), wire.MaxChunkBytes)
	if err != nil && berth.CodeOf(err) != berth.CodeNotFound && berth.CodeOf(err) != berth.CodeInvalid {
		return nil, false, err
	}
	if sum := sha256.Sum256(body); err == nil && hex.EncodeToString(sum[:]) == stored.SHA256 {
		return body, false, nil
	}
	inForce, failed := h.broken(ctx, stored, err)
	if failed != nil || !inForce {
		return nil, !inForce, failed
	}
	return nil, false, &berth.Error{Code: berth.CodeNotFound, Slug: wire.SlugObjectMissing,
		Message: "chunk " + stored.SHA256 + " is missing or damaged"}
}

// broken records that a copy of a chunk is missing or damaged; see db.Chunks.Broken. If the store is not the cluster's,
// the copy may be sound in the right one: nothing is recorded, and the error has the code unavailable.
func (h *chunkHandlers) broken(ctx context.Context, stored wire.ChunkCopy, why error) (inForce bool, err error) {
	if err := h.guard.Check(ctx); err != nil {
		return false, err
	}
	if inForce, err = h.chunks.Broken(ctx, stored); inForce {
		h.log.Error("chunk of checkpoints is missing or damaged", "key", stored.Key(), "err", why)
	}
	return inForce, err
}
