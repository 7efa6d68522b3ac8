package blob

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"gocloud.dev/blob"

	"berth"
)

// UnboundError says that a store does not keep the conditions of signed addresses. A server that only resembles S3
// may ignore conditions that it does not know.
type UnboundError struct{ says string }

// Error returns the ignored condition.
func (e UnboundError) Error() string {
	return "the object store does not keep the conditions of signed addresses: " + e.says
}

// proofFolder has the objects of proofs. A process that is killed during a proof leaves them there; see SweepProofs.
const proofFolder = "signing"

// ProofAge is the age from which on the object of a proof is a leftover: a proof lasts for seconds.
const ProofAge = time.Hour

// CleanUpTime bounds the deletion of a proof's objects at its end. SweepProofs deletes the rest.
const CleanUpTime = 2 * time.Second

// proofName is the form of the keys of proofs, "x" at the end included, which a forged request adds. A bucket may be
// shared, so other keys in the folder are of other programs.
var proofName = regexp.MustCompile(`^` + proofFolder + `/[a-z2-7]{26}x?$`)

// proofKey returns the key of an object for one proof.
func proofKey() string { return proofFolder + "/" + strings.ToLower(rand.Text()) }

// SweepProofs deletes the objects and the uploads of parts of proofs that were cut off more than age ago, and returns
// their number. Proofs that still run keep their objects, and keys that no proof has stay as they are. One that cannot
// be removed does not stop the others; the error names all.
func (s *Store) SweepProofs(ctx context.Context, age time.Duration) (removed int, err error) {
	if s.signer == nil {
		return 0, nil
	}
	before := time.Now().Add(-age)
	var failures []error
	count := func(err error) {
		if err != nil {
			failures = append(failures, err)
		} else {
			removed++
		}
	}
	all := s.bucket.List(&blob.ListOptions{Prefix: proofFolder + "/"})
	for {
		o, err := all.Next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return removed, errors.Join(append(failures, mapError(err, "objects below "+proofFolder))...)
		}
		if proofName.MatchString(o.Key) && !o.ModTime.After(before) {
			count(s.Delete(ctx, o.Key))
		}
	}
	err = s.openUploads(ctx, proofFolder, func(u openUpload) error {
		if proofName.MatchString(u.Key) && !u.begun.After(before) {
			count(s.AbortUpload(ctx, u.Upload))
		}
		return ctx.Err()
	})
	return removed, errors.Join(append(failures, err)...)
}

// temporary reports whether a status does not judge a request: the store is broken, busy, or slow to read. It is no
// refusal of a forged request.
func temporary(status int) bool {
	return status >= 500 || status == http.StatusTooManyRequests || status == http.StatusRequestTimeout
}

// ProveSigning stores an object by a signed address and tries to break the conditions of the address. It returns nil
// for a store that keeps all conditions, an UnboundError for one that does not, and any other error for a store whose
// answers prove neither. The object is deleted.
func (s *Store) ProveSigning(ctx context.Context) error {
	key := proofKey()
	if err := signable(s, key); err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), CleanUpTime)
		defer cancel()
		_ = s.Delete(ctx, key)
	}()
	good, bad := "a signed object", "a forged object"
	sum := sha256.Sum256([]byte(good))
	a, err := s.SignPut(ctx, key, int64(len(good)), sum, AddressLife)
	if err != nil {
		return err
	}
	for _, try := range []struct {
		content string
		key     string
		sum     [32]byte // that the store shall keep
		wanted  int      // status; 0: any refusal
		says    string
	}{
		{bad, key, sum, 0, "another content than the announced one was stored"},
		{good, key, sha256.Sum256([]byte(bad)), 0, "another recorded SHA-256 than the announced one was stored"},
		{good, key, sum, http.StatusOK, ""},
		{good, key, sum, http.StatusPreconditionFailed, "an address was used twice"},
		{good, key + "x", sum, 0, "an object of another key was stored"},
	} {
		a := a
		a.Header = a.Header.Clone()
		s.signer.record(a.Header, try.sum)
		status, err := a.try(ctx, try.content, func(u *url.URL) { u.Path = strings.TrimSuffix(u.Path, key) + try.key })
		switch {
		case err != nil:
			return err
		case temporary(status):
			return fmt.Errorf("the object store answers %d to a signed request", status)
		case status == http.StatusOK && try.wanted != http.StatusOK:
			if try.key != key {
				_ = s.Delete(ctx, try.key)
			}
			return UnboundError{try.says}
		case try.wanted == http.StatusOK && status != http.StatusOK:
			return fmt.Errorf("the object store answers %d to a signed request", status)
		case try.wanted == http.StatusPreconditionFailed && status != http.StatusPreconditionFailed:
			return UnboundError{fmt.Sprintf("the second use of an address is answered %d instead of 412", status)}
		}
	}
	o, err := s.Info(ctx, key)
	if err == nil && !o.Is(int64(len(good)), sum) {
		err = UnboundError{"the store does not return the SHA-256 of an object"}
	}
	return err
}

