package api

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"berth"
	"berth/internal/control/blob"
	"berth/internal/lib/background"
	"berth/wire"
)

// This file lets machines store large objects by parts (docs/adr/0092-large-objects-go-by-parts.md).

// PartSizes says which objects machines store by parts. Tests use small ones.
type PartSizes struct {
	Above int64 // objects that are longer, in bytes
	Bytes int64 // length of each part but the last one
}

// partsAbove is the length from which on objects go by parts, in bytes. A broken transfer of a shorter object is
// repeated as a whole.
const partsAbove = 1 << 30

// orDefaults returns the sizes with the defaults in place of zero fields.
func (p PartSizes) orDefaults() PartSizes {
	if p.Above == 0 {
		p.Above = partsAbove
	}
	if p.Bytes == 0 {
		p.Bytes = blob.PartBytes
	}
	return p
}

// completeTime bounds the completion of an object in parts. S3 documents minutes; a store that copies the parts needs
// the time of the copy.
const completeTime = 10 * time.Minute

// inParts carries out a request about an object in parts. Each request is authorized by itself, so that an upload ends
// with its attempt.
func (w *objectWrite) inParts() error {
	ctx := w.c.Request().Context()
	proven := w.signing.inParts(context.WithoutCancel(ctx), w.store)
	if !proven || w.req.PartBytes != w.parts.Bytes || w.req.Bytes <= w.parts.Above || w.req.Bytes > maxObject {
		return w.c.JSON(http.StatusOK, wire.ObjectAddress{}) // through the server
	}
	object := blob.Parts{Bytes: w.req.Bytes, PartBytes: w.req.PartBytes, Sum: w.sum}
	if err := object.Check(); err != nil {
		return err
	}
	switch {
	case w.req.Part < 0:
		return berth.Errorf(berth.CodeInvalid, "part %d: allowed are parts 1 to %d", w.req.Part, object.Count())
	case w.req.Upload == "":
		return w.beginParts(ctx, object)
	case w.req.Part > 0:
		return w.signPart(ctx, object)
	}
	return w.completeParts(ctx, object)
}

// beginParts answers with the unfinished upload of an object, or with the object that the store has at the key.
func (w *objectWrite) beginParts(ctx context.Context, object blob.Parts) error {
	if err := w.storeWithin(w.c, w.req.Key, w.place, max(w.req.Bytes, w.req.Rest), w.at); err != nil {
		return err
	}
	found, err := w.found(ctx, func(o blob.ObjectInfo) bool { return o.Consists(object) })
	if err != nil {
		return err
	}
	if found == wire.FoundSame {
		w.abortUploads(ctx, w.req.Key)
	}
	if found != wire.FoundNone {
		return w.c.JSON(http.StatusOK, wire.ObjectAddress{Stored: found == wire.FoundSame, Found: found})
	}
	a := wire.ObjectAddress{Found: found}
	if w.signing.pauses() {
		return w.c.JSON(http.StatusOK, a) // no part could be signed
	}
	if a.Upload, a.Resumed, err = w.store.InParts().Begin(ctx, w.req.Key); err != nil {
		return err
	}
	return w.c.JSON(http.StatusOK, a)
}

// signPart signs the address of one part, or compares the part in the store.
func (w *objectWrite) signPart(ctx context.Context, object blob.Parts) error {
	sum, err := blob.ParseSHA256(w.req.PartSHA256)
	if err != nil {
		return err
	}
	size := object.Length(w.req.Part)
	if size == 0 {
		return berth.Errorf(berth.CodeInvalid, "part %d: allowed are parts 1 to %d", w.req.Part, object.Count())
	}
	if w.req.Exists {
		has, err := w.store.InParts().Has(ctx, w.req.Key, w.req.Upload, w.req.Part, size, sum)
		if berth.CodeOf(err) == berth.CodeNotFound {
			return errUploadGone(w.req.Key)
		}
		if err != nil {
			return err
		}
		return w.c.JSON(http.StatusOK, wire.ObjectAddress{Stored: has})
	}
	// Room may have gone to others since the upload began.
	if err := w.storeWithin(w.c, w.req.Key, w.place, max(w.req.Bytes, w.req.Rest), w.at); err != nil {
		return err
	}
	return w.answerSigned(w.c, "put", func(ctx context.Context) (blob.SignedAddress, error) {
		a, err := w.store.InParts().Sign(ctx, w.req.Key, w.req.Upload, w.req.Part, size, sum, blob.AddressLife)
		if berth.CodeOf(err) == berth.CodeNotFound {
			err = errUploadGone(w.req.Key)
		}
		return a, err
	})
}

