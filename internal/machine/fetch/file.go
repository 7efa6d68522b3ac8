package fetch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	"berth"
	"berth/internal/lib/archive"
	"berth/spec"
)

// kindFile and kindHashed are addresses of files by https: of their server's
// version, and of the content itself.
const (
	kindFile   = "https-"
	kindHashed = "file-"
)

// file is one input by https.
type file struct {
	s     *Sources
	in    spec.Input
	login spec.Sensitive
	what  string // for users: without possible logins
	etag  string // "": the server sends no reliable one
	once  bool   // there is neither that nor a hash to know it by
}

// findFile sends no request if the job states the content's SHA-256.
func (s *Sources) findFile(ctx context.Context, in spec.Input, login spec.Sensitive) (*Found, error) {
	u, err := url.Parse(in.From)
	if err != nil {
		return nil, refusedf("not a valid URL")
	}
	f := &file{s: s, in: in, login: login, what: "https://" + u.Host + u.Path}
	if in.SHA256 != "" {
		return &Found{Kind: kindHashed, Address: berth.Address("sha256:" + in.SHA256), fetch: f.fetch}, nil
	}
	ctx, _, end := watch(ctx)
	defer end()
	r, err := f.get(ctx)
	if err != nil {
		return nil, err
	}
	_ = r.Body.Close() // the content is read by fetch
	// A weak ETag may stay the same while bytes change, so it is no version.
	if e := r.Header.Get("ETag"); e != "" && !strings.HasPrefix(e, "W/") {
		f.etag = e
		return &Found{Kind: kindFile, Address: hashOf(in.From + "\n" + e), fetch: f.fetch}, nil
	}
	// The random part makes the address unique, so that no other fetch takes this content for its own.
	f.once = true
	return &Found{Kind: kindFile, Address: hashOf(in.From + "\n" + berth.NewSecret()), Once: true, fetch: f.fetch}, nil
}

// get asks for the file, in the version that was found.
func (f *file) get(ctx context.Context) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.in.From, nil)
	if err != nil {
		return nil, refusedf("%s: not a valid URL", f.what)
	}
	if f.login != "" {
		req.Header.Set("Authorization", authorization(f.login)) // not sent on to another host
	}
	if f.etag != "" {
		req.Header.Set("If-Match", f.etag)
	}
	r, err := f.s.files.Do(req)
	if err != nil {
		return nil, fault(f.what, err)
	}
	switch {
	case r.StatusCode != http.StatusOK:
		err = answer(f.what, r.StatusCode, "")
	case f.etag != "" && r.Header.Get("ETag") != f.etag:
		err = Changed{f.what}
	case r.ContentLength > f.s.limits.Bytes:
		err = refusedf("%s has %s, more than the limit of %s", f.what, berth.BytesText(r.ContentLength),
			berth.BytesText(f.s.limits.Bytes))
	}
	if err != nil {
		_ = r.Body.Close()
		return nil, err
	}
	return r, nil
}

// authorization returns the value of the Authorization header for a secret: a secret of two words
// as written, any other as a bearer token.
func authorization(login spec.Sensitive) string {
	value := strings.TrimSpace(string(login))
	if strings.Contains(value, " ") {
		return value
	}
	return "Bearer " + value
}

// fetch downloads the file. Each try starts from the beginning: without a version of the file a
// second try could continue another content.
func (f *file) fetch(ctx context.Context, to *os.Root, again Again) (sum archive.Summary, err error) {
	err = into(to, FileName, func(out *os.File) error {
		return again(ctx, func() error {
			if _, err := out.Seek(0, io.SeekStart); err != nil {
				return Local{err}
			}
			if err := out.Truncate(0); err != nil {
				return Local{err}
			}
			digest := sha256.New()
			if sum.Bytes, err = f.read(ctx, out, digest); f.once {
				sum.Address = berth.AddressOf(digest.Sum(nil))
			}
			return err
		})
	})
	sum.Files = 1
	return sum, err
}

// read writes the content to the file and to the digest.
func (f *file) read(ctx context.Context, out io.Writer, digest hash.Hash) (int64, error) {
	ctx, lively, end := watch(ctx)
	defer end()
	r, err := f.get(ctx)
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	// Such a response of HTTP/1 ends with its connection, and a broken one looks complete.
	if r.ContentLength < 0 && r.ProtoMajor == 1 && len(r.TransferEncoding) == 0 && f.in.SHA256 == "" {
		return 0, refusedf("%s: the server sends no Content-Length, so a truncated download would go unnoticed; "+
			"set sha256 on the input", f.what)
	}
	progress := progressOf(ctx)
	progress.expect(r.ContentLength)
	progress.restart(0)
	// One byte above the limit shows that the file is too long.
	body := progress.through(io.LimitReader(lively(r.Body), f.s.limits.Bytes+1))
	n, err := copied(ctx, io.MultiWriter(out, digest), body)
	switch {
	case err != nil:
		return n, fault(f.what, err)
	case n > f.s.limits.Bytes:
		return n, refusedf("%s is larger than the limit of %s", f.what, berth.BytesText(f.s.limits.Bytes))
	}
	if got := hex.EncodeToString(digest.Sum(nil)); f.in.SHA256 != "" && got != f.in.SHA256 {
		return n, refusedf("%s has sha256 %s, want %s", f.what, got, f.in.SHA256)
	}
	return n, nil
}

// downgraded is the error of a redirect to an unencrypted connection.
type downgraded struct{ host string }

// Error names the host, and never the path or query, which may hold a secret.
func (d downgraded) Error() string {
	return "redirects to http://" + d.host + ", which is not encrypted"
}

// stayEncrypted refuses redirects from https to http, since the request may carry a login.
func stayEncrypted(to *http.Request, via []*http.Request) error {
	if to.URL.Scheme != "https" {
		return downgraded{to.URL.Host}
	}
	if len(via) > 10 {
		return fmt.Errorf("more than 10 redirects")
	}
	return nil
}
