package fetch

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"berth"
	"berth/spec"
)

// kindGS distinguishes addresses of objects in Google Cloud Storage.
const kindGS = "gs-"

// gsServer is the server of buckets without an endpoint of their own.
const gsServer = "https://storage.googleapis.com"

// gsFields are the requested fields of an object.
const gsFields = "name,size,generation,contentEncoding,crc32c"

// gsStore is a bucket of Google Cloud Storage, by the three calls of its JSON
// API that reading takes.
type gsStore struct {
	client         *http.Client
	server, bucket string
	account        *serviceAccount // nil: anonymous
}

// openGS sets up b to read from a bucket of Google Cloud Storage.
func (s *Sources) openGS(b *bucket, in spec.Input, login spec.Sensitive) error {
	name, key, err := spec.ParseGS(in.From)
	if err != nil {
		return refusedf("%v", err)
	}
	g := &gsStore{client: s.objects, server: gsServer, bucket: name}
	if in.Endpoint != "" {
		g.server = strings.TrimRight(in.Endpoint, "/")
	}
	if in.Secret != "" {
		if g.account, err = s.serviceAccount(in.Secret, login); err != nil {
			return err
		}
	}
	b.store, b.origin, b.prefix = g, fmt.Sprintf("gs %q %q", in.Endpoint, name), key
	return nil
}

// gsObject is an object in the API's format.
type gsObject struct {
	Name            string `json:"name"`
	Size            *int64 `json:"size,string"`
	Generation      int64  `json:"generation,string"`
	ContentEncoding string `json:"contentEncoding"`
	CRC32C          string `json:"crc32c"` // by base64, of four bytes
}

// object converts the server's description of an object. The generation is required: without it
// an overwritten object could not be recognized.
func (g *gsStore) object(a gsObject) (object, error) {
	if a.Generation <= 0 {
		return object{}, refusedf("%s: the server returned no generation", g.url(a.Name))
	}
	o := object{key: a.Name, size: told64(a.Size), pin: strconv.FormatInt(a.Generation, 10)}
	o.version, o.gzipped = o.pin, strings.Contains(a.ContentEncoding, "gzip")
	if sum, err := base64.StdEncoding.DecodeString(a.CRC32C); err == nil && len(sum) == 4 {
		o.crc32c = new(binary.BigEndian.Uint32(sum))
	}
	return o, nil
}

// one requests an object's metadata.
func (g *gsStore) one(ctx context.Context, key string) (object, error) {
	var a gsObject
	if err := g.tell(ctx, key, g.at(key, url.Values{"fields": {gsFields}}), &a); err != nil {
		return object{}, err
	}
	return g.object(a)
}

// all pages through the list. watch limits each page on its own.
func (g *gsStore) all(ctx context.Context, prefix string, each func(object) error) error {
	query := url.Values{"prefix": {prefix}, "fields": {"nextPageToken,items(" + gsFields + ")"},
		"maxResults": {strconv.Itoa(pageSize)}}
	for none := empty(0); ; {
		var page struct {
			Items []gsObject `json:"items"`
			Next  string     `json:"nextPageToken"`
		}
		limited, _, end := watch(ctx)
		err := g.tell(limited, prefix, g.at("", query), &page)
		end()
		if err == nil {
			err = none.page(g.url(prefix), len(page.Items))
		}
		if err != nil {
			return err
		}
		for _, a := range page.Items {
			o, err := g.object(a)
			if err == nil {
				err = each(o)
			}
			if err != nil {
				return err
			}
		}
		if page.Next == "" {
			return nil
		}
		query.Set("pageToken", page.Next)
	}
}

// open requests one generation of an object. Once the object is overwritten or deleted, that
// generation no longer exists or, in a bucket that keeps versions, exists unchanged.
func (g *gsStore) open(ctx context.Context, o object, from int64) (io.ReadCloser, error) {
	header := http.Header{}
	if o.gzipped { // as it is stored: unpacked it has no length and no parts
		header.Set("Accept-Encoding", "gzip")
	}
	if from > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-", from))
	}
	r, err := g.ask(ctx, o.key, g.at(o.key, url.Values{"alt": {"media"}, "generation": {o.pin}}), header)
	if err != nil {
		return nil, err
	}
	now := r.Header.Get("X-Goog-Generation")
	switch {
	case r.StatusCode == http.StatusNotFound:
		err = Changed{g.url(o.key)}
	case r.StatusCode >= 300:
		err = g.refusal(o.key, r)
	case now != "" && now != o.pin, r.ContentLength >= 0 && r.ContentLength != o.size-from:
		err = Changed{g.url(o.key)}
	}
	if err != nil {
		_ = r.Body.Close()
		return nil, err
	}
	return r.Body, nil
}

// at is the address of an object, or of all of the bucket.
func (g *gsStore) at(key string, query url.Values) string {
	at := g.server + "/storage/v1/b/" + url.PathEscape(g.bucket) + "/o"
	if key != "" {
		at += "/" + url.PathEscape(key)
	}
	return at + "?" + query.Encode()
}

// ask sends a request; the answer may be a refusal.
func (g *gsStore) ask(ctx context.Context, key, at string, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, refusedf("%s: not a valid URL", g.url(key))
	}
	req.Header = header
	if g.account != nil {
		token, err := g.account.token(ctx)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Authorization", "Bearer "+token)
	}
	r, err := g.client.Do(req)
	if err != nil {
		return nil, fault(g.url(key), err)
	}
	return r, nil
}

// The method tell requests an answer in JSON, for decoding into to.
func (g *gsStore) tell(ctx context.Context, key, at string, to any) error {
	r, err := g.ask(ctx, key, at, http.Header{})
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode >= 300 {
		return g.refusal(key, r)
	}
	text, err := io.ReadAll(&brief{r.Body, told})
	if err != nil {
		return fault(g.url(key), err)
	}
	if json.Unmarshal(text, to) != nil { // the error may repeat the text
		return berth.Errorf(berth.CodeUnavailable, "%s: the answer cannot be read", g.url(key))
	}
	return nil
}

// refusal is the error of a status. The API names its reasons in JSON.
func (g *gsStore) refusal(key string, r *http.Response) error {
	var body struct {
		Error struct {
			Errors []struct {
				Reason string `json:"reason"`
			} `json:"errors"`
		} `json:"error"`
	}
	text, _ := io.ReadAll(io.LimitReader(r.Body, 1<<16))
	_ = json.Unmarshal(text, &body) // which is for people, where content was asked for
	reason := ""
	for _, e := range body.Error.Errors {
		reason = fmt.Sprintf("%.64s", e.Reason)
	}
	if r.StatusCode == http.StatusForbidden &&
		slices.Contains([]string{"rateLimitExceeded", "userRateLimitExceeded", "quotaExceeded"}, reason) {
		return berth.Errorf(berth.CodeUnavailable, "%s: %d (%s)", g.url(key), r.StatusCode, reason)
	}
	return answer(g.url(key), r.StatusCode, reason)
}

// url returns the address of an object in the form that jobs use.
func (g *gsStore) url(key string) string { return "gs://" + g.bucket + "/" + key }