// Prove is ProveSigning for an object in parts: it stores one of a single part, and tries to break the
// conditions of the part and of the completion. The login must also be allowed to list and to abort uploads: nothing
// else removes the parts of attempts that end early. It returns the same errors as ProveSigning.
func (s PartStore) Prove(ctx context.Context) error {
	key := proofKey()
	if err := signable(s.Store, key); err != nil {
		return err
	}
	defer s.forgetProof(ctx, key)
	good := "a signed part"
	part := sha256.Sum256([]byte(good))
	object := Parts{Bytes: int64(len(good)), PartBytes: LeastPart, Sum: sha256.Sum256(part[:])}
	unremoved := s.proveAbort(ctx, key)
	id, err := s.provePart(ctx, key, good, part)
	if err != nil {
		return errors.Join(unremoved, err)
	}
	forged := object
	forged.Sum[0] ^= 1
	switch err := s.Complete(ctx, key, id, forged); {
	case err == nil:
		return UnboundError{"an upload was completed as another object"}
	case berth.CodeOf(err) != berth.CodeInvalid:
		return err // the store has not answered
	}
	if err := s.Complete(ctx, key, id, object); err != nil {
		return err
	}
	if unremoved != nil {
		return unremoved // its upload was the completed one, so each try leaves none
	}
	o, err := s.Info(ctx, key)
	if err != nil {
		return err
	}
	if !o.Consists(object) {
		return UnboundError{"the store does not return the SHA-256 of an object in parts"}
	}
	if id, err = s.provePart(ctx, key, good, part); err != nil {
		return err
	}
	switch err := s.Complete(ctx, key, id, object); {
	case err == nil:
		return UnboundError{"an object in parts replaced another object"}
	case berth.CodeOf(err) != berth.CodeConflict:
		return err
	}
	return nil
}

// forgetProof removes the object and the uploads of a proof, best effort; SweepProofs removes the rest.
func (s PartStore) forgetProof(ctx context.Context, key string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), CleanUpTime)
	defer cancel()
	_ = s.Delete(ctx, key)
	_ = s.Uploads(ctx, proofFolder, func(u Upload) error {
		if u.Key == key {
			_ = s.AbortUpload(ctx, u)
		}
		return nil
	})
}

// proveAbort opens an upload, finds it in the store's list and aborts it.
func (s PartStore) proveAbort(ctx context.Context, key string) error {
	id, _, err := s.Begin(ctx, key)
	if err != nil {
		return err
	}
	u := Upload{Key: key, ID: id}
	listed := false
	err = s.each(ctx, proofFolder+"/", func(l openUpload) error {
		listed = listed || u == l.Upload
		return nil
	})
	if err != nil {
		return err
	}
	if !listed {
		return UnboundError{"the list of uploads in a folder lacks an upload"}
	}
	if err := s.AbortUpload(ctx, u); err != nil {
		return fmt.Errorf("abort an upload: %w", err)
	}
	switch err := s.parts(ctx, key, id, 0, 1, func(storedPart) error { return nil }); {
	case err == nil:
		return UnboundError{"an upload exists after its abort"}
	case berth.CodeOf(err) != berth.CodeNotFound:
		return err
	}
	return nil
}

// provePart opens an upload and stores its first part by a signed address, after it has tried to break the address.
func (s PartStore) provePart(ctx context.Context, key, good string, sum [32]byte) (id string, err error) {
	if id, _, err = s.Begin(ctx, key); err != nil {
		return "", err
	}
	a, err := s.Sign(ctx, key, id, 1, int64(len(good)), sum, AddressLife)
	if err != nil {
		return "", err
	}
	for _, try := range []struct {
		content string
		number  int
		says    string
	}{
		{"a forged part", 1, "a part of another content than the announced one was stored"},
		{good, 2, "a part of another number was stored"},
		{good, 1, ""},
	} {
		status, err := a.try(ctx, try.content, func(u *url.URL) { s.signer.renumber(u, try.number) })
		switch {
		case err != nil:
			return "", err
		case temporary(status) || try.says == "" && status != http.StatusOK:
			return "", fmt.Errorf("the object store answers %d to a signed part", status)
		case try.says != "" && status == http.StatusOK:
			return "", UnboundError{try.says}
		}
	}
	return id, nil
}

// try sends the request, after edit has changed its address, and returns the status.
func (a SignedAddress) try(ctx context.Context, content string, edit func(*url.URL)) (int, error) {
	u, err := url.Parse(string(a.URL))
	if err != nil {
		return 0, errors.New("the signed address cannot be read")
	}
	edit(u)
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "", strings.NewReader(content))
	if err != nil {
		return 0, err
	}
	req.URL, req.Host, req.Header = u, u.Host, a.Header.Clone()
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	r, err := client.Do(req)
	if e := (*url.Error)(nil); errors.As(err, &e) {
		err = e.Err // the whole one has the address
	}
	if err != nil {
		return 0, fmt.Errorf("signed request to the object store: %w", err)
	}
	_, _ = io.CopyN(io.Discard, r.Body, 64<<10)
	_ = r.Body.Close()
	return r.StatusCode, nil
}
