package blob

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"cloud.google.com/go/auth"
	"cloud.google.com/go/auth/credentials"
	"cloud.google.com/go/compute/metadata"
	"cloud.google.com/go/storage"
	"gocloud.dev/blob"
	"gocloud.dev/blob/gcsblob"
	"google.golang.org/api/iamcredentials/v1"
	"google.golang.org/api/option"

	"berth"
)

// gcsScope is the OAuth scope of access tokens. The roles of the login bound its rights. Tokens for objects alone could
// not sign: a login without a private key signs by another API.
const gcsScope = "https://www.googleapis.com/auth/cloud-platform"

// maxPrefix bounds the prefix of a store in a bucket, in bytes. The names of objects end at 1024 bytes, and a part of
// an object has the longest ones.
const maxPrefix = 60

// gcsTries is the number of tries of a request. The library's default is to retry until the context ends.
const gcsTries = 4

// GCSOptions describe a store in a bucket of Google Cloud Storage.
type GCSOptions struct {
	Prefix    string // folder of all objects; "": the whole bucket
	Account   string // email of the service account that signs addresses; "": the store has none
	Plaintext bool   // signed addresses are http

	// An account has exactly one of these.
	Key []byte                  // private key of the account, in PEM
	IAM *iamcredentials.Service // API that signs for the account
}

// openGCS opens gs://BUCKET/PREFIX. The login is the application default one.
func openGCS(ctx context.Context, u *url.URL) (*Store, error) {
	o := GCSOptions{Prefix: strings.Trim(u.Path, "/")}
	q := u.Query()
	for name := range q {
		if !slices.Contains([]string{"access_id", "endpoint"}, name) {
			return nil, fmt.Errorf("parameter %q: allowed are access_id, endpoint", name)
		}
	}
	options := []option.ClientOption{storage.WithJSONReads()}
	if endpoint := q.Get("endpoint"); endpoint != "" {
		at, err := url.Parse(endpoint)
		if err != nil || at.Scheme != "https" && at.Scheme != "http" || at.Host == "" ||
			strings.Trim(at.Path, "/") != "" {
			return nil, errors.New("endpoint: allowed are https://HOST and http://HOST")
		}
		o.Plaintext = at.Scheme == "http"
		options = append(options, option.WithEndpoint(at.Scheme+"://"+at.Host+"/storage/v1/"))
	}
	login, err := credentials.DetectDefault(&credentials.DetectOptions{Scopes: []string{gcsScope}})
	if err != nil {
		return nil, fmt.Errorf("login of Google Cloud: %w", err)
	}
	if o.Account = q.Get("access_id"); o.Account == "" {
		if o.Account, err = accountOf(ctx, login); err != nil {
			return nil, err
		}
	}
	if o.Account != "" {
		if err := o.signBy(ctx, login); err != nil {
			return nil, err
		}
	}
	client, err := storage.NewClient(ctx, append(options, option.WithAuthCredentials(login))...)
	if err != nil {
		return nil, err
	}
	return NewGCS(ctx, client, u.Host, o)
}

// accountOf returns the email of the service account of a login, or "" for a login that belongs to none.
func accountOf(ctx context.Context, login *auth.Credentials) (string, error) {
	text := login.JSON()
	if len(text) == 0 { // of the metadata server
		email, err := metadata.EmailWithContext(ctx, "default")
		if err != nil {
			return "", fmt.Errorf("service account of this machine: %w", err)
		}
		return email, nil
	}
	var file struct {
		Email       string `json:"client_email"`
		Impersonate string `json:"service_account_impersonation_url"` // …/serviceAccounts/EMAIL:generateAccessToken
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return "", errors.New("the file of the login of Google Cloud is no JSON object")
	}
	if file.Email != "" {
		return file.Email, nil
	}
	name, _, _ := strings.Cut(file.Impersonate[strings.LastIndex(file.Impersonate, "/")+1:], ":")
	return name, nil
}

// signBy sets the means of the login to sign: its private key, or Google's API for logins without one.
func (o *GCSOptions) signBy(ctx context.Context, login *auth.Credentials) (err error) {
	var file struct {
		Key string `json:"private_key"`
	}
	// The file of another kind of login has no key, and the metadata server gives no file.
	if json.Unmarshal(login.JSON(), &file) == nil && file.Key != "" {
		o.Key = []byte(file.Key)
		return nil
	}
	o.IAM, err = iamcredentials.NewService(ctx, option.WithAuthCredentials(login))
	return err
}

// NewGCS returns the store in a bucket of Google Cloud Storage, as the client reaches it. The store owns the client.
func NewGCS(ctx context.Context, client *storage.Client, bucket string, o GCSOptions) (*Store, error) {
	if o.Prefix != "" && (checkKey(o.Prefix) != nil || len(o.Prefix) > maxPrefix) {
		return nil, berth.Errorf(berth.CodeInvalid, "prefix %.100q: allowed are folders of letters, digits and ._=-, "+
			"at most %d characters", o.Prefix, maxPrefix)
	}
	if o.Account != "" && (len(o.Key) == 0) == (o.IAM == nil) {
		return nil, berth.Errorf(berth.CodeInvalid, "account %.100q has no means to sign, or two: allowed are its "+
			"private key and the IAM API, one of them", o.Account)
	}
	// Each request of a store may be repeated: a second one has the same effect, or the answer that the object exists.
	client.SetRetry(storage.WithPolicy(storage.RetryAlways), storage.WithMaxAttempts(gcsTries))
	opened, err := gcsblob.OpenBucket(ctx, nil, bucket, &gcsblob.Options{Client: client})
	if err != nil {
		return nil, err
	}
	s := &Store{location: location{bucket: opened}, google: client}
	if o.Prefix != "" {
		o.Prefix += "/"
		s.bucket = blob.PrefixedBucket(opened, o.Prefix)
	}
	if o.Account != "" {
		s.signer = &gcsSigner{bucket: client.Bucket(bucket), options: o}
	}
	return s, nil
}

// gcsChunk is the unit of the buffer of a write, in bytes.
const gcsChunk = 256 << 10

// gcsBuffer returns the length of the buffer in which an object of a size is written, in bytes. An object that fits is
// written by one request. A negative size is unknown; the buffer is then the library's default of 16 MiB.
func gcsBuffer(size int64) int {
	if size < 0 || size >= 16<<20 {
		return 0
	}
	return int(size/gcsChunk+1) * gcsChunk
}
