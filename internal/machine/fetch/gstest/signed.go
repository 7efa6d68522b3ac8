package gstest

import (
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ErrExpired is the error of a signature before or after its life.
var ErrExpired = errors.New("the signature has expired")

// Verify checks a request by a signed address as Google documents the V4 signing process
// (https://cloud.google.com/storage/docs/authentication/canonical-requests). It shares no code with the library that
// signs. The error says which rule the request breaks. Verify does not read the content of the request: its SHA-256
// comes from the header.
func Verify(key *rsa.PublicKey, account string, r *http.Request, now time.Time) error {
	q := r.URL.Query()
	at, err := time.Parse("20060102T150405Z", q.Get("X-Goog-Date"))
	life, failed := strconv.Atoi(q.Get("X-Goog-Expires"))
	scope := at.Format("20060102") + "/auto/storage/goog4_request"
	switch {
	case err != nil, failed != nil, life < 1, life > 7*24*3600:
		return errors.New("the date or the life cannot be read")
	case q.Get("X-Goog-Algorithm") != "GOOG4-RSA-SHA256", q.Get("X-Goog-Credential") != account+"/"+scope:
		return errors.New("another algorithm, account or scope")
	case now.Before(at.Add(-15 * time.Minute)), now.After(at.Add(time.Duration(life) * time.Second)):
		return ErrExpired
	}
	headers, err := canonicalHeaders(r, strings.Split(q.Get("X-Goog-SignedHeaders"), ";"))
	if err != nil {
		return err
	}
	payload := r.Header.Get("X-Goog-Content-Sha256")
	if payload == "" {
		payload = "UNSIGNED-PAYLOAD"
	}
	request := strings.Join([]string{
		r.Method, canonicalPath(r.URL), canonicalQuery(q), headers, q.Get("X-Goog-SignedHeaders"), payload,
	}, "\n")
	sum := sha256.Sum256([]byte(request))
	text := strings.Join([]string{"GOOG4-RSA-SHA256", q.Get("X-Goog-Date"), scope, hex.EncodeToString(sum[:])}, "\n")
	digest := sha256.Sum256([]byte(text))
	signature, err := hex.DecodeString(q.Get("X-Goog-Signature"))
	if err != nil || rsa.VerifyPKCS1v15(key, crypto.SHA256, digest[:], signature) != nil {
		return errors.New("SignatureDoesNotMatch")
	}
	return nil
}

// canonicalHeaders returns the signed headers, each with a newline. A header of Google's that is not signed is an
// error: requests must not contain one.
func canonicalHeaders(r *http.Request, names []string) (string, error) {
	if !slices.Contains(names, "host") || !slices.IsSorted(names) {
		return "", errors.New("the signed headers lack the host, or are not sorted")
	}
	for name := range r.Header {
		if name = strings.ToLower(name); strings.HasPrefix(name, "x-goog-") && !slices.Contains(names, name) {
			return "", fmt.Errorf("the header %s is not signed", name)
		}
	}
	var text strings.Builder
	for _, name := range names {
		values := slices.Clone(r.Header.Values(name))
		if name == "host" {
			// Google's hosts have no port. The library signs the name alone.
			values = []string{(&url.URL{Host: r.Host}).Hostname()}
		}
		if len(values) == 0 {
			return "", fmt.Errorf("the signed header %s is missing", name)
		}
		for i, v := range values {
			values[i] = strings.Join(strings.Fields(v), " ")
		}
		text.WriteString(name + ":" + strings.Join(values, ",") + "\n")
	}
	return text.String(), nil
}

// canonicalPath returns the escaped path. Slashes separate segments and are never escaped.
func canonicalPath(u *url.URL) string {
	segments := strings.Split(u.Path, "/")
	for i, s := range segments {
		segments[i] = percent(s)
	}
	return strings.Join(segments, "/")
}

// canonicalQuery returns all parameters but the signature, sorted.
func canonicalQuery(q url.Values) string {
	var pairs []string
	for name, values := range q {
		for _, v := range values {
			if name != "X-Goog-Signature" {
				pairs = append(pairs, percent(name)+"="+percent(v))
			}
		}
	}
	slices.Sort(pairs)
	return strings.Join(pairs, "&")
}

// percent escapes all but the unreserved characters of RFC 3986.
func percent(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
