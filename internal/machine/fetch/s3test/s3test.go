// Package s3test runs a server that speaks S3 for tests: versitygw, a real one,
// over a folder of its own.
package s3test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"berth/internal/machine/fetch/toolserver"
	"berth/spec"
)

// Server is a running server with one bucket.
type Server struct {
	URL    string
	Bucket string
	Login  spec.Sensitive // as the secret of an input is written
	t      testing.TB
	client *s3.Client
}

// The server's root login. The secret is a canary: tests look for it in logs and errors.
const keyID, secretKey = "test-key", "canary-of-a-secret-key"

// Start runs a server with an empty bucket until the test ends. Its folder is removed with the
// test's other temporary folders.
func Start(t testing.TB) *Server {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"data", "meta"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s := &Server{t: t, Bucket: "bucket", Login: keyID + ":" + secretKey}
	s.URL = "http://" + toolserver.Start(t, "versitygw", func(cmd *exec.Cmd, address string) {
		cmd.Args = append(cmd.Args, "--quiet", "--port", address, "posix", "--sidecar", filepath.Join(dir, "meta"),
			filepath.Join(dir, "data"))
		cmd.Env = []string{"ROOT_ACCESS_KEY=" + keyID, "ROOT_SECRET_KEY=" + secretKey}
	})
	s.client = ClientAt(s.URL)
	if _, err := s.client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &s.Bucket}); err != nil {
		t.Fatal(err)
	}
	return s
}

// Client returns a client with the server's root login.
func (s *Server) Client() *s3.Client { return s.client }

// ClientAt returns a client with the root login of every server of this package, at another address: of a proxy in
// front of a server that keeps the Host of requests.
func ClientAt(address string) *s3.Client {
	return s3.New(s3.Options{
		BaseEndpoint: &address, UsePathStyle: true, Region: "us-east-1",
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: keyID, SecretAccessKey: secretKey}, nil
		}),
	})
}

// Put stores an object, and replaces one of the same key.
func (s *Server) Put(key, content string) {
	s.t.Helper()
	if _, err := s.client.PutObject(s.t.Context(),
		&s3.PutObjectInput{Bucket: &s.Bucket, Key: &key, Body: strings.NewReader(content)}); err != nil {
		s.t.Fatal(err)
	}
}

// Input returns an input from the server. A key that ends in / names all objects below it. secret
// is the name under which the job finds Login, "" for a request without a login.
func (s *Server) Input(key, to, secret string) spec.Input {
	return spec.Input{From: "s3://" + s.Bucket + "/" + key, To: to, Endpoint: s.URL, Secret: secret}
}
