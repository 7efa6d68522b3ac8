package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"berth"
	"berth/wire"
)

const (
	partsAbreast = 4                // parts of one object that are stored at the same time
	completeTime = 11 * time.Minute // of a call that completes an object; the server's own limit is shorter
)

// partsUpload is one try to store an object by parts (docs/adr/0092-large-objects-go-by-parts.md). Parts that an
// earlier try has stored are not sent again.
type partsUpload struct {
	of      *directStore
	body    *hashed
	request wire.AddressRequest // without a part
	parts   [][sha256.Size]byte
	resumed bool
}

// errThroughServer ends a try after which the object goes through the server.
var errThroughServer = errors.New("the object goes through the server")

// putParts is put for an object in parts of a length.
func (d *directStore) putParts(
	ctx context.Context, key string, body *hashed, rest, part int64,
) (done bool, err error) {
	parts, err := body.sums(part)
	if err != nil {
		return false, err
	}
	// The hash of an object in parts is the SHA-256 of its concatenated part hashes, see wire.AddressRequest.
	all := sha256.New()
	for _, sum := range parts {
		_, _ = all.Write(sum[:])
	}
	u := &partsUpload{of: d, body: body, parts: parts, request: wire.AddressRequest{
		Key: key, Method: http.MethodPut, Bytes: body.size, Rest: rest, PartBytes: part,
		SHA256: hex.EncodeToString(all.Sum(nil)),
	}}
	err = u.run(ctx)
	switch {
	case err == nil:
		d.path.forget(key)
		return true, nil
	case ctx.Err() != nil:
		return false, context.Cause(ctx)
	case errors.Is(err, errThroughServer), refused(err) && !overQuota(err):
		return false, body.fault()
	}
	return false, err
}

// uploadGone reports whether an upload was completed or aborted by another call, or removed by the store.
func uploadGone(err error) bool {
	_, gone := errors.AsType[errNoUpload](err)
	return gone || berth.IsSlug(err, wire.SlugUploadGone)
}

// run stores the object by an upload, and by another one if the store loses the first. That says nothing about the
// content. A second loss counts against the object, which goes through the server after some of them.
func (u *partsUpload) run(ctx context.Context) error {
	err := u.upload(ctx)
	if uploadGone(err) && ctx.Err() == nil {
		u.of.log.Info("object store has lost an upload of parts, will begin another one", "key", u.request.Key)
		u.request.Upload = ""
		err = u.upload(ctx)
	}
	if uploadGone(err) && ctx.Err() == nil && u.of.judge(u.request.Key, u.body.size, errContent{err}) == nil {
		return errThroughServer
	}
	return err
}

// upload begins the upload, stores its parts and completes the object.
func (u *partsUpload) upload(ctx context.Context) error {
	a, err := u.of.address(ctx, u.request)
	switch {
	case err != nil:
		return err
	case a.Stored:
		return nil
	case a.Upload == "":
		if a.Found != "" && a.Found != wire.FoundNone {
			u.of.replaces(u.request.Key, a.Found)
		}
		return errThroughServer
	}
	u.request.Upload, u.resumed = a.Upload, a.Resumed
	all, abreast := errgroup.WithContext(ctx)
	all.SetLimit(partsAbreast)
	// The first error cancels abreast, and with it the other parts.
	for i := range u.parts {
		all.Go(func() error { return u.store(abreast, i+1) })
	}
	if err := all.Wait(); err != nil {
		return err
	}
	if a, err = u.of.addressWithin(ctx, completeTime, u.request); err != nil {
		return err
	}
	if !a.Stored {
		u.of.replaces(u.request.Key, a.Found)
		return errThroughServer
	}
	return nil
}

// store stores one part. Each try has an address of its own, which the server signs only while the attempt is current.
func (u *partsUpload) store(ctx context.Context, number int) error {
	r := u.request
	r.Part, r.PartSHA256 = number, hex.EncodeToString(u.parts[number-1][:])
	at := int64(number-1) * r.PartBytes
	size := min(r.PartBytes, u.body.size-at)
	// A resumed upload may have the part already: one call asks, and saves its transfer.
	if u.resumed {
		r.Exists = true
		a, err := u.of.address(ctx, r)
		if err != nil || a.Stored {
			return err
		}
		r.Exists = false
	}
	for try := 1; ; try++ {
		if ctx.Err() != nil { // another part has failed
			return context.Cause(ctx)
		}
		a, err := u.of.address(ctx, r)
		switch {
		case err != nil:
			return err
		case a.URL == "":
			return errThroughServer
		}
		err = u.of.send(ctx, a, u.body, at, size)
		switch {
		case err == nil:
			u.of.path.worked(size)
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		// The file could not be read or has changed: another try would fail in the same way.
		case u.body.fault() != nil:
			return u.body.fault()
		case uploadGone(err):
			return err
		}
		if err = u.of.judge(r.Key, size, err); err == nil {
			return errThroughServer
		}
		if try >= directTries {
			return err
		}
	}
}