// completeParts creates the object from its parts. The completion outlives the call: a store may copy the parts
// first. A repeated call waits for the same completion; one about another content does not.
func (w *objectWrite) completeParts(ctx context.Context, object blob.Parts) error {
	if err := w.storeWithin(w.c, w.req.Key, w.place, max(w.req.Bytes, w.req.Rest), w.at); err != nil {
		return err
	}
	err := w.completes.do(ctx, fmt.Sprint(w.req.Key, " ", w.req.Upload, " ", object), func(ctx context.Context) error {
		return w.store.InParts().Complete(ctx, w.req.Key, w.req.Upload, object)
	})
	switch berth.CodeOf(err) {
	case berth.CodeNotFound, berth.CodeConflict:
		// An earlier call has completed the upload, or another upload was first.
		found, failed := w.found(ctx, func(o blob.ObjectInfo) bool { return o.Consists(object) })
		switch {
		case failed != nil:
			return failed
		case found == wire.FoundNone:
			return errUploadGone(w.req.Key)
		case found == wire.FoundSame:
			w.abortUploads(ctx, w.req.Key)
		}
		return w.c.JSON(http.StatusOK, wire.ObjectAddress{Stored: found == wire.FoundSame, Found: found})
	}
	if err != nil {
		return err
	}
	w.abortUploads(ctx, w.req.Key)
	return w.c.JSON(http.StatusOK, wire.ObjectAddress{Stored: true, Found: wire.FoundSame})
}

// abortUploads aborts the uploads of an object that the store has, best effort: two calls may have opened one each, or
// the object has passed this server in the end. While deletions are held back it aborts none. The leader aborts the
// rest with the attempt. The transfers of this server, which may go by parts as well, are none of these uploads.
func (h *agentObjectHandlers) abortUploads(ctx context.Context, key string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pruneTimeout)
	defer cancel()
	if h.holdsDeletions(ctx) {
		return
	}
	err := h.store.InParts().Of(ctx, key, func(u blob.Upload) error { return h.store.AbortUpload(ctx, u) })
	if err != nil {
		h.log.Warn("cannot abort an upload of parts, the sweep of the attempt will", "key", key, "err", err)
	}
}

// errUploadGone is the answer about an upload that the store does not know. The machine begins another one.
func errUploadGone(key string) error {
	return &berth.Error{Code: berth.CodeUnavailable, Slug: wire.SlugUploadGone,
		Message: fmt.Sprintf("object %s: the store has no such upload; begin another one", key)}
}

// completions are the completions of uploads that this process carries out now.
type completions struct {
	owner *background.Group

	mu      sync.Mutex
	running map[string]*completion
}

// completion is one of them.
type completion struct {
	done chan struct{}
	err  error // after done
}

func newCompletions(owner *background.Group) *completions {
	return &completions{owner: owner, running: map[string]*completion{}}
}

// do waits for the completion of an upload with a content, which it starts unless it runs. The completion goes on after
// the end of ctx, until the server closes and for completeTime at most.
func (c *completions) do(ctx context.Context, upload string, complete func(context.Context) error) error {
	c.mu.Lock()
	one, ok := c.running[upload]
	if !ok {
		one = &completion{done: make(chan struct{})}
		if !c.owner.Go(func(ctx context.Context) { c.run(ctx, upload, one, complete) }) {
			c.mu.Unlock()
			return berth.Errorf(berth.CodeUnavailable, "the server closes; try again")
		}
		c.running[upload] = one
	}
	c.mu.Unlock()
	select {
	case <-one.done:
		return one.err
	case <-ctx.Done():
		return berth.Errorf(berth.CodeUnavailable, "the object is not complete yet; try again")
	}
}

// run carries out a completion.
func (c *completions) run(
	ctx context.Context, upload string, one *completion, complete func(context.Context) error,
) {
	ctx, cancel := context.WithTimeout(ctx, completeTime)
	defer cancel()
	one.err = complete(ctx)
	c.mu.Lock()
	delete(c.running, upload)
	c.mu.Unlock()
	close(one.done)
}
