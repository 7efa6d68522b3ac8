package blob

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/storage"
	"google.golang.org/api/iamcredentials/v1"

	"berth"
	"berth/spec"
)

// This file signs addresses of Google Cloud Storage (docs/adr/0108-google-cloud-storage-as-a-store.md). That store
// computes no SHA-256 that could be asked for later. It compares the content of a PUT with the SHA-256 that the
// signature names, and keeps the same sum in the object's metadata, which the signature names too. So the sum in the
// metadata of an object is the sum of its content, if the store keeps the conditions; ProveSigning finds that out.

// The names of the sums in the metadata of objects. Objects that Berth stores itself have neither.
const (
	metaSum   = "berth-sha256"       // of the content, in hexadecimal
	metaParts = "berth-sha256-parts" // of the concatenated sums of the parts, in hexadecimal, and -COUNT
)

// gcsSigner signs requests to a bucket of Google Cloud Storage by a service account.
type gcsSigner struct {
	bucket  *storage.BucketHandle
	options GCSOptions // the prefix ends with /, unless it is empty
}

// name returns the name of an object in the bucket.
func (s *gcsSigner) name(key string) string { return s.options.Prefix + key }

// sign returns the address of one request. It signs by the private key of the account, or by Google's API for logins
// without one.
func (s *gcsSigner) sign(
	ctx context.Context, method, name string, header http.Header, life time.Duration,
) (SignedAddress, error) {
	if err := ctx.Err(); err != nil { // a signature by the private key takes no context
		return SignedAddress{}, err
	}
	o := &storage.SignedURLOptions{
		Scheme: storage.SigningSchemeV4, GoogleAccessID: s.options.Account, Method: method,
		Insecure: s.options.Plaintext, PrivateKey: s.options.Key,
		// The library cuts the life to whole seconds, after it has read the clock again.
		Expires: time.Now().Add(life + time.Second/2),
	}
	if s.options.IAM != nil {
		// The library's own call of this API takes no context either, so a call without an answer would never end.
		o.SignBytes = func(text []byte) ([]byte, error) { return s.signBlob(ctx, text) }
	}
	for name := range header {
		o.Headers = append(o.Headers, name+":"+header.Get(name))
	}
	until := time.Now().Add(life)
	address, err := s.bucket.SignedURL(name, o)
	if err != nil {
		return SignedAddress{}, SigningError{name, err}
	}
	return SignedAddress{URL: spec.Sensitive(address), Header: header, Until: until}, nil
}

// signPause is the pause before the second request for a signature. Each later pause is twice as long.
const signPause = 250 * time.Millisecond

// signBlob asks Google's API for the signature of a text. It repeats requests with a temporary fault until ctx ends, as
// often as other requests of the store.
func (s *gcsSigner) signBlob(ctx context.Context, text []byte) ([]byte, error) {
	request := s.options.IAM.Projects.ServiceAccounts.SignBlob("projects/-/serviceAccounts/"+s.options.Account,
		&iamcredentials.SignBlobRequest{Payload: base64.StdEncoding.EncodeToString(text)})
	for try, pause := 1, signPause; ; try, pause = try+1, 2*pause {
		answer, err := request.Context(ctx).Do()
		if err == nil {
			return base64.StdEncoding.DecodeString(answer.SignedBlob)
		}
		if try == gcsTries || !storage.ShouldRetry(err) {
			return nil, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w after %w", ctx.Err(), err)
		}
	}
}

// content returns the headers that bind a PUT to a length and a content.
func content(size int64, sum [32]byte) http.Header {
	text, length := hex.EncodeToString(sum[:]), strconv.FormatInt(size, 10)
	h := http.Header{}
	h.Set("X-Goog-Content-Length-Range", length+","+length)
	h.Set("X-Goog-Content-Sha256", text)
	h.Set(metaHeader+metaSum, text)
	return h
}

// metaHeader begins the names of the headers that set metadata.
const metaHeader = "X-Goog-Meta-"

// signPut returns the address of a PUT that creates an object.
func (s *gcsSigner) signPut(
	ctx context.Context, key string, size int64, sum [32]byte, life time.Duration,
) (SignedAddress, error) {
	h := content(size, sum)
	h.Set("X-Goog-If-Generation-Match", "0")
	return s.sign(ctx, http.MethodPut, s.name(key), h, life)
}

// signGet returns the address of a GET.
func (s *gcsSigner) signGet(ctx context.Context, key string, life time.Duration) (SignedAddress, error) {
	return s.sign(ctx, http.MethodGet, s.name(key), http.Header{}, life)
}

// record sets the sum in the metadata.
func (s *gcsSigner) record(signed http.Header, sum [32]byte) {
	signed.Set(metaHeader+metaSum, hex.EncodeToString(sum[:]))
}

// info reads the sums in the metadata of an object.
func (s *gcsSigner) info(ctx context.Context, key string) (info ObjectInfo, err error) {
	o, err := s.bucket.Object(s.name(key)).Attrs(ctx)
	if errors.Is(err, storage.ErrObjectNotExist) {
		return info, berth.Errorf(berth.CodeNotFound, "no such object %s", key)
	}
	if err != nil {
		return info, fmt.Errorf("object %s: %w", key, err)
	}
	info.Bytes, info.SHA256 = o.Size, metaSumOf(o)
	if text, count, ok := strings.Cut(o.Metadata[metaParts], "-"); ok {
		sum, err := ParseSHA256(text)
		parts, bad := strconv.Atoi(count)
		if err != nil || bad != nil || parts < 1 {
			return ObjectInfo{Bytes: info.Bytes}, nil // not as Berth writes it
		}
		info.SHA256, info.Parts = &sum, parts
	}
	return info, nil
}

// metaSumOf returns the SHA-256 of the content that a signed PUT has recorded, or nil.
func metaSumOf(o *storage.ObjectAttrs) *[32]byte {
	sum, err := ParseSHA256(o.Metadata[metaSum])
	if err != nil {
		return nil
	}
	return &sum
}
