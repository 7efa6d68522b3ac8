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
	"strings"
	"time"
)

// UnboundError says that a store does not keep the conditions of signed addresses. A server that only resembles S3
// may ignore conditions that it does not know.
type UnboundError struct{ says string }

// Error returns the ignored condition.
func (e UnboundError) Error() string {
	return "the object store does not keep the conditions of signed addresses: " + e.says
}

// ProveSigning stores an object by a signed address and tries to break the conditions of the address. It returns nil
// for a store that keeps all conditions, an UnboundError for one that does not, and any other error for a store whose
// answers prove neither. The object is deleted.
func (s *Store) ProveSigning(ctx context.Context) error {
	key := "signing/" + strings.ToLower(rand.Text())
	if err := s.signable(key); err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
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
		wanted  int // status; 0: any refusal
		says    string
	}{
		{bad, key, 0, "another content than the announced one was stored"},
		{good, key, http.StatusOK, ""},
		{good, key, http.StatusPreconditionFailed, "an address was used twice"},
		{good, key + "x", 0, "an object of another key was stored"},
	} {
		status, err := a.try(ctx, key, try.key, try.content)
		switch {
		case err != nil:
			return err
		case status >= 500:
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

// try sends the request, for an object of another key than the signed one if instead differs, and returns the status.
func (a SignedAddress) try(ctx context.Context, key, instead, content string) (int, error) {
	u, err := url.Parse(string(a.URL))
	if err != nil {
		return 0, errors.New("the signed address cannot be read")
	}
	u.Path = strings.TrimSuffix(u.Path, key) + instead
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
