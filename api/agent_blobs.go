package api

import (
	"context"
	"io"
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"berth"
	"berth/db"
	"berth/internal/blob"
	"berth/internal/failpoint"
)

// maxObject is the longest object a machine may store; one file of a checkpoint
// is one object.
const maxObject = 1 << 40

// agentLog appends a piece to a rank's log by compare-and-append: it begins at
// ?offset, which must be the log's end. The object is written first, under a
// name that its offset gives, and only once; the row that makes it a part of
// the log comes second. A sender that was cut off between the two finds its own
// object there and the row is written for that.
func (s *Server) agentLog(c echo.Context) error {
	alloc, err := strconv.ParseInt(c.Param("alloc"), 10, 64)
	if err != nil {
		return berth.Errorf(berth.CodeInvalid, "allocation %.40q is no number", c.Param("alloc"))
	}
	offset, err := strconv.ParseInt(c.QueryParam("offset"), 10, 64)
	if err != nil || offset < 0 {
		return berth.Errorf(berth.CodeInvalid, "offset %.40q is no number of bytes", c.QueryParam("offset"))
	}
	store, err := s.blobs()
	if err != nil {
		return err
	}
	chunk, err := readAll(c, blob.MaxLogChunk)
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	place, err := s.DB.LogPlace(ctx, machineOf(c), session(c), berth.AllocationID(alloc))
	if err != nil {
		return err
	}
	if place.End != offset {
		return c.JSON(http.StatusOK, berth.LogAck{End: place.End})
	}
	if err := failpoint.Hit("api.log.before"); err != nil {
		return err
	}
	end, err := s.appendLog(ctx, store, berth.AllocationID(alloc), place, chunk)
	if err != nil {
		return err
	}
	if err := failpoint.Hit("api.log.after"); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, berth.LogAck{End: end})
}

// session is what the headers say of the session a call is made in; none is the
// session of nobody.
func session(c echo.Context) db.Session {
	h := c.Request().Header
	epoch, err := strconv.ParseInt(h.Get(berth.HeaderEpoch), 10, 64)
	if err != nil {
		return db.Session{}
	}
	return db.Session{AgentBoot: h.Get(berth.HeaderAgentBoot), Epoch: epoch}
}

func (s *Server) appendLog(ctx context.Context, store *blob.Store, alloc berth.AllocationID, place db.LogPlace, chunk []byte) (int64, error) {
	lines, first, last, err := blob.DescribeLog(chunk)
	if err != nil {
		return 0, err
	}
	key := berth.LogChunkKey(place.Tenant, place.Job, place.Attempt, place.Rank, place.End)
	err = store.Create(ctx, key, chunk)
	if berth.CodeOf(err) == berth.CodeConflict {
		if chunk, err = store.ReadAll(ctx, key, blob.MaxLogChunk); err != nil {
			return 0, err
		}
		lines, first, last, err = blob.DescribeLog(chunk)
	}
	if err != nil {
		return 0, err
	}
	if err := failpoint.Hit("api.log.between"); err != nil {
		return 0, err
	}
	return s.DB.AppendLog(ctx, alloc, place, db.LogChunk{Offset: place.End, Bytes: len(chunk), Lines: lines, FirstAt: first, LastAt: last})
}

// object checks a key and whether the calling machine may touch it.
func (s *Server) object(c echo.Context, write bool) (store *blob.Store, key string, err error) {
	if store, err = s.blobs(); err != nil {
		return nil, "", err
	}
	key = c.Param("*")
	place, err := blob.ParseKey(key)
	if err != nil {
		return nil, "", err
	}
	err = s.DB.AuthorizeObject(c.Request().Context(), machineOf(c), db.ObjectAccess{
		Tenant: place.Tenant, Job: place.Job, Attempt: place.Attempt, Rank: place.Rank, Write: write, Session: session(c),
	})
	return store, key, err
}

func (s *Server) agentPutObject(c echo.Context) error {
	store, key, err := s.object(c, true)
	if err != nil {
		return err
	}
	r := c.Request()
	if r.ContentLength < 0 || r.ContentLength > maxObject {
		return berth.Errorf(berth.CodeInvalid, "the length of an object must be announced, and be at most %d bytes", int64(maxObject))
	}
	if _, err := store.Put(r.Context(), key, r.Body, r.ContentLength); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

func (s *Server) agentGetObject(c echo.Context) error {
	store, key, err := s.object(c, false)
	if err != nil {
		return err
	}
	return s.sendObject(c, store, key)
}

// sendObject answers with an object's content.
func (s *Server) sendObject(c echo.Context, store *blob.Store, key string) error {
	r, size, err := store.Open(c.Request().Context(), key)
	if err != nil {
		return err
	}
	defer r.Close()
	h := c.Response().Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Length", strconv.FormatInt(size, 10))
	c.Response().WriteHeader(http.StatusOK)
	if _, err := io.Copy(c.Response(), r); err != nil {
		// Too late for an error answer: the reader sees that the length is wrong.
		s.Logger.Warn("object not sent whole", "key", key, "err", err)
	}
	return nil
}
